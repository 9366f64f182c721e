"""The flow that has to bear it: four keyed steps, one behind the other.

What it gives out and keeps does not depend on where a batch ends, so that a plain program knows it
for any rows (`oracle.py`). All of it does depend on every row coming once, and in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided

__all__ = [
    "GROUPS",
    "INPUT",
    "MODULUS",
    "OUTPUT",
    "STEP",
    "TICK_MS",
    "Bag",
    "Chain",
    "Milestones",
    "chained",
    "flow",
    "mixed",
]

INPUT = "id long, k long, v long, at timestamp"
OUTPUT = "g long, what string, value long"
GROUPS = 24
MODULUS = (1 << 61) - 1
STEP = 4
TICK_MS = 16_000


def chained(digest: int, row_id: int) -> int:
    """A number that stands for all rows of a key, in their order."""
    return (digest * 1_000_003 + row_id + 1) % MODULUS


def mixed(sum: int, row_id: int) -> int:
    """A number that stands for all rows of a key, in any order."""
    return (sum + (row_id + 1) * 1_000_003 * (row_id + 7)) % MODULUS


class Bag(braided.Operator):
    """Does not mind the order of rows, so that its keys can be split; it hands all of them on."""

    n: int = 0
    sum: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.n += 1
        self.sum = mixed(self.sum, row.id)
        yield row.id, row.k, row.v, row.ms

    def merge(self, other: Any) -> None:
        self.n += other.n
        self.sum = (self.sum + other.sum) % MODULUS


class Chain(braided.Operator):
    """Sees every row: one more, one less or two that changed places make another digest."""

    n: int = 0
    digest: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[int, int, int]]:
        self.n += 1
        self.digest = chained(self.digest, row.id)
        yield row.k % GROUPS, row.v, row.ms


class Milestones(braided.Operator):
    """A row for every so many rows of a group, and one for each tick of event time from its first
    row on.
    """

    reached: int = 0
    tick_ms: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[int, str, int]]:
        if not self.tick_ms:
            self._await_tick((row.first_ms // TICK_MS + 1) * TICK_MS)
        while self.reached + STEP <= row.n:
            self.reached += STEP
            yield row.g, "rows", self.reached

    def onTimer(self, fired: datetime) -> Iterator[tuple[int, str, int]]:
        yield self.key.g, "tick", self.tick_ms
        self._await_tick(self.tick_ms + TICK_MS)

    def _await_tick(self, ms: int) -> None:
        self.tick_ms = ms
        self.setTimer(ms)


def flow(rows: DataFrame) -> braided.Stream:
    timed = rows.withColumn("ms", F.unix_millis("at")).withWatermark("at", "0 seconds")
    bag = braided.stream(timed).groupBy("k").apply(Bag, "id long, k long, v long, ms long")
    chain = bag.name("bag").groupBy("k").apply(Chain, "g long, v long, ms long")
    totals = (
        chain.name("chain")
        .groupBy("g")
        .agg(
            F.count("*").alias("n"),
            F.sum("v").alias("total"),
            F.min("ms").alias("first_ms"),
            F.max("ms").alias("last_ms"),
        )
        .name("totals")
    )
    milestones = totals.groupBy("g").apply(Milestones, OUTPUT, timeMode="EventTime")
    return milestones.name("milestones")

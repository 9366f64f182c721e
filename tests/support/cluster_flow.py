"""A query on the cluster of the tests, fed batch by batch, and what its progress says of hosts."""

from __future__ import annotations

import random
import time
from typing import Any

import braided
from braided.api.query import ElasticQuery
from support.cluster_operators import INPUT, OUTPUT, Sums, expected_sums
from support.stream_harness import Feed, Lab

__all__ = ["KEYS", "SLOTS", "Flow", "caught_up", "channels_of", "placed", "slots_of"]

SLOTS = 32
KEYS = 400


class Flow:
    """A query on the cluster that is fed batch by batch."""

    def __init__(self, lab: Lab, ballast: int = 0, **options: Any) -> None:
        self.lab = lab
        self.feed: Feed = lab.feed(INPUT)
        self.rows: list[tuple[int, int]] = []
        self._random = random.Random(7)
        stream = braided.stream(self.feed.frame(maxFilesPerTrigger=1)).groupBy("k")
        sums = stream.apply(Sums.with_(ballast_bytes=ballast), OUTPUT).name("sums")
        options = {"slots": SLOTS, "channels": 4, "balance": "static", **options}
        self.add()
        self.query: ElasticQuery = lab.start(sums, **options)

    def add(self) -> None:
        """A row of every key, in any order: all slots are touched."""
        keys = self._random.sample(range(KEYS), KEYS)
        rows = [(k, self._random.randrange(100)) for k in keys]
        self.rows += rows
        self.feed.add(rows)

    def run(self, batches: int = 1) -> list[dict[str, Any]]:
        """So many batches, one right after the other; what the progress says of each."""
        self.query.processAllAvailable()
        for _ in range(batches):
            self.add()
        self.query.processAllAvailable()
        return self.sections()[-batches:]

    def run_until(self, is_so: Any, within_s: float = 300.0) -> list[dict[str, Any]]:
        """Batches until one is as it should be; all of them. What is waited for may need new
        processes, so that it is no matter of how many batches there are meanwhile.
        """
        end_s = time.monotonic() + within_s
        sections = self.run()
        while not is_so(sections[-1]):
            assert time.monotonic() < end_s, [channels_of(each) for each in sections]
            sections += self.run()
        return sections

    def run_on_all_hosts(self) -> None:
        """Until there are two batches with a channel on each, whatever the test before left."""
        self.run_until(lambda each: len(set(placed(each)["plannedHosts"])) == 4)
        self.run()

    def sections(self) -> list[dict[str, Any]]:
        """Of all batches with rows."""
        return [
            progress["braided"]
            for progress in self.query.recentProgress
            if progress.numInputRows and "braided" in progress
        ]

    def newest(self) -> dict[str, Any]:
        return self.sections()[-1]

    def check(self) -> None:
        self.query.processAllAvailable()
        self.query.stop()
        found: dict[int, tuple[int, int]] = {}
        for row in self.lab.spark.read.parquet(str(self.lab.out)).collect():
            found[row.k] = max(found.get(row.k, (0, 0)), (row.n, row.s))
        assert found == expected_sums(self.rows)


def channels_of(section: dict[str, Any]) -> int:
    return int(section["operators"]["sums"]["channels"])


def caught_up(section: dict[str, Any]) -> tuple[int, int]:
    """Slots and bytes."""
    operator = section["operators"]["sums"]
    return operator["caughtUp"] + operator["rebuilt"], operator["bytesCaughtUp"]


def placed(section: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = section["cluster"]["operators"]["sums"]
    return found


def slots_of(flow: Flow, host: str) -> int:
    """How many slots the table has on a host."""
    table = flow.query.routing()["sums"]
    return sum(table.hosts[channel] == host for channel in table.slots.tolist())

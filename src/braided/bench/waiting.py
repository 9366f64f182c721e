"""Work that is waiting: a row costs a millisecond whatever the machine, so that 2 cores stand in
for 16. The same job for Braided and for Spark's own `transformWithState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from braided.bench.session import KeyNumbers
from braided.operator.definition import Operator

__all__ = [
    "ROW_S",
    "MergingTotals",
    "NativeWaitingTotals",
    "WaitingTotals",
    "ZipfKeys",
    "wait",
    "work",
]

ROW_S = 0.001
_SLACK_S = 0.01
"""Time between two keys that counts as part of their work: what the machine needs for them."""


def wait(until_s: float, rows: int) -> float:
    """Waits as long as some rows take; `until_s` and the result are when that was due to end."""
    return work(until_s, rows * ROW_S)


def work(until_s: float, seconds: float, computed: float = 0.0) -> float:
    """The same for so many seconds, in a part of which it computes: then it has to have a core.

    To a deadline that goes on from key to key: that a sleep takes longer than asked for, and what
    the machine does besides, is not added to every key.
    """
    until_s = max(until_s, perf_counter() - _SLACK_S) + seconds
    computed_until_s = thread_time() + computed * seconds
    while thread_time() < computed_until_s:
        pass
    left_s = until_s - perf_counter()
    if left_s > 0:
        sleep(left_s)
    return until_s


class WaitingTotals(Operator):
    """Count and sum per key, one row out for each key and batch, at `ROW_S` of waiting a row."""

    n: int = 0
    s: float = 0.0

    def onOpen(self) -> list[float]:
        return [perf_counter()]

    def onBatch(self, rows: pa.Table) -> Iterator[tuple[int, int, float]]:
        self.n += rows.num_rows
        self.s += sum(rows["v"].to_pylist())
        self.opened[0] = wait(self.opened[0], rows.num_rows)
        yield self.key.k, self.n, self.s


class MergingTotals(WaitingTotals):
    """The same, but the rows of a key need not come to one channel."""

    def merge(self, other: WaitingTotals) -> None:
        self.n += other.n
        self.s += other.s


class NativeWaitingTotals(StatefulProcessor):
    """The same on Spark's own `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n long, s double")
        self._until_s = perf_counter()

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before, s = self._totals.get() or (0, 0.0)
        n = before
        for row in rows:
            n += 1
            s += row.v
        self._totals.update((n, s))
        self._until_s = wait(self._until_s, n - before)
        yield Row(k=key[0], n=n, s=s)

    def close(self) -> None:
        pass


class ZipfKeys:
    """Keys by a zipf law; a shuffle deals out the frequencies anew."""

    def __init__(self, keys: int, skew: float, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        weights = np.arange(1, keys + 1) ** -skew
        self._shares = weights / weights.sum()
        self._names = self._random.permutation(keys)

    def shuffle(self) -> None:
        self._names = self._random.permutation(self._names.size)

    def draw(self, rows: int) -> KeyNumbers:
        drawn: KeyNumbers = self._names[self._random.choice(self._names.size, rows, p=self._shares)]
        return drawn

"""Operators whose rows, or timers, cost a given time, and whose output tells every row apart."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from time import perf_counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.bench.session import KeyNumbers
from braided.bench.waiting import ROW_S, work
from braided.operator.definition import Operator
from braided.operator.params import Param

__all__ = ["OUTPUT", "SESSION_GAP_S", "CostlyRows", "CostlySessions", "numbered", "sessions"]

OUTPUT = "k long, n long"
SESSION_GAP_S = 1.0

Pairs = npt.NDArray[np.int64]
"""Two columns, key and number, sorted."""


class CostlyRows(Operator):
    """Numbers the rows of a key: a row out for each row in."""

    row_s: Param[float] = ROW_S
    computed: Param[float] = 0.0
    n: int = 0

    def onOpen(self) -> list[float]:
        return [perf_counter()]

    def onBatch(self, rows: pa.Table) -> Iterator[tuple[int, int]]:
        self.opened[0] = work(self.opened[0], rows.num_rows * self.row_s, self.computed)
        for _ in range(rows.num_rows):
            self.n += 1
            yield self.key.k, self.n


class CostlySessions(Operator):
    """Counts the rows of a key until it has had none for a while: a row out when it is closed,
    which is where most of the work is.
    """

    row_s: Param[float] = ROW_S
    timer_s: Param[float] = ROW_S
    computed: Param[float] = 0.0
    n: int = 0

    def onOpen(self) -> list[float]:
        return [perf_counter()]

    def onBatch(self, rows: pa.Table) -> None:
        self.opened[0] = work(self.opened[0], rows.num_rows * self.row_s, self.computed)
        self.n += rows.num_rows
        for timer in self.timers():
            self.deleteTimer(timer)
        last = datetime.fromtimestamp(max(rows["v"].to_pylist()))
        self.setTimer(last + timedelta(seconds=SESSION_GAP_S))

    def onTimer(self, fired: datetime) -> Iterator[tuple[int, int]]:
        self.opened[0] = work(self.opened[0], self.timer_s, self.computed)
        yield self.key.k, self.n
        self.forget()


def numbered(keys: KeyNumbers) -> Pairs:
    """What `CostlyRows` gives out for rows of these keys."""
    ordered = np.sort(keys)
    counts = np.unique(ordered, return_counts=True)[1]
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([ordered, np.arange(ordered.size) - firsts + 1], axis=1).astype(np.int64)


def sessions(keys: KeyNumbers) -> Pairs:
    """What `CostlySessions` gives out, if every key has one session."""
    return np.stack(np.unique(keys, return_counts=True), axis=1).astype(np.int64)

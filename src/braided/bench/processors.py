"""The processors that both sides of `braided bench processor` run, unchanged, in rows and pandas.

Each touches one kind of state, or timers, for every key of a batch, and gives one row per key:
a count and a sum that depend on all that the key has kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import thread_time_ns
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ["PROCESSORS", "InPandas", "InRows", "Keeps", "frames_us_per_key"]

_HOUR_MS = 3_600_000
_KEPT = 6
"""How long a list grows before its older half goes."""
_SORTS = 4
"""How many entries a map has."""


class Keeps:
    """What is kept for a key: `add` takes the values of a batch and says count and sum."""

    timed = False

    def define(self, handle: StatefulProcessorHandle) -> None:
        raise NotImplementedError

    def add(self, values: list[float], now_ms: int) -> tuple[int, float] | None:
        raise NotImplementedError

    def fire(self) -> tuple[int, float]:
        raise NotImplementedError


class Value(Keeps):
    """Count and sum in a value."""

    ttl_ms: int | None = None

    def define(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "n long, s double", self.ttl_ms)

    def add(self, values: list[float], now_ms: int) -> tuple[int, float] | None:
        n, s = self.totals.get() or (0, 0.0)
        self.totals.update((n + len(values), s + sum(values)))
        return n + len(values), s + sum(values)


class Expiring(Value):
    """The same in a value that lives for an hour after it was written."""

    timed = True
    ttl_ms = _HOUR_MS


class Listed(Keeps):
    """The last few values in a list: appended to, read, and cut when it is long."""

    def define(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getListState("last", "v double")

    def add(self, values: list[float], now_ms: int) -> tuple[int, float] | None:
        # Sorted, because the order in which rows of a key arrive is nothing to compare.
        self.last.appendList([(value,) for value in sorted(values)])
        kept = [value for (value,) in self.last.get()]
        if len(kept) > _KEPT:
            self.last.put([(value,) for value in kept[-_KEPT // 2 :]])
        return len(kept), sum(kept)


class MappedSums(Keeps):
    """A sum for each of a few sorts of value in a map."""

    def define(self, handle: StatefulProcessorHandle) -> None:
        self.sums = handle.getMapState("sums", "sort int", "n long, s double")

    def add(self, values: list[float], now_ms: int) -> tuple[int, float] | None:
        for value in values:
            sort = (int(value) % _SORTS,)
            n, s = self.sums.getValue(sort) or (0, 0.0)
            self.sums.updateValue(sort, (n + 1, s + value))
        found = [totals for _, totals in self.sums.iterator()]
        return sum(n for n, _ in found), sum(s for _, s in found)


class Timed(Keeps):
    """Count and sum in a value, given by a timer that every batch sets, at once due."""

    timed = True

    def define(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", "n long, s double")

    def add(self, values: list[float], now_ms: int) -> tuple[int, float] | None:
        n, s = self.totals.get() or (0, 0.0)
        self.totals.update((n + len(values), s + sum(values)))
        self.handle.registerTimer(now_ms - 1)
        return None

    def fire(self) -> tuple[int, float]:
        n, s = self.totals.get() or (0, 0.0)
        return n, s


class InRows(StatefulProcessor):
    """What is kept, with rows in and out."""

    def __init__(self, keeps: type[Keeps]) -> None:
        self._keeps = keeps()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._keeps.define(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        totals = self._keeps.add([row.v for row in rows], now_ms)
        if totals is not None:
            yield Row(k=key[0], n=totals[0], s=totals[1])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        n, s = self._keeps.fire()
        yield Row(k=key[0], n=n, s=s)

    def close(self) -> None:
        pass


class InPandas(InRows):
    """What is kept, with frames in and out."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        totals = self._keeps.add(_values_of(rows), now_ms)
        if totals is not None:
            yield _frame_of(key[0], *totals)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield _frame_of(key[0], *self._keeps.fire())


def _values_of(frames: Iterator[pd.DataFrame]) -> list[float]:
    return [value for frame in frames for value in frame["v"].tolist()]


def _frame_of(k: int, n: int, s: float) -> pd.DataFrame:
    return pd.DataFrame({"k": [k], "n": [n], "s": [s]})


def frames_us_per_key(rows: int, keys: int = 2_000) -> float:
    """What `InPandas` itself takes for the frames of a key: to read one of so many rows and to make
    one of a row, and nothing of state or Spark. Processor time, the least of three.
    """
    given = [pd.DataFrame({"k": [k] * rows, "v": [0.5] * rows}) for k in range(keys)]
    taken_ns = []
    for _ in range(3):
        begun_ns = thread_time_ns()
        for k, frame in enumerate(given):
            values = _values_of(iter((frame,)))
            _frame_of(k, len(values), sum(values))
        taken_ns.append(thread_time_ns() - begun_ns)
    return min(taken_ns) / keys / 1000


PROCESSORS: dict[str, type[Keeps]] = {
    "value": Value,
    "list": Listed,
    "map": MappedSums,
    "timers": Timed,
    "ttl": Expiring,
}

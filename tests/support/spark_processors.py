"""StatefulProcessors of the tests on Spark, in a module that workers can import."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

__all__ = ["Bounded", "Brief", "PerKind", "Ratio", "Remembering", "Sessions", "Totals"]


class Totals(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n int, total double")
        self.seen = handle.getListState("seen", "v int")
        self.by = handle.getMapState("by", "v int", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.sums.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.v
            self.seen.appendValue((row.v,))
            self.by.updateValue((row.v,), ((self.by.getValue((row.v,)) or (0,))[0] + 1,))
        self.sums.update((n, total))
        assert len(list(self.seen.get())) == n == sum(c for (c,) in self.by.values())
        yield Row(k=key[0], n=n, total=total)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n, total = self.sums.get() or (0, 0.0)
        self.sums.update((n + 1, total + initialState.v))
        self.seen.appendValue((-1,))
        before = self.by.getValue((initialState.v,)) or (0,)
        self.by.updateValue((initialState.v,), (before[0] + 1,))


class Sessions(StatefulProcessor):
    """Gives out what it saw when the watermark, or the clock, has come far enough."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.seen.get() or (0,))[0]
        for frame in rows:
            n += len(frame)
            for old in self.handle.listTimers():
                self.handle.deleteTimer(old)
            self.handle.registerTimer(int(frame["t"].max().timestamp() * 1000) + 5_000)
        self.seen.update((n,))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        (n,) = self.seen.get()
        assert expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentWatermarkInMs()
        end = pd.Timestamp(timerValues.getCurrentWatermarkInMs() + 1_000, unit="ms")
        yield pd.DataFrame({"k": [key[0]], "n": [n], "t": [end]})
        self.seen.clear()


class PerKind(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.n.get() or (0,))[0] + sum(row.n for row in rows)
        self.n.update((n,))
        yield Row(kind=key[0], n=n)


class Brief(StatefulProcessor):
    """A list that stays, until a negative number comes, and a value that is gone at once."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "v int")
        self.last = handle.getValueState("last", "v int", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            if row.v:
                self.seen.appendValue((row.v,))
            self.last.update((row.v,))
            if row.v < 0:
                self.seen.clear()
                self.last.clear()
        return iter(())


class Ratio(StatefulProcessor):
    """NaN as long as there is nothing to divide by."""

    def init(self, handle: Any) -> None:
        self.ratio = handle.getValueState("ratio", "x double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        total = sum(row.v for row in rows)
        self.ratio.update((1 / total if total else float("nan"),))
        return iter(())


class Remembering(StatefulProcessor):
    """State of every kind, with and without a time to live, and a timer that is far away."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "d decimal(10,2), t timestamp, b binary")
        self.seen = handle.getListState("seen", "v int")
        self.fading = handle.getListState("fading", "v int", 3_600_000)
        self.by = handle.getMapState("by", "v int, s string", "n int", 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        said = [
            repr(self.last.get()),
            repr(list(self.seen.get())),
            repr(list(self.fading.get())),
            repr(sorted(self.by.iterator())),
            repr(list(self.handle.listTimers())),
        ]
        for row in rows:
            self.last.update((Decimal(row.v), dt.datetime(2024, 1, 1, 12, row.v), b"b" * row.v))
            self.seen.appendValue((row.v,))
            self.fading.appendValue((row.v,))
            self.by.updateValue((row.v, "s"), (row.v,))
            self.handle.registerTimer(4_000_000_000_000 + row.v)
        yield Row(k=key[0], said="; ".join(said))


class Bounded(StatefulProcessor):
    """One value for each key, which is dropped when it has grown large."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "v bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        total += sum(row.v + 1 for row in rows)
        if total > 8:
            self.total.clear()
        else:
            self.total.update((total,))
        yield Row(k=key[0], total=total)

    def close(self) -> None:
        pass

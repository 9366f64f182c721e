"""Keys, outputs, initial state, chains, restarts and batch DataFrames, in rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from support.processors.clocks import STILL, YEAR_MS, ByTheClock
from support.processors.scenario import Initial, Plain, Scenario, at, process

__all__ = ["SCENARIOS", "Count", "Totals"]


class Count(Plain):
    """Counts the rows of a key of any shape and shows key and count."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(key=repr(key), n=n)


class Totals(Plain):
    """A running sum, after what it started with."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.history = handle.getListState("history", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = [n for (n,) in self.history.get()]
        total = (self.total.get() or (0,))[0]
        for row in rows:
            total += row.v
            self.history.appendValue((row.v,))
        self.total.update((total,))
        yield Row(k=key[0], what=f"{sorted(before)} {total}")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update(((self.total.get() or (0,))[0] + initialState.start,))
        self.history.appendValue((initialState.start,))


class Woken(Totals):
    """Initial state that sets timers: due at once, so that they fire in the first batch."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        super().handleInitialState(key, initialState, timerValues)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield Row(k=key[0], what=f"woken with {self.total.get()}")


_NULLS = ("b", "t", "i", "f", "c", "y", "d", "ts", "xs", "m", "s")


class Rich(Plain):
    """Everything that an output row can hold."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield Row(
                k=key[0],
                b=True,
                t=-1,
                i=row.v,
                f=1.5,
                c=Decimal("12.30"),
                y=b"\x00\x01",
                d=date(2024, 2, 29),
                ts=datetime(2024, 2, 29, 1, 2, 3, 4),
                xs=[1, None, 3],
                m={"a": [1.5], "b": None},
                s=Row(x=row.v, inner=Row(z=[Row(q="q")])),
            )
            yield Row(k=key[0], **dict.fromkeys(_NULLS))


_RICH = (
    "k string, b boolean, t tinyint, i long, f float, c decimal(10,2), y binary, d date, "
    "ts timestamp, xs array<int>, m map<string, array<double>>, "
    "s struct<x: int, inner: struct<z: array<struct<q: string>>>>"
)


class Shapes(Plain):
    """Other ways to give rows: none, a list, an iterator, many, without reading the input."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.calls = handle.getValueState("calls", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        calls = (self.calls.get() or (0,))[0] + 1
        self.calls.update((calls,))
        match key[0]:
            case "nothing":
                return iter([])
            case "a list":
                return [Row(k=key[0], n=calls)]
            case "an iterator":
                return iter([Row(k=key[0], n=calls), Row(k=key[0], n=-calls)])
            case "first row only":
                return iter([Row(k=key[0], n=next(rows).v)])
            case "unread":
                return iter([Row(k=key[0], n=0)])
            case "many":
                return (Row(k=key[0], n=n) for row in rows for n in range(row.v))
        return iter([])


class Latest(Plain):
    """The newest event time of a key; late rows are not seen."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.newest = handle.getValueState("newest", "ms long, n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        newest, n = self.newest.get() or (0, 0)
        for row in rows:
            newest, n = max(newest, round(row.t.timestamp() * 1000)), n + 1
        self.newest.update((newest, n))
        yield Row(k=key[0], t=datetime.fromtimestamp(newest / 1000, UTC), n=n)


class PerMinute(Plain):
    """Chained: gathers by minute, and says so when the watermark has passed it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getListState("seen", "k string, n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.seen.appendValue((row.k, row.n))
        self.handle.registerTimer(int(key[0].timestamp() * 1000) + 60_000)
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield Row(m=key[0], seen=repr(sorted(map(tuple, self.seen.get()))))
        self.seen.clear()


def _watermarked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "10 seconds")


_TIMES = (
    (("a", at(10)), ("b", at(70))),
    (("a", at(75)), ("b", at(20)), ("c", at(100))),
    (("c", at(300)), ("d", at(301))),
    (("c", at(302)),),
)
_LATEST = process(
    Latest(),
    "k string, t timestamp, n int",
    time="EventTime",
    mode="Append",
    eventTimeColumnName="t",
)


def _minutes(flow: Any) -> Any:
    times = flow.filter("n > 0").withColumnRenamed("t", "time")
    counted = times.groupBy("k", F.window("time", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select("k", "window.start", "n")


def _by_minute(flow: Any) -> Any:
    return flow.withColumn("m", F.date_trunc("minute", "t"))


def _finish(flow: Any) -> Any:
    return flow.filter("n > 1").withColumn("twice", F.col("n") * 2).drop("n")


_MIXED = "a int, v int, b string, d date"
_MIXED_ROWS = (
    ((1, 5, "x", date(2024, 1, 1)), (1, 6, "y", date(2024, 1, 1)), (2, 7, "x", None)),
    ((1, 8, "x", date(2024, 1, 1)), (None, 9, None, None), (2, 7, "x", None)),
    ((None, 0, None, None), (1, 1, "y", date(2024, 1, 1))),
)
_KEY_OUT = "key string, n long"
_NAN = float("nan")
_AB = {"a": 1, "b": None}
_START = (("starts, no rows", 100), ("starts, then rows", 10), ("several", 1), ("several", 2))
_SUMS = (
    (("starts, then rows", 5), ("several", 5), ("no start", 5), ("no start", 6)),
    (("starts, no rows", 1), ("starts, then rows", 1), ("several", 1), ("no start", 1)),
)
_START_PARTS = tuple(dict.fromkeys(key for key, _ in (*_START, ("no start", 0))))
_TOTAL_OUT = "k string, what string"
_WOKEN = process(
    Woken(),
    _TOTAL_OUT,
    time="ProcessingTime",
    initial=Initial("start long, who string", [(n, k) for k, n in _START], ("who",)),
)

SCENARIOS = (
    Scenario(
        "keys: three columns in another order, with nulls",
        _MIXED,
        _MIXED_ROWS,
        (process(Count(), _KEY_OUT, "b", "d", "a"),),
    ),
    Scenario(
        "keys: every type",
        "y binary, c decimal(10,2), t timestamp, f boolean, l long, n timestamp_ntz, x double, "
        "s struct<a: int, b: string>",
        (
            (
                (b"\x00", Decimal("1.50"), at(0), True, 1, at(1), _NAN, _AB),
                (b"", Decimal("1.50"), at(0), None, 1, None, 0.5, None),
            ),
            (
                (b"\x00", Decimal("1.5"), at(0), True, 1, at(1), _NAN, _AB),
                (None,) * 8,
            ),
        ),
        (process(Count(), _KEY_OUT, "c", "y", "t", "x", "n", "s", "f", "l"),),
    ),
    Scenario(
        "output: every type and nulls",
        "k string, v int",
        ((("a", 1), ("b", 2)),),
        (process(Rich(), _RICH),),
    ),
    Scenario(
        "output: given in many ways",
        "k string, v int",
        tuple(
            tuple(
                (key, 3)
                for key in ("nothing", "a list", "an iterator", "first row only", "unread", "many")
            )
            for _ in range(1)
        ),
        (process(Shapes(), "k string, n int"),),
        parts=("nothing", "a list", "an iterator", "first row only", "unread", "many"),
    ),
    Scenario(
        "output: append mode, stateless steps after",
        "a int, v int",
        (((1, 1), (1, 2), (2, 3)), ((2, 4), (3, 5))),
        (process(Count(), _KEY_OUT, "a", mode="Append"),),
        mode="append",
        finish=_finish,
    ),
    Scenario(
        "initial state",
        "k string, v long",
        _SUMS,
        (process(Totals(), _TOTAL_OUT, initial=Initial("k string, start long", _START, ("k",))),),
        parts=_START_PARTS,
    ),
    Scenario(
        "initial state: other names, timers, a restart",
        "k string, v long",
        _SUMS,
        (_WOKEN,),
        restarts={1: None},
        conf=STILL,
    ),
    Scenario(
        "chain: event time goes on into an aggregate",
        "k string, t timestamp",
        _TIMES,
        (_LATEST,),
        finish=_minutes,
        mode="append",
        prepare=_watermarked,
        whole=True,
    ),
    Scenario(
        "chain: event time goes on in a column of the output",
        "k string, t timestamp",
        _TIMES,
        (
            _LATEST,
            process(
                PerMinute(),
                "m timestamp, seen string",
                "m",
                time="EventTime",
                mode="Append",
                before=_by_minute,
            ),
        ),
        mode="append",
        prepare=_watermarked,
        whole=True,
    ),
    Scenario(
        "chain: three operators",
        "k string, v long",
        ((("a", 1), ("b", 2), ("a", 3)),),
        (
            process(Totals(), "k string, what string", mode="Append"),
            process(Count(), _KEY_OUT, "what", mode="Append"),
            process(Count(), _KEY_OUT, "n", mode="Append"),
        ),
        mode="append",
    ),
    Scenario(
        "restart: state goes on",
        "k string, v long",
        ((("a", 1), ("b", 2)), (("a", 3), ("a", 4), ("c", 5))),
        (process(Totals(), _TOTAL_OUT),),
        restarts={1: None},
    ),
    Scenario(
        "batch: rows", _MIXED, _MIXED_ROWS, (process(Count(), _KEY_OUT, "b", "a"),), batch=True
    ),
    Scenario(
        "batch: initial state",
        "k string, v long",
        _SUMS,
        (process(Totals(), _TOTAL_OUT, initial=Initial("k string, start long", _START, ("k",))),),
        batch=True,
    ),
    Scenario(
        "batch: initial state under other names, with timers",
        "k string, v long",
        _SUMS,
        (_WOKEN,),
        batch=True,
    ),
    Scenario(
        "batch: timers",
        "k string, n int, op string, s long",
        ((("a", 0, "past", -1), ("a", 1, "year", YEAR_MS), ("b", 0, "list", 0)),),
        (process(ByTheClock(), "k string, what string", time="ProcessingTime"),),
        batch=True,
    ),
)

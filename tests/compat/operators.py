"""The steps of the cases, one for each kind of state there is.

What is here is in checkpoints: a class that changes its fields or its name no longer fits the old
ones. Add classes; leave those that are there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import braided

__all__ = [
    "FAR_MS",
    "TOTALS",
    "Averages",
    "Decades",
    "Kept",
    "Log",
    "Match",
    "Merged",
    "PandasTotals",
    "Passed",
    "Remembering",
    "Through",
    "TotalsNow",
    "TotalsThen",
    "Turns",
    "counted",
    "last_values",
]

FAR_MS = 4_000_000_000_000
"""A time in the next century: its timers wait."""


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


@dataclass
class Point:
    x: float
    tags: tuple[str, ...] = ()


class Span(NamedTuple):
    low: int
    high: int


class Kept(braided.Operator):
    """A field of every kind, and two timers that wait."""

    count: int = 0
    total: float = 0.0
    odd: bool = False
    name: str | None = None
    raw: bytes = b""
    recent: list[int] = []  # noqa: RUF012 - a field's default, copied for every key
    seen: set[int] = set()  # noqa: RUF012
    per: dict[str, int] = {}  # noqa: RUF012
    day: date | None = None
    waited: timedelta = timedelta()
    amount: Decimal = Decimal(0)
    id: UUID | None = None
    mood: Mood = Mood.CALM
    point: Point | None = None
    span: Span = Span(0, 0)

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.total += row.x
        self.odd = not self.odd
        self.name = f"{row.c}"
        self.raw += bytes([row.seq])
        self.recent = [*self.recent, row.v][-3:]
        self.seen.add(row.c)
        self.per[self.name] = self.per.get(self.name, 0) + row.v
        self.day = date(2024, 3, 1 + row.c)
        self.waited += timedelta(seconds=row.seq)
        self.amount += Decimal(row.v) / 8
        self.id = UUID(int=row.seq)
        self.mood = Mood.WILD if row.v > 40 else Mood.CALM
        self.point = Point(row.x, (self.name, "p"))
        self.span = Span(min(self.span.low, row.v), max(self.span.high, row.v))
        for when in self.timers():
            if len(self.timers()) > 1:
                self.deleteTimer(when)
        self.setTimer(FAR_MS + row.seq)
        yield row.k, self.count, self.total, row.seq

    def onTimer(self, fired: Any) -> None:
        raise AssertionError("it is not time yet")


class Decades(braided.Operator):
    """Counts ten rows, and tells when event time has gone on for a while."""

    rows: int = 0

    def onRow(self, row: Any) -> None:
        self.rows += 1
        for when in self.timers():
            self.deleteTimer(when)
        self.setTimer(row.at + timedelta(seconds=65))

    def onTimer(self, fired: Any) -> Iterator[Any]:
        yield self.key.decade, self.rows
        self.forget()


# -- fields that changed ------------------------------------------------------------------------

TOTALS = "k string, c int, v bigint, seq bigint, at timestamp"


class TotalsThen(braided.Operator):
    count: int = 0
    sum: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.sum += row.v
        yield row.k, row.c, self.sum, row.seq, row.at


class TotalsNow(braided.Operator):
    total: float = braided.renamed("sum", default=0.0)
    last: list[int] = [-1]  # noqa: RUF012
    count: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.total += row.v
        self.last = [*self.last, row.seq][-2:]
        yield row.k, row.c, int(self.total), row.seq, row.at


class Averages(braided.Operator):
    """Behind the totals, by another key and by event time."""

    rows: int = 0
    total: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.rows += 1
        self.total += row.v
        self.setTimer(FAR_MS)
        yield row.c, self.rows, self.total, row.seq

    def onTimer(self, fired: Any) -> None:
        raise AssertionError("it is not time yet")


# -- two inputs, rows that can't be processed, rows that wait ------------------------------------


class Match(braided.Operator):
    """Joins by number of category; raises for some rows of either side."""

    left: dict[int, int] = {}  # noqa: RUF012
    right: dict[int, int] = {}  # noqa: RUF012

    def onLeft(self, row: Any) -> Iterator[Any]:
        self.left[row.c] = self.left.get(row.c, 0) + 1
        if row.v % 7 == 0:
            raise ValueError(f"{row.v} is a multiple of seven")
        yield self.key.k, row.c, self.right.get(row.c, 0), row.seq

    def onRight(self, row: Any) -> Iterator[Any]:
        self.right[row.d] = self.right.get(row.d, 0) + 1
        if row.w % 5 == 0:
            raise ValueError(f"{row.w} is a multiple of five")
        yield self.key.k, row.d, -self.left.get(row.d, 0), row.seq


class Log(braided.Operator):
    """The order in which rows came."""

    seen: list[int] = []  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        self.seen.append(row.seq)
        yield row.k, row.seq, len(self.seen)


class Passed(braided.Operator):
    """Sends every row round again, until it has been here three times."""

    rounds: dict[int, int] = {}  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        again = (row.again or 0) + 1
        self.rounds[row.seq] = again
        yield row.k, row.seq, again


class Merged(braided.Operator):
    """Its keys can be split: what it gives out does not depend on its state."""

    count: int = 0
    total: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.total += row.v
        yield row.k, row.v, row.seq

    def merge(self, other: Merged) -> None:
        self.count += other.count
        self.total += other.total


class Turns(braided.Operator):
    turns: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.turns += 1
        yield row.k, self.turns, row.seq


class Through(braided.Operator):
    """Gives out what it takes in, and remembers how much that was."""

    rows: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.rows += 1
        yield row.k, row.c, row.seq


def counted() -> type[braided.Operator]:
    """A function over dicts, as an operator; made anew, with dicts of its own."""
    last: dict[str | None, int] = {}
    counts: dict[str | None, int] = {}

    def counting(row: Any) -> Iterator[Any]:
        counts[row.k] = counts.get(row.k, 0) + 1
        yield row.k, counts[row.k], last.get(row.k, 0), row.seq
        last[row.k] = row.v

    return braided.managed(counting)


# -- Spark's own -----------------------------------------------------------------------------------


class Remembering(StatefulProcessor):
    """State of every kind, with and without a time to live, and timers that wait. What it gives
    out is what it remembered.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "d decimal(10,2), b binary, s string")
        self.long = handle.getValueState("long", "s string", FAR_MS)
        self.seen = handle.getListState("seen", "v long")
        self.fading = handle.getListState("fading", "v long", FAR_MS)
        self.by = handle.getMapState("by", "v long, s string", "n int")
        self.fading_by = handle.getMapState("fading_by", "c int", "n long", FAR_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.seq):
            said = (
                self.last.get(),
                len((self.long.get() or ("",))[0]),
                list(self.seen.get()),
                list(self.fading.get()),
                sorted(self.by.iterator()),
                sorted(self.fading_by.iterator()),
                sorted(self.handle.listTimers()),
            )
            self.last.update((Decimal(row.v) / 4, bytes([row.c]), row.k))
            self.long.update(("l" * (600 + row.c),))
            self.seen.appendValue((row.v,))
            self.fading.appendValue((row.seq,))
            self.by.updateValue((row.v % 4, "s"), (row.c,))
            self.fading_by.updateValue((row.c,), (row.seq,))
            self.handle.registerTimer(FAR_MS + row.c)
            yield Row(k=row.k, said=repr(plain(said)), seq=row.seq)

    def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Iterator[Row]:
        raise AssertionError("it is not time yet")


def plain(value: Any) -> Any:
    """Rows as tuples, all the way down."""
    if isinstance(value, tuple | list):
        kind = list if isinstance(value, list) else tuple
        return kind(plain(each) for each in value)
    return bytes(value) if isinstance(value, bytearray) else value


class PandasTotals(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, total double")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        n, total = self.sums.get() or (0, 0.0)
        for frame in rows:
            n, total = n + len(frame), total + float(frame["x"].sum())
        self.sums.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def last_values(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """For applyInPandasWithState."""
    count, highest = state.get if state.exists else (0, -1)
    for frame in frames:
        count, highest = count + len(frame), max(highest, int(frame["seq"].max()))
    state.update((count, highest))
    yield pd.DataFrame({"k": [key[0]], "n": [count], "highest": [highest]})

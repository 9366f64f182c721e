"""A family of operators over rows (k, c, v, seq), each with a plain Python model of it.

Every operator gives out rows of the same four columns, so that any two can be chained. The models
know nothing of Braided: one dictionary of keys, and rows in the order of their tags. A tag is what
orders rows: batch and sequence, then the number of the row among those that one input row, call or
timer gave out.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

import braided

__all__ = ["FAMILY", "SCHEMA", "Member", "Oracle", "Tagged", "Waits", "pause_of"]

SCHEMA = "k string, c int, v bigint, seq bigint"
LONG_AGO_MS = 1_000_000_000_000
FAR_AWAY_MS = 4_000_000_000_000
TIMERS_LAST = 1 << 62

Row = tuple[Any, ...]


def pause_of(key: tuple[Any, ...]) -> int:
    """A few ms that differ from key to key, so that no two timers are due at the same time."""
    return zlib.crc32(repr(key).encode()) % 4093


class Totals(braided.Operator):
    count: int = 0
    total: int = 0

    def onRow(self, row: Any) -> Iterator[Row]:
        self.count += 1
        self.total += row.v
        yield row.k, self.count, self.total, row.seq


class Waits(braided.Operator):
    """Five milliseconds of work a row, on any machine."""

    rows: int = 0

    def onRow(self, row: Any) -> Iterator[Row]:
        time.sleep(0.005)
        self.rows += 1
        yield row.k, self.rows


class Threshold(braided.Operator):
    stored: int | None = None

    def onRow(self, row: Any) -> Iterator[Any]:
        if self.stored is None or abs(row.v - self.stored) > 5:
            self.stored = row.v
            yield row


class LastThree(braided.Operator):
    recent: list[int] = []  # noqa: RUF012 - a field's default, copied for every key

    def onRow(self, row: Any) -> list[dict[str, Any]]:
        self.recent = [*self.recent, row.v][-3:]
        return [{"k": row.k, "c": row.c, "v": sum(self.recent), "seq": row.seq}]


class PerCategory(braided.Operator):
    counts: dict[str, int] = {}  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Row]:
        name = str(row.c)
        self.counts[name] = self.counts.get(name, 0) + 1
        yield row.k, len(self.counts), self.counts[name], row.seq


class FirstSeen(braided.Operator):
    seen: set[int] = set()  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Row]:
        if row.v == 7:
            self.forget()
        elif row.v not in self.seen:
            self.seen.add(row.v)
            yield row.k, row.c, row.v, row.seq


class Burst(braided.Operator):
    given: int = 0

    def onRow(self, row: Any) -> Iterator[Row]:
        for _ in range(row.v % 4):
            self.given += 1
            yield row.k, row.c, self.given, row.seq


class Alarms(braided.Operator):
    """Sets timers in the past, soon and far away, takes some back, forgets some keys."""

    fired: int = 0

    def onRow(self, row: Any) -> None:
        pause = pause_of(tuple(self.key))
        match row.v % 6:
            case 0:
                self.setTimer(LONG_AGO_MS + row.v * 10_000 + pause)
            case 1:
                self.setTimer(self.batchTime + timedelta(milliseconds=1 + pause))
            case 2:
                self.setTimer(FAR_AWAY_MS + row.v % 3)
            case 3:
                self.deleteTimer(FAR_AWAY_MS + row.v % 3)
            case 4:
                for when in self.timers():
                    self.deleteTimer(when)
            case 5 if row.v % 12 == 11:
                self.forget()

    def onTimer(self, fired: datetime) -> Iterator[Row]:
        self.fired += 1
        if self.fired % 4 == 0:
            for when in self.timers()[:1]:  # perhaps one that is due as well
                self.deleteTimer(when)
        yield self.key[0] if isinstance(self.key[0], str) else None, None, self.fired, -1


class BatchTotals(braided.Operator):
    rows: int = 0
    total: int = 0

    def onBatch(self, rows: pa.Table) -> Iterator[Any]:
        self.rows += rows.num_rows
        self.total += sum(rows["v"].to_pylist())
        yield rows.slice(rows.num_rows - 1)
        yield rows["k"][0].as_py(), rows["c"][0].as_py(), self.total, rows["seq"][0].as_py()


# -- the same in plain Python -----------------------------------------------------------------


class Tagged(NamedTuple):
    tag: tuple[int, ...]
    row: Row


Fields = dict[str, Any]


def totals(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    s["count"], s["total"] = s.get("count", 0) + 1, s.get("total", 0) + v
    return [(k, s["count"], s["total"], seq)]


def threshold(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    if s.get("stored") is not None and abs(v - s["stored"]) <= 5:
        return []
    s["stored"] = v
    return [(k, c, v, seq)]


def last_three(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    s["recent"] = [*s.get("recent", []), v][-3:]
    return [(k, c, sum(s["recent"]), seq)]


def per_category(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    counts = s.setdefault("counts", {})
    counts[str(c)] = counts.get(str(c), 0) + 1
    return [(k, len(counts), counts[str(c)], seq)]


def first_seen(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    if v == 7:
        s.clear()
        return []
    if v in s.get("seen", ()):
        return []
    s.setdefault("seen", set()).add(v)
    return [(k, c, v, seq)]


def burst(s: Fields, k: Any, c: Any, v: int, seq: int) -> list[Row]:
    first = s.get("given", 0)
    if v % 4:
        s["given"] = first + v % 4
    return [(k, c, first + i + 1, seq) for i in range(v % 4)]


class Member(NamedTuple):
    operator: type[braided.Operator]
    model: Callable[[Fields, Any, Any, int, int], list[Row]] | str
    """What a row does to a key's fields; or the name of the way the Oracle takes."""


FAMILY = {
    "Totals": Member(Totals, totals),
    "Threshold": Member(Threshold, threshold),
    "LastThree": Member(LastThree, last_three),
    "PerCategory": Member(PerCategory, per_category),
    "FirstSeen": Member(FirstSeen, first_seen),
    "Burst": Member(Burst, burst),
    "Alarms": Member(Alarms, "alarms"),
    "BatchTotals": Member(BatchTotals, "batches"),
}


class Oracle:
    """One operator, run in one loop over a dictionary of keys."""

    def __init__(
        self, member: Member, key: Callable[[Row], tuple[Any, ...]], tag_width: int
    ) -> None:
        self._model = member.model
        self._key = key
        self._zeros = (0,) * (tag_width - 2)
        self.fields: dict[tuple[Any, ...], Fields] = {}
        self.timers: dict[tuple[Any, ...], set[int]] = {}

    def batch(self, number: int, time_ms: int, rows: Iterable[Tagged]) -> list[Tagged]:
        """The output of one batch, in the order of its tags."""
        ordered = sorted(rows, key=lambda tagged: tagged.tag)
        if self._model == "alarms":
            out = self._alarms(number, time_ms, ordered)
        elif self._model == "batches":
            out = self._batches(ordered)
        else:
            out = self._rows(ordered)
        return sorted(out, key=lambda tagged: tagged.tag)

    def state(self) -> dict[tuple[Any, ...], Fields]:
        return {key: fields for key, fields in self.fields.items() if fields}

    def _rows(self, rows: list[Tagged]) -> Iterator[Tagged]:
        assert callable(self._model)
        for tag, row in rows:
            fields = self.fields.setdefault(self._key(row), {})
            for n, given in enumerate(self._model(fields, *row)):
                yield Tagged((*tag, n), given)

    def _batches(self, rows: list[Tagged]) -> Iterator[Tagged]:
        by_key: dict[tuple[Any, ...], list[Tagged]] = {}
        for tagged in rows:
            by_key.setdefault(self._key(tagged.row), []).append(tagged)
        for key, group in by_key.items():
            fields = self.fields.setdefault(key, {"rows": 0, "total": 0})
            fields["rows"] += len(group)
            fields["total"] += sum(row[2] for _, row in group)
            tag, (k, c, _, seq) = group[0]
            yield Tagged((*tag, 0), group[-1].row)
            yield Tagged((*tag, 1), (k, c, fields["total"], seq))

    def _alarms(self, number: int, now_ms: int, rows: list[Tagged]) -> Iterator[Tagged]:
        for _, row in rows:
            key, v = self._key(row), row[2]
            timers = self.timers.setdefault(key, set())
            pause = pause_of(key)
            match v % 6:
                case 0:
                    timers.add(LONG_AGO_MS + v * 10_000 + pause)
                case 1:
                    timers.add(now_ms + 1 + pause)
                case 2:
                    timers.add(FAR_AWAY_MS + v % 3)
                case 3:
                    timers.discard(FAR_AWAY_MS + v % 3)
                case 4:
                    timers.clear()
                case 5 if v % 12 == 11:
                    timers.clear()
                    self.fields.pop(key, None)
        for key, timers in self.timers.items():
            for ms in sorted(timers):
                if ms > now_ms or ms not in timers:
                    continue
                timers.discard(ms)
                fields = self.fields.setdefault(key, {"fired": 0})
                fields["fired"] += 1
                if fields["fired"] % 4 == 0:
                    for when in sorted(timers)[:1]:
                        timers.discard(when)
                name = key[0] if isinstance(key[0], str) else None
                tag = (number, TIMERS_LAST + ms, *self._zeros, 0)
                yield Tagged(tag, (name, None, fields["fired"], -1))

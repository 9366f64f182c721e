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

import numpy as np
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


class ColumnTotals(braided.ColumnOperator):
    """A row for each row, with the running figures of its key."""

    count: pa.int64() = 0
    total: pa.int64() = 0

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        before, v = state["total"].to_numpy(), rows["v"].to_numpy()
        rank = np.arange(len(index)) - np.searchsorted(index, index)
        sums = np.cumsum(v)
        total = before[index] + sums - (sums - v)[np.searchsorted(index, index)]
        count = state["count"].to_numpy()[index] + rank + 1
        last = np.r_[index[1:] != index[:-1], True]
        out = {"k": rows["k"], "c": count, "v": total, "seq": rows["seq"]}
        return {"count": count[last], "total": total[last]}, out


class ColumnThreshold(braided.ColumnOperator):
    """Some of the rows, by what the row before has left."""

    stored: pa.int64() = None

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        stored = np.array(state["stored"].cast(pa.float64()).to_numpy())
        v = rows["v"].to_numpy()
        passed = np.zeros(len(index), bool)
        for turn in braided.turns(index):
            old = stored[index[turn]]
            passed[turn] = np.isnan(old) | (np.abs(v[turn] - old) > 5)
            stored[index[turn]] = np.where(passed[turn], v[turn], old)
        new = pa.array(stored, from_pandas=True)
        return {"stored": new}, rows.filter(pa.array(passed)), passed


class ColumnBurst(braided.ColumnOperator):
    """Several rows for a row."""

    given: pa.int64() = 0

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        many = rows["v"].to_numpy() % 4
        origin = np.repeat(np.arange(len(index)), many)
        keys = index[origin]
        number = np.arange(len(keys)) - np.searchsorted(keys, keys) + 1
        given = state["given"].to_numpy()
        rows_out = rows.take(pa.array(origin))
        out = rows_out.set_column(2, "v", pa.array(given[keys] + number))
        new = given + np.bincount(index, many).astype(int)
        return {"given": new}, out, origin


class ColumnAlarms(braided.ColumnOperator):
    """What the last row of a key in a batch says becomes of its time, or of the key."""

    seen: pa.int64() = 0
    fired: pa.int64() = 0

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        last = np.r_[index[1:] != index[:-1], True]
        v = rows["v"].to_numpy()[last]
        now_ms = int(self.batchTime.astype("datetime64[ms]").astype(int))
        keys = zip(*(column.to_pylist() for column in self.keys.columns), strict=True)
        due = [
            _due_ms(key, each, now_ms, before)
            for key, each, before in zip(
                keys, v.tolist(), state["due"].cast("int64").to_pylist(), strict=True
            )
        ]
        return {
            "seen": state["seen"].to_numpy() + np.bincount(index),
            "due": pa.array(due, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "remove": v % 12 == 11,
        }

    def onDue(self, state: pa.Table, due: pa.ChunkedArray) -> Any:
        fired = state["fired"].to_numpy() + 1
        first = self.keys.column(0)
        names = first if pa.types.is_string(first.type) else pa.nulls(len(first), pa.string())
        nothing = pa.nulls(len(first), pa.int32())
        out = {"k": names, "c": nothing, "v": fired, "seq": np.full(len(first), -1)}
        return {"fired": fired}, out


def _due_ms(key: tuple[Any, ...], v: int, now_ms: int, before_us: int | None) -> int | None:
    """In microseconds, as columns of times are."""
    pause = pause_of(key)
    match v % 5:
        case 0:
            return 1000 * (LONG_AGO_MS + v * 10_000 + pause)
        case 1:
            return 1000 * (now_ms + 1 + pause)
        case 2:
            return 1000 * (FAR_AWAY_MS + v % 3)
        case 3:
            return None
    return before_us


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
    operator: type[braided.Operator] | type[braided.ColumnOperator]
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
    "ColumnTotals": Member(ColumnTotals, totals),
    "ColumnThreshold": Member(ColumnThreshold, threshold),
    "ColumnBurst": Member(ColumnBurst, burst),
    "ColumnAlarms": Member(ColumnAlarms, "due"),
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
        elif self._model == "due":
            out = self._due(number, time_ms, ordered)
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

    def _due(self, number: int, now_ms: int, rows: list[Tagged]) -> Iterator[Tagged]:
        by_key: dict[tuple[Any, ...], list[int]] = {}
        for _, row in rows:
            by_key.setdefault(self._key(row), []).append(row[2])
        for key, values in by_key.items():
            fields = self.fields.setdefault(key, {"seen": 0, "fired": 0})
            fields["seen"] += len(values)
            before = next(iter(self.timers.get(key, ())), None)
            us = _due_ms(key, values[-1], now_ms, None if before is None else before * 1000)
            self.timers[key] = set() if us is None else {us // 1000}
            if values[-1] % 12 == 11:
                del self.fields[key], self.timers[key]
        for key, timers in self.timers.items():
            for ms in [ms for ms in timers if ms <= now_ms]:
                timers.discard(ms)
                self.fields[key]["fired"] += 1
                name = key[0] if isinstance(key[0], str) else None
                tag = (number, TIMERS_LAST + ms, *self._zeros, 0)
                yield Tagged(tag, (name, None, self.fields[key]["fired"], -1))

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

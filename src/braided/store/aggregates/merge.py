"""How partial results of aggregates come together: the state of a key and what a batch adds.

A batch arrives already aggregated, one row per key. Each rule takes the columns that the state has
and those of the batch, for many keys at once, and gives the columns of the state after the batch.
A key without state has columns in which nothing is valid and all numbers are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.store.aggregates.columns import Column, RecordColumn, choose, field_of

__all__ = ["ColumnGroup", "Merger", "SumOverflow"]

Columns = list[Column]
Mask = npt.NDArray[np.bool_]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class ColumnGroup(msgspec.Struct, frozen=True):
    """Some neighbouring columns of the state, and the rule that merges them."""

    rule: str
    columns: int
    name: str
    """The aggregate that they belong to, as the user wrote it."""


class SumOverflow(ArithmeticError):
    """A sum left its type; `row` is the position of its key among those merged."""

    def __init__(self, name: str, kind: pa.DataType, row: int) -> None:
        super().__init__(f"{name} does not fit into {kind} any more")
        self.row = row


class Merger:
    """Merges the columns of all parts."""

    def __init__(self, parts: Sequence[ColumnGroup], kinds: Sequence[pa.DataType]) -> None:
        names = [part.name for part in parts for _ in range(part.columns)]
        self.fields = [field_of(kind, name) for kind, name in zip(kinds, names, strict=True)]
        self._steps: list[tuple[ColumnGroup, slice]] = []
        start = 0
        for part in parts:
            self._steps.append((part, slice(start, start + part.columns)))
            start += part.columns

    @property
    def is_random(self) -> bool:
        """Whether chance decides on some of what is merged, so that a second time it differs."""
        return any(part.rule in _TRAITS for part, _ in self._steps)

    def traits(self, columns: Columns) -> Columns:
        """The state as two attempts to merge the same are compared: of what chance decides on, what
        it can't change; all else as it is.
        """
        told = list(columns)
        for part, where in self._steps:
            if part.rule in _TRAITS:
                told[where] = [_one_by_one(_TRAITS[part.rule], each) for each in columns[where]]
        return told

    def merge(self, old: Columns, new: Columns) -> Columns:
        """The state after the batch."""
        merged: Columns = []
        for part, columns in self._steps:
            merged += _RULES[part.rule](self.fields[columns], old[columns], new[columns], part.name)
        return merged


Rule = Callable[[Sequence[RecordColumn], Columns, Columns, str], Columns]


# --- sums and counts --------------------------------------------------------------------------


def _add(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """Doubles, and integers that wrap around."""
    (a,), (b,) = old, new
    with np.errstate(over="ignore", invalid="ignore"):
        return [_sum_of(a, b, a.values + b.values)]


def _add_checked(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    (a,), (b,) = old, new
    total = a.values + b.values
    _refuse(a.valid & b.valid & (((a.values ^ total) & (b.values ^ total)) < 0), fields[0], name)
    return [_sum_of(a, b, total)]


def _add_decimals_checked(
    fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str
) -> Columns:
    (a,), (b,) = old, new
    total, over = _decimal_sum(a.values, b.values, fields[0].kind.precision)
    _refuse(a.valid & b.valid & over, fields[0], name)
    return [_sum_of(a, b, total)]


def _add_decimals(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """A sum that overflowed is null and stays it: there is a count beside it that tells."""
    (a, a_count), (b, b_count) = old, new
    total, over = _decimal_sum(a.values, b.values, fields[0].kind.precision)
    lost = (a.valid & b.valid & over) | (~a.valid & (a_count.values > 0))
    lost |= ~b.valid & (b_count.values > 0)
    summed = _sum_of(a, b, total)
    counted = Column(a_count.values + b_count.values, b_count.valid)
    return [Column(summed.values, summed.valid & ~lost), counted]


def _sum_of(a: Column, b: Column, total: Any) -> Column:
    both = a.valid & b.valid
    if both.all():
        return Column(total, both)
    return Column(np.where(both, total, np.where(b.valid, b.values, a.values)), a.valid | b.valid)


def _decimal_sum(a: Any, b: Any, precision: int) -> tuple[Any, Mask]:
    """128-bit sums, and where they have more digits than the precision allows."""
    total = np.empty(len(a), a.dtype)
    low = a["low"] + b["low"]
    high = a["high"] + b["high"] + (low < a["low"])
    total["low"], total["high"] = low, high
    wrapped = ((a["high"] ^ high) & (b["high"] ^ high)) < 0
    limit = 10**precision
    over = wrapped | ~_below(total, limit) | _below(total, 1 - limit)
    return total, over


def _below(words: Any, bound: int) -> Mask:
    high, low = divmod(bound, 1 << 64)
    same = words["high"] == high
    return np.asarray((words["high"] < high) | (same & (words["low"] < np.uint64(low))))


def _refuse(over: Mask, field: RecordColumn, name: str) -> None:
    if over.any():
        raise SumOverflow(name, field.kind, int(over.argmax()))


# --- one of two -------------------------------------------------------------------------------


def _max(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    (a,), (b,) = old, new
    return [choose(b.valid & (~a.valid | fields[0].above(b, a)), b, a)]


def _min(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    (a,), (b,) = old, new
    return [choose(b.valid & (~a.valid | fields[0].above(a, b)), b, a)]


def _max_by(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """(value, what it is ordered by); of equals the last one counts, as in Spark."""
    a, b = old[1], new[1]
    return _pairs(b.valid & (~a.valid | ~fields[1].above(a, b)), old, new)


def _min_by(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    a, b = old[1], new[1]
    return _pairs(b.valid & (~a.valid | ~fields[1].above(b, a)), old, new)


def _first(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """(value, whether there was a row): the value itself may be null."""
    return _pairs(_set(new[1]) & ~_set(old[1]), old, new)


def _last(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    return _pairs(_set(new[1]), old, new)


def _set(flag: Column) -> Mask:
    return np.asarray(flag.valid & (flag.values != 0))


def _pairs(take: Mask, old: Columns, new: Columns) -> Columns:
    return [choose(take, b, a) for a, b in zip(old, new, strict=True)]


# --- moments ----------------------------------------------------------------------------------


def _moments(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """(count, mean, sum of squared distances from it), by Chan's formula, as Spark merges them."""
    (n1, mean1, m1), (n2, mean2, m2) = ([c.values for c in columns] for columns in (old, new))
    n = n1 + n2
    with np.errstate(invalid="ignore", over="ignore"):
        delta = mean2 - mean1
        step = delta / np.where(n == 0, 1.0, n)
        mean = np.where(n1 == 0, mean2, mean1 + step * n2)
        squares = np.where(n1 == 0, m2, m1 + m2 + delta * step * n1 * n2)
        # What a batch without values adds is nothing, though its mean is no number.
        mean = np.where(n2 == 0, mean1, mean)
        squares = np.where(n2 == 0, m1, squares)
    there = new[0].valid
    return [Column(n, there), Column(mean, there), Column(squares, there)]


# --- collections ------------------------------------------------------------------------------


def _list(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    """msgpack arrays, one behind the other: no item is looked at."""
    return [_each(_joined, old[0], new[0])]


def _joined(a: bytes, b: bytes) -> bytes:
    (many, first), (more, second) = _array_of(a), _array_of(b)
    return b"\xdd" + (many + more).to_bytes(4, "big") + a[first:] + b[second:]


def _array_of(raw: bytes) -> tuple[int, int]:
    """How many items a msgpack array has, and where they start."""
    head = raw[0]
    if head == 0xDD:
        return int.from_bytes(raw[1:5], "big"), 5
    if head == 0xDC:
        return int.from_bytes(raw[1:3], "big"), 3
    return head & 0x0F, 1


def _union(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    return [_each(_united, old[0], new[0])]


def _united(a: bytes, b: bytes) -> bytes:
    items = {_encode(item): item for item in _decode(a)}
    count_before = len(items)
    for item in _decode(b):
        items.setdefault(_encode(item), item)
    return a if len(items) == count_before else _encode(list(items.values()))


# --- sketches ---------------------------------------------------------------------------------


def _hll(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    from datasketches import hll_sketch, hll_union, tgt_hll_type

    def united(a: bytes, b: bytes) -> bytes:
        first, second = hll_sketch.deserialize(a), hll_sketch.deserialize(b)
        both = hll_union(first.lg_config_k)
        both.update(first)
        both.update(second)
        return bytes(both.get_result(tgt_hll_type.HLL_8).serialize_updatable())

    return [_each(united, old[0], new[0])]


def _kll(fields: Sequence[RecordColumn], old: Columns, new: Columns, name: str) -> Columns:
    from datasketches import kll_doubles_sketch

    def united(a: bytes, b: bytes) -> bytes:
        both = kll_doubles_sketch.deserialize(a)
        both.merge(kll_doubles_sketch.deserialize(b))
        return bytes(both.serialize())

    return [_each(united, old[0], new[0])]


def _kll_traits(data: bytes) -> bytes:
    """A sketch with more values than it keeps drops some by chance, but counts them all."""
    from datasketches import kll_doubles_sketch

    sketch = kll_doubles_sketch.deserialize(data)
    if sketch.is_estimation_mode():
        return _encode((sketch.k, sketch.n, sketch.get_min_value(), sketch.get_max_value()))
    return _encode((sketch.k, sorted(value for value, _ in sketch)))


def _one_by_one(told: Callable[[bytes], bytes], column: Column) -> Column:
    values = list(column.values)
    for i in np.flatnonzero(column.valid).tolist():
        values[i] = told(values[i])
    return Column(values, column.valid)


def _each(join: Callable[[bytes, bytes], bytes], old: Column, new: Column) -> Column:
    """Joins what both have, key by key; what one has alone stays as it is."""
    values = list(new.values)
    for i in np.flatnonzero(old.valid).tolist():
        values[i] = join(old.values[i], new.values[i]) if new.valid[i] else old.values[i]
    return Column(values, old.valid | new.valid)


_RULES: dict[str, Rule] = {
    "add": _add,
    "add_checked": _add_checked,
    "add_decimals": _add_decimals,
    "add_decimals_checked": _add_decimals_checked,
    "min": _min,
    "max": _max,
    "min_by": _min_by,
    "max_by": _max_by,
    "first": _first,
    "last": _last,
    "moments": _moments,
    "list": _list,
    "union": _union,
    "hll": _hll,
    "kll": _kll,
}

_TRAITS: dict[str, Callable[[bytes], bytes]] = {"kll": _kll_traits}
"""For the rules that chance has a part in: what is the same of all values that they may come to."""

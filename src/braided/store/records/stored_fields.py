"""Stored state as Arrow columns, by what the checkpoint says of it: no Operator class is needed.

A checkpoint describes the fields of every operator (`field_types.describe`). From a description
follow an Arrow type and two functions: from what is stored to a value of that type, and back.

    int, float, bool, str, bytes        bigint, double, boolean, string, binary
    datetime, date, timedelta           timestamp, date, interval day to second
    Decimal, UUID, time                 string: exact, whatever the digits
    Enum, Literal                       its values, if all are str or all are int
    T | None                            T, nullable
    list, set, frozenset, tuple[T, ...] array<T>
    tuple[A, B]                         struct<_1: A, _2: B>
    dict                                map
    dataclass, NamedTuple, TypedDict    struct

Anything else (a union, a type inside of itself, a dict with None for a key) is JSON text.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from braided.errors import CheckpointMismatchError, CheckpointVersionError, UnsupportedError
from braided.store.durable.store import UNREADABLE
from braided.store.records.field_types import JsonType

__all__ = ["Shape", "StoredFields", "is_nullable", "shape_of"]

_decode = msgspec.msgpack.Decoder().decode


class Shape(NamedTuple):
    """A described type as an Arrow type, with the way there and the way back."""

    type: pa.DataType
    to_arrow: Callable[[Any], Any]
    """From what msgpack gives without types to what `pa.array` takes. Both know None."""
    from_arrow: Callable[[Any], Any]
    """From what `to_pylist` gives to what `msgspec.convert` takes."""


def shape_of(kind: JsonType) -> Shape:
    """The shape of a described type."""
    shape = _shape_of(kind)
    return Shape(shape.type, _optional(shape.to_arrow), _optional(shape.from_arrow))


def is_nullable(kind: JsonType) -> bool:
    """Whether None is a value of a described type."""
    return kind == "None" or (isinstance(kind, list) and kind[0] == "union" and "None" in kind)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _to_instant(value: Any) -> dt.datetime:
    # Without a zone it is local time, as everywhere in Spark's Python.
    when = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return when.astimezone(dt.UTC)


def _to_local(value: dt.datetime) -> dt.datetime:
    return value.astimezone().replace(tzinfo=None)


def _to_timedelta(value: Any) -> dt.timedelta:
    return msgspec.convert(value, dt.timedelta)


_SCALARS: dict[str, Shape] = {
    "None": Shape(pa.string(), _same, _same),
    "bool": Shape(pa.bool_(), _same, _same),
    "int": Shape(pa.int64(), _same, _same),
    "float": Shape(pa.float64(), float, float),
    "str": Shape(pa.string(), _same, _same),
    "bytes": Shape(pa.binary(), _same, bytes),
    "bytearray": Shape(pa.binary(), _same, bytearray),
    "datetime": Shape(pa.timestamp("us", "UTC"), _to_instant, _to_local),
    "date": Shape(pa.date32(), dt.date.fromisoformat, _same),
    "time": Shape(pa.string(), _same, _same),
    "timedelta": Shape(pa.duration("us"), _to_timedelta, _same),
    "Decimal": Shape(pa.string(), _same, str),
    "UUID": Shape(pa.string(), _same, _same),
}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "set": list,
    "frozenset": frozenset,
    "vartuple": tuple,
}


def _shape_of(kind: JsonType) -> Shape:
    if isinstance(kind, str):
        return _SCALARS[kind]
    name, *parts = kind
    if name in ("enum", "literal"):
        values = [value for _, value in parts[1]] if name == "enum" else parts
        kinds = {type(value) for value in values}
        return _SCALARS[kinds.pop().__name__] if kinds in ({str}, {int}) else _JSON
    if name == "union":
        rest = [part for part in parts if part != "None"]
        return shape_of(rest[0]) if len(rest) == 1 else _JSON
    if name in _COLLECTIONS:
        return _collection(shape_of(parts[0]), _COLLECTIONS[name])
    if name == "tuple":
        return _by_position([(f"_{i}", part) for i, part in enumerate(parts, 1)])
    if name == "dict":
        return _JSON if is_nullable(parts[0]) else _map(shape_of(parts[0]), shape_of(parts[1]))
    if name == "ref":
        return _JSON
    layout = parts[2] if len(parts) > 2 else {"array_like": False, "tag": None}
    if layout["tag"] is not None:
        return _JSON
    if name == "namedtuple" or layout["array_like"]:
        return _by_position(parts[1])
    return _by_name(parts[1])


def _collection(item: Shape, collect: Callable[[Any], Any]) -> Shape:
    return Shape(
        pa.list_(item.type),
        lambda value: [item.to_arrow(each) for each in value],
        lambda value: collect(item.from_arrow(each) for each in value),
    )


def _map(key: Shape, value: Shape) -> Shape:
    return Shape(
        pa.map_(key.type, value.type),
        lambda stored: [(key.to_arrow(k), value.to_arrow(v)) for k, v in stored.items()],
        lambda items: {key.from_arrow(k): value.from_arrow(v) for k, v in items},
    )


def _by_position(fields: Sequence[tuple[str, JsonType]]) -> Shape:
    """A struct of what is stored as an array. One that was stored with fewer has nulls."""
    if not fields:
        return _JSON
    names = [name for name, _ in fields]
    shapes = [shape_of(kind) for _, kind in fields]

    def to_arrow(stored: Sequence[Any]) -> dict[str, Any]:
        values = [*stored, *[None] * (len(names) - len(stored))]
        return {
            name: shape.to_arrow(value)
            for name, shape, value in zip(names, shapes, values, strict=True)
        }

    def from_arrow(values: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            shape.from_arrow(values[name]) for name, shape in zip(names, shapes, strict=True)
        )

    return Shape(_struct(names, shapes), to_arrow, from_arrow)


def _by_name(fields: Sequence[tuple[str, JsonType]]) -> Shape:
    """A struct of what is stored as a map by name."""
    if not fields:
        return _JSON
    names = [name for name, _ in fields]
    shapes = [shape_of(kind) for _, kind in fields]
    nullable = [is_nullable(kind) for _, kind in fields]

    def to_arrow(stored: dict[str, Any]) -> dict[str, Any]:
        return {
            name: shape.to_arrow(stored.get(name))
            for name, shape in zip(names, shapes, strict=True)
        }

    def from_arrow(values: dict[str, Any]) -> dict[str, Any]:
        # What can't be None was not there: its default is taken.
        return {
            name: shape.from_arrow(values[name])
            for name, shape, may_be_none in zip(names, shapes, nullable, strict=True)
            if may_be_none or values[name] is not None
        }

    return Shape(_struct(names, shapes), to_arrow, from_arrow)


def _struct(names: Sequence[str], shapes: Sequence[Shape]) -> pa.DataType:
    return pa.struct([(name, shape.type) for name, shape in zip(names, shapes, strict=True)])


def _plain(value: Any) -> Any:
    """A value that JSON knows."""
    if isinstance(value, dict):
        if all(isinstance(key, str | int) for key in value):
            return {str(key): _plain(part) for key, part in value.items()}
        return [[_plain(key), _plain(part)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, dt.datetime) else value


_JSON = Shape(pa.string(), lambda value: json.dumps(_plain(value)), json.loads)


# --- the fields of an operator ----------------------------------------------------------------


class StoredFields:
    """The fields of an operator as one Arrow column, from records of any version.

    A record that was written before a field was added has null there: its default is known to the
    class alone, which reads the record when its key comes up.
    """

    def __init__(self, operator: str, history: Sequence[str]) -> None:
        self._operator = operator
        versions = [json.loads(version)["fields"] for version in history]
        now = versions[-1]
        self.names: list[str] = [field["name"] for field in now]
        self._shapes = [shape_of(field["type"]) for field in now]
        self._positions: list[list[int | None]] = []
        for fields in versions:
            positions = {_identity(field): position for position, field in enumerate(fields)}
            self._positions.append([positions.get(_identity(field)) for field in now])
        # Parquet has no struct without fields.
        self.type: pa.DataType = _struct(self.names, self._shapes) if now else pa.string()

    def read(self, raw: bytes) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """The values of a record, ready for Arrow, and its timers (ms)."""
        if not 1 <= raw[0] <= len(self._positions):
            raise CheckpointVersionError(
                f"a state record of operator {self._operator!r} has version {raw[0]}, the "
                f"checkpoint knows {len(self._positions)}; use the Braided that wrote it, or a "
                "newer"
            )
        try:
            *stored, timers = _decode(raw[1:])
        except (*UNREADABLE, TypeError, ValueError) as error:
            raise CheckpointMismatchError(
                f"a state record of operator {self._operator!r} can't be read: {error}"
            ) from None
        values = []
        for index, position in enumerate(self._positions[raw[0] - 1]):
            value = None if position is None else stored[position]
            try:
                values.append(self._shapes[index].to_arrow(value))
            except Exception as error:
                raise self._unfit(index, error) from error
        return tuple(values), tuple(timers)

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        """What `read` gave for many keys as one column; None is null."""
        if not self.names:
            return pa.array([None if row is None else "{}" for row in rows], self.type)
        columns = []
        for index, shape in enumerate(self._shapes):
            values = [None if row is None else row[index] for row in rows]
            try:
                columns.append(pa.array(values, shape.type))
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise self._unfit(index, error) from error
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=missing)

    def _unfit(self, index: int, error: Exception) -> UnsupportedError:
        shape = self._shapes[index]
        return UnsupportedError(
            f"operator {self._operator!r}: a stored value of field {self.names[index]!r} can't be "
            f"shown as {shape.type}: {error}"
        )


def _identity(field: dict[str, Any]) -> Any:
    """What tells a field from the others in all versions: its number, where it has one."""
    return field.get("id", field["name"])

"""The state that an Operator starts with: rows of a DataFrame as records of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    StructType,
    TimestampType,
)

from braided.errors import DefinitionError, StateValueError
from braided.kinds.class_first_state import FirstRecord, FirstStateWriter
from braided.operator.definition import Operator, state_codec
from braided.spark.arrow_types import to_arrow_schema
from braided.store.records.stored_fields import is_nullable, shape_of
from braided.store.slots.key_codec import KeyCodec

__all__ = ["FieldsWriter", "check_initial"]

_TIMERS = "timers"


def check_initial(initial: DataFrame, operator: type[Operator], key: StructType) -> None:
    """Raises DefinitionError unless the DataFrame has the grouping columns and fields only."""
    if not isinstance(initial, DataFrame) or initial.isStreaming:
        raise DefinitionError("initialState is a DataFrame that is not streaming")
    name = operator.__name__
    given = {field.name: field.dataType for field in initial.schema.fields}
    if len(given) < len(initial.columns):
        raise DefinitionError(f"initialState has two columns of one name: {initial.columns}")
    fields = _kinds(operator)
    both = [column for column in key.names if column in fields]
    if both:
        raise DefinitionError(
            f"initialState: {both[0]!r} is a grouping column and a field of {name}; group by "
            f"another name, for example groupBy(F.col({both[0]!r}).alias('k'))"
        )
    for column in key.fields:
        _check_type(column.name, "grouping column", column.dataType, given.pop(column.name, None))
    timers = given.pop(_TIMERS, None) if _TIMERS not in fields else None
    if timers is not None:
        _check_type(_TIMERS, "pending timers", ArrayType(TimestampType()), timers)
    for field, kind in given.items():
        if field not in fields:
            known = ", ".join([*key.names, *fields])
            raise DefinitionError(
                f"initialState has column {field!r}, which is no field of {name}; it takes {known}"
            )
        wanted = from_arrow_type(shape_of(fields[field]).type)
        if not _fits(fields[field], wanted, kind):
            _check_type(field, f"field of {name}", wanted, kind)


def _kinds(operator: type[Operator]) -> dict[str, Any]:
    """The described types of the fields."""
    described = json.loads(state_codec(operator).describe())["fields"]
    return {field["name"]: field["type"] for field in described}


def _check_type(name: str, what: str, wanted: DataType, given: DataType | None) -> None:
    if given is None:
        raise DefinitionError(f"initialState has no column {name!r}, a {what}")
    if given.simpleString() != wanted.simpleString():
        raise DefinitionError(
            f"initialState: column {name!r}, a {what}, is {given.simpleString()} and must be "
            f"{wanted.simpleString()}: cast it"
        )


def _fits(described: Any, wanted: DataType, given: DataType) -> bool:
    """Numbers need not be of the widest type; what is null in all rows has none."""
    kinds = described[1:] if isinstance(described, list) else [described]
    if given.typeName() == "void" or ("Decimal" in kinds and isinstance(given, DecimalType)):
        return True
    for family in (IntegralType, FractionalType):
        if isinstance(wanted, family):
            return isinstance(given, family) and not isinstance(given, DecimalType)
    return given.simpleString() == wanted.simpleString()


@dataclass(frozen=True)
class FieldsWriter(FirstStateWriter):
    """Writes rows as records of an Operator's fields."""

    def records(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[FirstRecord]:
        make = _RecordMaker(self)
        for chunk in chunks:
            yield from make.records(chunk)


class _RecordMaker:
    """Rows of an initial state as records of an operator's state."""

    def __init__(self, spec: FieldsWriter) -> None:
        self._spec = spec
        self._keys = KeyCodec(to_arrow_schema(spec.key))
        self._codec = state_codec(spec.operator)
        self._op: Any = spec.operator()
        kinds = _kinds(spec.operator)
        types = {field.name: field.type for field in self._codec.fields}
        self._fields = [
            (name, position, kinds[name], shape_of(kinds[name]), types[name])
            for position, name in enumerate(spec.columns, 1 + len(spec.key.names))
            if name in kinds
        ]
        self._timers = None
        if _TIMERS in spec.columns and _TIMERS not in kinds:
            self._timers = 1 + len(spec.key.names) + spec.columns.index(_TIMERS)

    def records(self, chunk: pa.RecordBatch) -> Iterator[FirstRecord]:
        width = len(self._spec.key.names)
        keys = self._keys.encode_batch(chunk.columns[1 : 1 + width])
        slots = chunk.column(0).to_pylist()
        columns = [chunk.column(position).to_pylist() for _, position, *_ in self._fields]
        timers: list[tuple[int, ...]] = [()] * len(keys)
        if self._timers is not None:
            us = chunk.column(self._timers).cast(pa.list_(pa.int64())).to_pylist()
            # Rounded up, as a timer's time is everywhere: it never fires before.
            timers = [tuple(sorted({-(-each // 1000) for each in some or ()})) for some in us]
        for row, key in enumerate(keys):
            self._codec.load(self._op, None)
            for (name, _, kind, shape, wanted), values in zip(self._fields, columns, strict=True):
                value = values[row]
                if value is None and not is_nullable(kind):
                    continue  # the default
                try:
                    converted = msgspec.convert(shape.from_arrow(value), wanted)
                except (msgspec.ValidationError, TypeError, ValueError) as error:
                    raise StateValueError(
                        f"initialState of operator {self._spec.name!r}: {value!r} does not fit "
                        f"field {name!r} of key {self._spec.shown(key)}: {error}"
                    ) from None
                setattr(self._op, name, converted)
            record = self._codec.dump(self._op, timers[row])
            if record != self._codec.fresh:  # a key that is as new has no state
                yield slots[row], key, record, timers[row]

"""Columns of Iceberg as Spark calls them, and the other way round.

Iceberg has no integers of one or two bytes: they are written as those of four, as Spark's own
connector does. It has types that Spark has not (a time of day, UUIDs); columns of these can stay
null, and take nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

__all__ = ["columns_of", "iceberg_schema", "iceberg_type", "widened"]

_NAMES: dict[type[DataType], str] = {
    BinaryType: "binary",
    BooleanType: "boolean",
    DateType: "date",
    DoubleType: "double",
    FloatType: "float",
    IntegerType: "int",
    LongType: "long",
    StringType: "string",
    TimestampNTZType: "timestamp",
    TimestampType: "timestamptz",
}
"""Iceberg's names of the types that are plain on both sides."""

_KINDS = {name: kind for kind, name in _NAMES.items()}


def widened(schema: StructType) -> StructType:
    """The columns in types that Iceberg has."""
    return StructType([StructField(f.name, _wide(f.dataType), f.nullable) for f in schema.fields])


def _wide(kind: DataType) -> DataType:
    match kind:
        case ByteType() | ShortType():
            return IntegerType()
        case StructType():
            return widened(kind)
        case ArrayType():
            return ArrayType(_wide(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_wide(kind.keyType), _wide(kind.valueType), kind.valueContainsNull)
    return kind


def columns_of(schema: Schema) -> StructType:
    """A table's columns as Spark calls them."""
    return _struct(schema.fields)


def _struct(fields: Iterable[NestedField]) -> StructType:
    return StructType([StructField(f.name, _spark(f.field_type), not f.required) for f in fields])


def _spark(kind: IcebergType) -> DataType:
    from pyiceberg import types as iceberg

    match kind:
        case iceberg.StructType():
            return _struct(kind.fields)
        case iceberg.ListType():
            return ArrayType(_spark(kind.element_type), not kind.element_required)
        case iceberg.MapType():
            value = _spark(kind.value_type)
            return MapType(_spark(kind.key_type), value, not kind.value_required)
        case iceberg.DecimalType():
            return DecimalType(kind.precision, kind.scale)
    return _KINDS.get(str(kind), NullType)()


def iceberg_schema(columns: StructType) -> Schema:
    """A schema for a table that has these columns; a catalog gives them numbers of its own."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    numbers = count(1)
    tops = [next(numbers) for _ in columns.fields]
    return Schema(
        *[
            NestedField(number, f.name, _iceberg(f.dataType, numbers), required=not f.nullable)
            for number, f in zip(tops, columns.fields, strict=True)
        ]
    )


def iceberg_type(kind: DataType) -> IcebergType:
    """The type of a column that is added to a table."""
    return _iceberg(kind, count(1))


def _iceberg(kind: DataType, numbers: Iterator[int]) -> IcebergType:
    from pyiceberg import types as iceberg

    match kind:
        case StructType():
            fields = []
            for field in kind.fields:
                number, inner = next(numbers), _iceberg(field.dataType, numbers)
                fields.append(
                    iceberg.NestedField(number, field.name, inner, required=not field.nullable)
                )
            return iceberg.StructType(*fields)
        case ArrayType():
            number, inner = next(numbers), _iceberg(kind.elementType, numbers)
            return iceberg.ListType(number, inner, element_required=not kind.containsNull)
        case MapType():
            number, key = next(numbers), _iceberg(kind.keyType, numbers)
            other, value = next(numbers), _iceberg(kind.valueType, numbers)
            required = not kind.valueContainsNull
            return iceberg.MapType(number, key, other, value, value_required=required)
        case DecimalType():
            return iceberg.DecimalType(kind.precision, kind.scale)
    return _primitives()[_NAMES[type(kind)]]


def _primitives() -> dict[str, IcebergType]:
    from pyiceberg import types as iceberg

    every = (
        iceberg.BinaryType(),
        iceberg.BooleanType(),
        iceberg.DateType(),
        iceberg.DoubleType(),
        iceberg.FloatType(),
        iceberg.IntegerType(),
        iceberg.LongType(),
        iceberg.StringType(),
        iceberg.TimestampType(),
        iceberg.TimestamptzType(),
    )
    return {str(kind): kind for kind in every}

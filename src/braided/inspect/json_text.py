"""Columns of state as JSON text.

Spark writes the keys of a map as the names of an object, by whatever text they have in the JVM: of
a struct, as the keys of a processor's map state are, that is the addresses of its bytes. So a map
whose keys are no text or numbers becomes an array of its entries first.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

__all__ = ["json_text"]

_OPTIONS = {"ignoreNullFields": "false"}
_NAMES = (StringType, IntegralType, BooleanType)
"""Types whose values are names of an object as they are."""


def json_text(column: Column, type: DataType) -> Column:
    """A struct, an array or a map as text."""
    return F.to_json(_sayable(column, type), _OPTIONS)


def _sayable(column: Column, type: DataType) -> Column:
    """The column, with other maps than those by names as arrays of entries."""
    if _is_sayable(type):
        return column
    if isinstance(type, StructType):
        fields = [_sayable(column[f.name], f.dataType).alias(f.name) for f in type.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(type, ArrayType):
        inner = type.elementType
        return F.transform(column, lambda each: _sayable(each, inner))
    assert isinstance(type, MapType)
    key, value = type.keyType, type.valueType
    if isinstance(key, _NAMES):
        return F.transform_values(column, lambda _, each: _sayable(each, value))
    return F.transform(
        F.map_entries(column),
        lambda entry: F.struct(
            _sayable(entry["key"], key).alias("key"),
            _sayable(entry["value"], value).alias("value"),
        ),
    )


def _is_sayable(type: DataType) -> bool:
    if isinstance(type, StructType):
        return all(_is_sayable(field.dataType) for field in type.fields)
    if isinstance(type, ArrayType):
        return _is_sayable(type.elementType)
    if isinstance(type, MapType):
        return isinstance(type.keyType, _NAMES) and _is_sayable(type.valueType)
    return True

"""Spark's types read from their short text (`struct<k:string,n:bigint>`), without a Spark session.

That text is what a checkpoint keeps of key columns and aggregates, and who reads a checkpoint may
be a worker process, where there is no JVM to ask. Names are as they are in it: not quoted.
"""

from __future__ import annotations

import re
from itertools import combinations_with_replacement

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
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
    VarcharType,
    YearMonthIntervalType,
)

__all__ = ["parse_fields", "parse_type"]

_PLAIN: tuple[DataType, ...] = (
    *(BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType()),
    *(DoubleType(), StringType(), BinaryType(), DateType(), TimestampType(), TimestampNTZType()),
    *(NullType(), DecimalType()),
    *(DayTimeIntervalType(*fields) for fields in combinations_with_replacement(range(4), 2)),
    *(YearMonthIntervalType(*fields) for fields in combinations_with_replacement(range(2), 2)),
)
_BY_TEXT = {kind.simpleString(): kind for kind in _PLAIN}
_SIZED = re.compile(r"(decimal|char|varchar)\((\d+)(?:,(-?\d+))?\)")


def parse_type(text: str) -> DataType:
    """The type; what is not known here is left to Spark, which needs its session for it."""
    if text in _BY_TEXT:
        return _BY_TEXT[text]
    sized = _SIZED.fullmatch(text)
    if sized is not None:
        size = int(sized[2])
        if sized[1] == "decimal":
            return DecimalType(size, int(sized[3] or 0))
        return CharType(size) if sized[1] == "char" else VarcharType(size)
    outer, _, rest = text.partition("<")
    inner = rest.removesuffix(">")
    if outer == "struct":
        return StructType(parse_fields(inner))
    if outer == "array":
        return ArrayType(parse_type(inner))
    if outer == "map":
        key, value = _split(inner)
        return MapType(parse_type(key), parse_type(value))
    return DataType.fromDDL(text)


def parse_fields(text: str) -> list[StructField]:
    """The fields of a struct, from what stands between its brackets."""
    return [_field(part) for part in _split(text)]


def _field(text: str) -> StructField:
    # A type has colons only inside of <>, so the last one before that ends the name.
    head = text.partition("<")[0]
    colon = head.rfind(":")
    return StructField(text[:colon], parse_type(text[colon + 1 :]))


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text + ","):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return parts

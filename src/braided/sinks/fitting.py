"""Whether output fits a table that others may write to as well, and the sentence if it does not.

Names are compared as Spark compares them, without regard to case; types have to be the same. What
the table has and the output has not is null in the rows that are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braided.spark.sql_text import quoted

__all__ = ["PLAIN", "as_nullable", "misfit", "new_fields", "spelled_as", "unknown_type"]

PLAIN = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)
"""The types that tables of every kind have."""


def misfit(
    table: StructType,
    output: StructType,
    may_add: bool = False,
    admits: Callable[[DataType, DataType], bool] | None = None,
) -> str | None:
    """What keeps the output from the table; None if nothing does. `may_add`: whether columns that
    the table lacks will be added to it. `admits`: whether values of the second type can stand in a
    column of the first, if the writer takes others than the same.
    """
    admits = admits or _admits
    twice = [name for name, count in Counter(map(str.lower, output.names)).items() if count > 1]
    if twice:
        return f"the output has two columns called {twice[0]!r}"
    theirs = {field.name.lower(): field for field in table.fields}
    ours = {field.name.lower(): field for field in output.fields}
    for name, field in ours.items():
        column = theirs.get(name)
        if column is None and not may_add:
            return (
                f"the table has no column {field.name!r} (it has {table.simpleString()}). "
                ".option('mergeSchema', True) has it added"
            )
        if column is not None and not admits(column.dataType, field.dataType):
            return (
                f"column {field.name!r} is {_shown(column.dataType)} in the table and "
                f"{_shown(field.dataType)} in the output; cast it with select(...)"
            )
    for name, column in theirs.items():
        if name not in ours and not column.nullable:
            return f"the table's column {column.name!r} must not be null, and the output lacks it"
    return None


def new_fields(table: StructType, output: StructType) -> list[StructField]:
    """The columns of the output that the table lacks, as they are added to it."""
    known = {name.lower() for name in table.names}
    return [field for field in as_nullable(output).fields if field.name.lower() not in known]


def spelled_as(table: StructType, df: DataFrame) -> DataFrame:
    """The rows with the columns that the table has as well, in its order and spelling."""
    columns = {name.lower(): name for name in df.columns}
    return df.select(
        *[
            F.col(quoted(columns[name.lower()])).alias(name)
            for name in table.names
            if name.lower() in columns
        ]
    )


def unknown_type(schema: StructType) -> str | None:
    """The first column of a type that tables do not have, as `name type`."""
    for field in schema.fields:
        if not _is_known(field.dataType):
            return f"{field.name!r} {field.dataType.simpleString()}"
    return None


def as_nullable(schema: StructType) -> StructType:
    """The same columns, none of which refuses nulls, and without what is noted on them."""
    return StructType([StructField(f.name, _nullable(f.dataType), True) for f in schema.fields])


def _nullable(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return as_nullable(kind)
        case ArrayType():
            return ArrayType(_nullable(kind.elementType), True)
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _is_known(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_is_known(field.dataType) for field in kind.fields)
        case ArrayType():
            return _is_known(kind.elementType)
        case MapType():
            return _is_known(kind.keyType) and _is_known(kind.valueType)
        case StringType():
            return kind == StringType()  # and no other collation
    return isinstance(kind, PLAIN)


def _admits(table: DataType, output: DataType) -> bool:
    """Whether values of one type can stand in a column of the other: nulls where it has them."""
    match table, output:
        case StructType(), StructType():
            return len(table.fields) == len(output.fields) and all(
                a.name == b.name
                and (a.nullable or not b.nullable)
                and _admits(a.dataType, b.dataType)
                for a, b in zip(table.fields, output.fields, strict=True)
            )
        case ArrayType(), ArrayType():
            null_fits = table.containsNull or not output.containsNull
            return null_fits and _admits(table.elementType, output.elementType)
        case MapType(), MapType():
            null_fits = table.valueContainsNull or not output.valueContainsNull
            return (
                null_fits
                and _admits(table.keyType, output.keyType)
                and _admits(table.valueType, output.valueType)
            )
    return table == output


def _shown(kind: DataType) -> str:
    """A type as text; of a nested one also what may be null, as that may be all that differs."""
    inside = isinstance(kind, StructType | ArrayType | MapType)
    return kind.json() if inside else kind.simpleString()

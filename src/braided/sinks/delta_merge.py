"""Which rows of a Delta table have one of a batch's keys: the condition of the merge, in SQL.

Whoever merges compares every row of every file that the condition does not rule out for itself, and
it rules out none by what it says of the batch's rows. So the condition also says what follows for
the table alone, which says nothing new of any row: between which bounds the keys of the batch are,
and which values a column of partitions has. With these bounds files are left alone, because the log
has the least and the greatest value of each of their columns.

There are bounds only for types whose least and greatest values a log has exactly or, for
timestamps, to the millisecond.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braided.sinks.parquet_rows import KeySet

__all__ = ["condition"]

_VALUES_MAX = 100
"""So many values of a column of partitions are named at most; the condition is in the log, too."""
_TEXT_MAX = 200

_SQL: dict[type[DataType], str] = {
    ByteType: "TINYINT",
    ShortType: "SMALLINT",
    IntegerType: "INT",
    LongType: "BIGINT",
    DateType: "DATE",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
}
_TIMESTAMPS: dict[type[DataType], str] = {
    TimestampType: 'Timestamp(Microsecond, Some("UTC"))',
    TimestampNTZType: "Timestamp(Microsecond, None)",
}
_UNSURE = dt.timedelta(seconds=1)
"""By so much the ends of timestamps may be off: Delta Lake cuts them off to milliseconds."""


def condition(keys: KeySet, columns: StructType, partition_by: Sequence[str]) -> str:
    """Of rows `t` of a table with these columns and `s` of the batch: whether they have one key."""
    terms = [_same(name, columns[name].dataType) for name in keys.names]
    for name, least, greatest, nulls in keys.bounds():
        column, kind = f"t.`{name}`", columns[name].dataType
        values = keys.values(name, _VALUES_MAX) if name in partition_by else None
        inside = _between(column, least, greatest, kind)
        if values is not None:
            inside = _one_of(column, values, kind)
            nulls = nulls or "" in values  # as which a partition keeps an empty text
        if least is None:
            terms.append(f"({column} IS NULL)")
        elif inside is not None:
            terms.append(f"({inside} OR {column} IS NULL)" if nulls else f"({inside})")
    return " AND ".join(terms)


def _same(name: str, kind: DataType) -> str:
    """Null is the same as null, NaN as NaN whatever its bits are, and 0 as -0."""
    sides = [f"{alias}.`{name}`" for alias in "ts"]
    if isinstance(kind, FloatType | DoubleType):
        sql = _SQL[type(kind)]
        sides = [f"nanvl({side} + CAST(0 AS {sql}), CAST('NaN' AS {sql}))" for side in sides]
    return f"({' IS NOT DISTINCT FROM '.join(sides)})"


def _between(column: str, least: Any, greatest: Any, kind: DataType) -> str | None:
    if isinstance(least, dt.datetime):
        try:
            least, greatest = least - _UNSURE, greatest + _UNSURE
        except OverflowError:
            return None
    low, high = _literal(least, kind), _literal(greatest, kind)
    if low is None or high is None:
        return None
    return f"({column} >= {low} AND {column} <= {high})"


def _one_of(column: str, values: Sequence[Any], kind: DataType) -> str | None:
    told = [_literal(value, kind) for value in values]
    named = [literal for literal in told if literal is not None]
    return f"{column} IN ({', '.join(named)})" if len(named) == len(told) else None


def _literal(value: Any, kind: DataType) -> str | None:
    """A value in SQL; None where there is none to be told: of other types, and of long texts."""
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'" if len(value) <= _TEXT_MAX else None
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        zone = "" if value.tzinfo is None else "Z"
        return f"arrow_cast('{text}{zone}', '{_TIMESTAMPS[type(kind)]}')"
    if isinstance(value, bool) or not isinstance(value, int | dt.date):
        return None
    return f"CAST('{value}' AS {_SQL[type(kind)]})"

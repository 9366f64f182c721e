"""Arrow batches to Python rows: what `onRow` is given.

Rows hold exactly the values that Spark's own Rows hold. Spark looks up `row.value` by searching a
list of names; here a class is made for the schema, whose C getters make that access about ten
times as fast, while it stays a `pyspark.sql.Row` in every other way.
"""

from __future__ import annotations

import gc
from collections import namedtuple
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import (
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    Row,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
    _has_type,
)

from braided.errors import UnsupportedError

__all__ = ["RowFactory", "row_class"]


class RowFactory:
    """Makes the rows of one schema."""

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            if _has_type(field.dataType, (YearMonthIntervalType, CalendarIntervalType)):
                raise UnsupportedError(
                    f"column {field.name!r} of type {field.dataType.simpleString()} has no Python "
                    "value in Spark; drop or cast it before the operator"
                )
        self.schema = schema
        self.row_class = row_class(schema.names)
        self._make: Callable[[tuple[Any, ...]], Row] = partial(
            cast("Any", tuple.__new__), self.row_class
        )
        self._columns = [_column_reader(field.dataType) for field in schema.fields]

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """The rows of a batch that has the schema's columns, by position."""
        return self.rows_of(batch.columns)

    def rows_of(self, columns: Sequence[pa.Array]) -> list[Row]:
        """The rows of these columns, as in `rows`."""
        values = [read(column) for read, column in zip(self._columns, columns, strict=True)]
        # New rows are in no cycles; looking for some would cost as much as making the rows.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return list(map(self._make, zip(*values, strict=True)))
        finally:
            if collecting:
                gc.enable()


def row_class(names: list[str]) -> type[Row]:
    """A class of Rows with these fields."""
    # The getters of namedtuples are the fastest access by name that Python has.
    stand_ins = [f"f{i}" for i in range(len(names))]
    getters: Any = namedtuple("getters", stand_ins)  # type: ignore[misc]
    space: dict[str, Any] = {"__slots__": (), "__fields__": list(names)}
    for name, stand_in in zip(names, stand_ins, strict=True):
        # As in Spark: methods of Row come before fields, the first of equal names wins, and
        # dunder names are reached by row["__x"] only.
        if not hasattr(Row, name) and not name.startswith("__"):
            space.setdefault(name, getattr(getters, stand_in))
    return type("Row", (Row,), space)


# --- one column to Python values --------------------------------------------------------------


def _column_reader(kind: DataType) -> Callable[[pa.Array], list[Any]]:
    if isinstance(kind, BooleanType | IntegralType | FloatType | DoubleType):
        return _read_numbers
    if isinstance(kind, TimestampType):
        return _read_timestamps
    if isinstance(kind, DateType | TimestampNTZType):
        return _read_dates
    convert = ArrowTableToRowsConversion._create_converter(kind, none_on_identity=True)
    if convert is None:
        return _read_plain
    return partial(_read_converted, convert)


def _read_plain(column: pa.Array) -> list[Any]:
    return list(column.to_pylist())


def _read_converted(convert: Callable[[Any], Any], column: pa.Array) -> list[Any]:
    return [convert(value) for value in column.to_pylist()]


def _read_numbers(column: pa.Array) -> list[Any]:
    if column.null_count:
        return list(column.to_pylist())
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _read_dates(column: pa.Array) -> list[Any]:
    """numpy makes dates and datetimes many times as fast as Arrow does; NaT becomes None."""
    values = column.to_numpy(zero_copy_only=False)
    if np.any((values < _YEARS[0]) | (values >= _YEARS[1])):
        return list(column.to_pylist())  # Arrow says which value Python has no datetime for
    return list(values.tolist())


_YEARS = np.array(["0001-01-01", "9999-12-31"], dtype="datetime64[D]")
_BLOCK_S = 900  # clocks change on the quarter of an hour, so most blocks have one offset


def _read_timestamps(column: pa.Array) -> list[Any]:
    """Local time without a zone, as `TimestampType.fromInternal` gives it.

    The offset to UTC is looked up per quarter of an hour rather than per value.
    """
    if not len(column):
        return []
    valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    us = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    blocks, block_of = np.unique(us // (_BLOCK_S * 1_000_000), return_inverse=True)
    if len(blocks) * 8 > len(us) or blocks[0] < _BLOCKS[0] or blocks[-1] >= _BLOCKS[1]:
        values = [_local(value) for value in us.tolist()]
    else:
        offsets_us = np.array([_steady_offset_us(block) for block in blocks.tolist()])
        shifted = us + offsets_us[block_of]
        values = shifted.view("datetime64[us]").tolist()
        for i in np.flatnonzero(offsets_us[block_of] == _UNSTEADY).tolist():
            values[i] = _local(int(us[i]))
    if valid is None:
        return list(values)
    are_valid = valid.tolist()
    return [value if is_valid else None for value, is_valid in zip(values, are_valid, strict=True)]


_BLOCKS = (_YEARS + np.array([2, -2])).astype("datetime64[s]").astype(np.int64) // _BLOCK_S
_UNSTEADY = 1  # no offset is a microsecond


def _local(us: int) -> datetime:
    return datetime.fromtimestamp(us // 1_000_000).replace(microsecond=us % 1_000_000)


def _steady_offset_us(block: int) -> int:
    """The offset of local time in a block; _UNSTEADY where clocks change or an hour repeats."""
    first, last = block * _BLOCK_S, (block + 1) * _BLOCK_S - 1
    start, end = datetime.fromtimestamp(first), datetime.fromtimestamp(last)
    if end - start != timedelta(seconds=_BLOCK_S - 1) or start.fold or end.fold:
        return _UNSTEADY
    return (start - _EPOCH - timedelta(seconds=first)) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1)

"""Output rows of operators to Arrow batches of the declared schema.

Spark answers a column of the wrong type with `UNSUPPORTED_CALL ... getInt` from deep inside, so
every value is checked here against the column's Spark type, and the error names operator, column
and value. The check is one look at the set of Python types in a column; single values are looked at
only when that is not enough.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import _deduplicate_field_names
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    YearMonthIntervalType,
    _has_type,
)

from braided.errors import OutputSchemaError, UnsupportedError
from braided.spark.arrow_types import to_arrow_schema
from braided.store.records.short_repr import short_repr

__all__ = ["OutputEncoder"]

_NONE = type(None)


class OutputEncoder:
    """Encodes the output of one operator."""

    def __init__(self, schema: StructType, operator: str) -> None:
        for field in schema.fields:
            if _has_type(field.dataType, (YearMonthIntervalType, CalendarIntervalType)):
                raise UnsupportedError(
                    f"output column {field.name!r} of operator {operator!r}: Python has no value "
                    f"of type {field.dataType.simpleString()}; give it out as a number"
                )
        self.schema = schema
        self.operator = operator
        self.names: list[str] = schema.names
        plain = [
            StructField(f.name, _deduplicate_field_names(f.dataType), f.nullable)
            for f in schema.fields
        ]
        # UTC is what Spark's side of mapInArrow reads timestamps as.
        self.arrow_schema: pa.Schema = to_arrow_schema(StructType(plain))
        self._columns = [
            _ColumnEncoder(self, field, arrow.type)
            for field, arrow in zip(schema.fields, self.arrow_schema, strict=True)
        ]
        self._plain = [_plain_test(field) for field in schema.fields]
        self._name_set = frozenset(self.names)
        self._nested = any(
            isinstance(f.dataType, ArrayType | MapType | StructType | UserDefinedType)
            for f in schema.fields
        )
        self.lasting: type | None = None if self._nested else tuple
        """The type of rows that nobody can change, so that they need not be detached, if any."""

    def detach(self, row: Any) -> Any:
        """The row as it is now, for a time after the operator has gone on.

        Rows wait to be encoded many at once, and an operator may yield a list that is part of its
        state, or one dict again and again.
        """
        if self._nested:
            return copy.deepcopy(row)
        kind = type(row)
        if kind is dict:
            return row.copy()
        return tuple(row) if kind is list else row

    def encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Rows (dicts and Rows by name; tuples and lists by position) as one batch. The error of
        one that does not fit says which.
        """
        try:
            return self._encode(rows)
        except OutputSchemaError as error:
            if len(rows) > 1:
                wrong = (i for i, row in enumerate(rows) if not self._fits(row))
                error.index = next(wrong, 0)
            raise

    def _fits(self, row: Any) -> bool:
        try:
            self._encode([row])
        except OutputSchemaError:
            return False
        return True

    def _encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        width = len(self.names)
        kinds = set(map(type, rows))
        if not kinds <= {tuple, list}:
            if all(vars(kind).get("__fields__") == self.names for kind in kinds):
                rows = list(map(tuple, rows))  # input rows given out again: Row[i] is slow
            else:
                rows = [self._by_position(row) for row in rows]
        if not set(map(len, rows)) <= {width}:
            wrong = next(row for row in rows if len(row) != width)
            raise self._refused(f"gave a row of {len(wrong)} values {short_repr(wrong)}")
        arrays = [
            column.encode(list(map(itemgetter(i), rows))) for i, column in enumerate(self._columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def check(self, rows: Sequence[Any]) -> None:
        """Raises what `encode` would for these rows. Most are seen to be fine at a glance."""
        if not all(map(self._is_plain, rows)):
            self.encode(rows)

    def _is_plain(self, row: Any) -> bool:
        if isinstance(row, dict):
            if row.keys() != self._name_set:
                return False
            row = map(row.__getitem__, self.names)
        elif not isinstance(row, tuple | list) or len(row) != len(self._plain):
            return False
        elif isinstance(row, Row):
            row = self._by_position(row)
        return all(is_plain(value) for is_plain, value in zip(self._plain, row, strict=True))

    def encode_arrow(self, table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
        """A table or batch with the schema's columns, by name, cast where no value is lost."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        names = table.column_names
        if sorted(names) != sorted(self.names):
            raise self._refused(f"gave a table with the columns {names}")
        arrays = [column.cast(table.column(names.index(column.name))) for column in self._columns]
        whole = pa.Table.from_arrays(arrays, schema=self.arrow_schema).combine_chunks()
        return list(whole.to_batches())

    def _by_position(self, row: Any) -> Sequence[Any]:
        if isinstance(row, dict):
            try:
                values = [row[name] for name in self.names]
                if len(row) == len(values):
                    return values
            except KeyError:
                pass
            return self._partial(row)
        if isinstance(row, Row):
            fields = getattr(row, "__fields__", None)  # Row(1, 2) has none
            if fields is None or fields == self.names:
                return tuple(row)
            return self._by_position(dict(zip(fields, row, strict=True)))
        if isinstance(row, tuple | list):
            return row
        raise self._refused(
            f"gave {short_repr(row)} of type {type(row).__name__}, which is not a row"
        )

    def _partial(self, row: dict[str, Any]) -> Sequence[Any]:
        for name in row:
            if name not in self._name_set:
                raise self._refused(
                    f"gave a row with an unknown column {name!r}: {short_repr(row)}"
                )
        return [row.get(name) for name in self.names]  # as in Spark, one left out is a null

    def _refused(self, what: str) -> OutputSchemaError:
        return OutputSchemaError(
            f"operator {self.operator!r} {what}; its output schema is "
            f"{self.schema.simpleString()}, and rows are dicts or Rows by name, or tuples or "
            "lists by position"
        )


class _ColumnEncoder:
    """Encodes the values of one output column."""

    def __init__(self, encoder: OutputEncoder, field: StructField, arrow: pa.DataType) -> None:
        self.name = field.name
        self._operator = encoder.operator
        self._kind = field.dataType
        self._nullable = field.nullable
        self._arrow = arrow
        self._fast = _fast_types(field.dataType)
        self._convert = _converter(field.dataType)

    def encode(self, values: Sequence[Any]) -> pa.Array:
        try:
            if set(map(type, values)) <= self._fast:
                array = pa.array(values, self._arrow)
            else:
                convert = self._convert
                array = pa.array([convert(_plain(value)) for value in values], self._arrow)
        except Exception as error:
            raise self._refused(values, error) from None
        self._check_nulls(array)
        return array

    def cast(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if column.type != self._arrow:
            try:
                column = column.cast(self._arrow, safe=True)
            except pa.ArrowException as error:
                raise OutputSchemaError(
                    f"operator {self._operator!r}, output column {self.name!r}: expected "
                    f"{self._kind.simpleString()}, and a table's column of Arrow type "
                    f"{column.type} can't be cast to it: {error}"
                ) from None
        try:
            self._check_nulls(column)
        except OutputSchemaError as unfit:
            raise OutputSchemaError(f"{unfit}, in row {unfit.index} of a table") from None
        return column

    def _check_nulls(self, array: pa.Array | pa.ChunkedArray) -> None:
        if not self._nullable and array.null_count:
            raise self._at(
                array.is_null().index(True).as_py(),
                f"operator {self._operator!r}, output column {self.name!r}: a null, but the "
                f"schema declares {self._kind.simpleString()} not null",
            )

    def _at(self, index: int, what: str) -> OutputSchemaError:
        error = OutputSchemaError(what)
        error.index = index
        return error

    def _refused(self, values: Sequence[Any], error: Exception) -> OutputSchemaError:
        """Names the first value that fails by itself: the error for a whole column names none."""
        for index, value in enumerate(values):
            try:
                pa.array([self._convert(_plain(value))], self._arrow)
            except Exception as why:
                said = f" ({why})" if str(why) else ""
                return self._at(
                    index,
                    f"operator {self._operator!r}, output column {self.name!r}: expected "
                    f"{self._kind.simpleString()}, got {short_repr(value)} of type "
                    f"{type(value).__name__}{said}",
                )
        return OutputSchemaError(
            f"operator {self._operator!r}, output column {self.name!r}: expected "
            f"{self._kind.simpleString()}: {error}"
        )


# --- what each Spark type takes ---------------------------------------------------------------


def _fast_types(kind: DataType) -> set[type]:
    """Python types of which Arrow can make the column without a look at single values."""
    if isinstance(kind, IntegralType):
        return {int, _NONE}
    if isinstance(kind, DoubleType | FloatType):
        return {float, _NONE}
    for spark, python in _EXACT.items():
        if isinstance(kind, spark):
            return {python, _NONE}
    return set()


_EXACT: dict[type[DataType], type] = {
    BooleanType: bool,
    StringType: str,
    BinaryType: bytes,
    DateType: date,
    DayTimeIntervalType: timedelta,
}


_BITS = {ByteType: 7, ShortType: 15, IntegerType: 31, LongType: 63}


def _plain_test(field: StructField) -> Callable[[Any], bool]:
    """Whether a value is certain to be encoded; False where only trying tells."""
    kind, null = field.dataType, field.nullable
    for integral, bits in _BITS.items():
        if isinstance(kind, integral):
            most = (1 << bits) - 1
            return lambda value: (
                -most <= value <= most if type(value) is int else null and value is None
            )
    if isinstance(kind, StringType):
        # Text that is not ASCII may have halves of surrogate pairs, which Arrow refuses.
        return lambda value: value.isascii() if type(value) is str else null and value is None
    if isinstance(kind, DoubleType | BooleanType):
        python = float if isinstance(kind, DoubleType) else bool
        return lambda value: type(value) is python or (null and value is None)
    return lambda value: False


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """One value to what Arrow takes for it, or TypeError. Values come without numpy scalars."""
    if isinstance(kind, IntegralType):
        return _only(int)
    if isinstance(kind, DoubleType | FloatType):
        return _as_float
    if isinstance(kind, TimestampType):
        return _as_utc
    if isinstance(kind, TimestampNTZType):
        return _without_zone
    if isinstance(kind, BinaryType):
        return _as_bytes
    for spark, python in _EXACT.items():
        if isinstance(kind, spark):
            return _only(python)
    # Nested nulls are checked by Spark's converter; those of the column itself by _check_nulls.
    convert: Callable[[Any], Any] = LocalDataToArrowConversion._create_converter(kind)
    return convert


def _only(wanted: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value is None or type(value) is wanted:
            return value
        # IntEnum is an int; but a bool is no number, and a datetime no date.
        if isinstance(value, wanted) and not isinstance(value, bool | datetime):
            return value
        raise TypeError("")

    return convert


def _as_float(value: Any) -> Any:
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise TypeError("")


def _as_utc(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # one without a zone is local time, as in Spark
    raise TypeError("")


def _without_zone(value: Any) -> Any:
    if value is None or (isinstance(value, datetime) and value.tzinfo is None):
        return value
    raise TypeError("it must be a datetime without a time zone")


def _as_bytes(value: Any) -> Any:
    if value is None or isinstance(value, bytes | bytearray):
        return value
    raise TypeError("")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value

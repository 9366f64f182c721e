"""What a processor gives out, as Arrow batches of the declared schema.

Rows are taken by the names of their fields and converted by Arrow, as Spark's own worker does;
what Arrow can't convert is refused with the column and the value. Data frames wait until there are
enough of them: to convert one costs far more than its rows, so those of equal types are converted
together, by Spark's own conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from braided.errors import OutputSchemaError
from braided.spark.arrow_types import to_arrow_schema
from braided.spark.pandas_conversion import from_series

__all__ = ["FrameEncoder", "PandasSettings", "RowEncoder", "check_event_times"]


class _Encoder:
    def __init__(self, schema: StructType, operator: str) -> None:
        self.schema = schema
        self.names: list[str] = schema.names
        # UTC is what Spark's side of mapInArrow reads timestamps as.
        self.arrow_schema: pa.Schema = to_arrow_schema(schema)
        self._operator = operator
        self._required = [i for i, field in enumerate(schema.fields) if not field.nullable]

    def _checked(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        for i in self._required:
            if columns[i].null_count:
                raise OutputSchemaError(
                    f"processor {self._operator!r}, output column {self.names[i]!r}: a null, but "
                    "outputStructType declares it not null"
                )
        return pa.RecordBatch.from_arrays(list(columns), schema=self.arrow_schema)


class RowEncoder(_Encoder):
    """Encodes the Rows that a processor gives out."""

    def __init__(self, schema: StructType, operator: str) -> None:
        super().__init__(schema, operator)
        self._nested = [i for i, field in enumerate(schema.fields) if _is_nested(field.dataType)]

    def detach(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows as they are now, for a time after the processor has gone on."""
        return self._by_position(rows) if self._nested else rows

    def encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        if not self._nested:
            rows = self._by_position(rows)
        columns = [self._column(i, list(map(itemgetter(i), rows))) for i in range(len(self.names))]
        return self._checked(columns)

    def _by_position(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        names = self.names
        tuples: list[tuple[Any, ...]] = []
        for row in rows:
            fields = getattr(row, "__fields__", None)
            if fields == names:
                tuples.append(tuple(row))
            elif fields is None or not isinstance(row, Row):
                raise self._no_row(row)
            else:
                values = dict(zip(fields, row, strict=False))
                tuples.append(tuple([values.get(name) for name in names]))
        for i in self._nested:
            tuples = [(*row[:i], _without_rows(row[i]), *row[i + 1 :]) for row in tuples]
        return tuples

    def _column(self, i: int, values: list[Any]) -> pa.Array:
        kind = self.arrow_schema.field(i).type
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._misfit(i, values, error) from None

    def _misfit(self, i: int, values: list[Any], error: Exception) -> OutputSchemaError:
        field = self.schema.fields[i]
        shown = ""
        for value in values:
            try:
                pa.array([value], self.arrow_schema.field(i).type)
            except Exception as why:
                shown, error = f", got {value!r:.80} of type {type(value).__name__}", why
                break
        return OutputSchemaError(
            f"processor {self._operator!r}, output column {field.name!r}: expected "
            f"{field.dataType.simpleString()}{shown} ({error})"
        )

    def _no_row(self, row: Any) -> OutputSchemaError:
        return OutputSchemaError(
            f"processor {self._operator!r} gave {row!r:.80} of type {type(row).__name__}; it must "
            "give out Rows with names, such as "
            f"Row({', '.join(f'{name}=...' for name in self.names)})"
        )


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType | MapType | StructType)


def _without_rows(value: Any) -> Any:
    """A value with its Rows as dicts, and nothing that the processor may still change."""
    if isinstance(value, Row):
        fields = getattr(value, "__fields__", None)
        if fields is not None:
            return {name: _without_rows(v) for name, v in zip(fields, value, strict=False)}
    if isinstance(value, dict):
        return {key: _without_rows(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_rows(item) for item in value]
    return value


@dataclass(frozen=True)
class PandasSettings:
    """The session's settings for frames."""

    timezone: str
    safely: bool
    by_name: bool
    int_to_decimal: bool
    int_ext_dtype: bool
    rows_max: int
    """Rows in a frame that a processor is given."""
    bytes_max: int
    """Bytes of the rows in such a frame, by the size that rows have on average."""


class FrameEncoder(_Encoder):
    """Encodes the data frames that a processor gives out."""

    def __init__(self, schema: StructType, operator: str, settings: PandasSettings) -> None:
        super().__init__(schema, operator)
        self._settings = settings
        self._distinct = len(set(self.names)) == len(self.names)

    def columns(self, frame: Any) -> list[Any]:
        """The values of the schema's columns as they are now, whatever becomes of the frame;
        raises unless it is a frame that has them.
        """
        return [column.copy() for column in self._columns(frame)]

    def _columns(self, frame: Any) -> list[Any]:
        if not isinstance(frame, pd.DataFrame):
            raise OutputSchemaError(
                f"processor {self._operator!r} gave {frame!r:.80} of type "
                f"{type(frame).__name__}; it must give out pandas.DataFrames"
            )
        if self._distinct and frame.columns.tolist() == self.names:
            return list(frame._iter_column_arrays())
        settings = self._settings
        if settings.by_name and any(isinstance(label, str) for label in frame.columns):
            try:
                return [frame[name]._values for name in self.names]
            except KeyError:
                raise self._wrong_columns(frame) from None
        if len(frame.columns) < len(self.names):
            raise self._wrong_columns(frame)
        return [frame.iloc[:, i]._values for i in range(len(self.names))]

    def encode(self, parts: Sequence[list[Any]]) -> list[pa.RecordBatch]:
        """The columns of frames in their order, those of equal types in one batch."""
        batches = []
        for _, alike in groupby(parts, key=lambda columns: [c.dtype for c in columns]):
            batches.append(self._convert(list(alike)))
        return batches

    def _wrong_columns(self, frame: pd.DataFrame) -> OutputSchemaError:
        return OutputSchemaError(
            f"processor {self._operator!r} gave a DataFrame with the columns "
            f"{list(frame.columns)}; its outputStructType is {self.schema.simpleString()}"
        )

    def _convert(self, parts: list[list[Any]]) -> pa.RecordBatch:
        series = [
            pd.Series(_joined([part[i] for part in parts]), name=name)
            for i, name in enumerate(self.names)
        ]
        settings = self._settings
        try:
            converted = from_series(
                series,
                self.schema,
                timezone=settings.timezone,
                safely=settings.safely,
                by_name=settings.by_name,
                int_to_decimal=settings.int_to_decimal,
            )
        except Exception as error:
            raise OutputSchemaError(
                f"processor {self._operator!r} gave a DataFrame that does not fit its "
                f"outputStructType {self.schema.simpleString()}: {error}"
            ) from None
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(converted, self.arrow_schema, strict=True)
        ]
        return self._checked(columns)


def _joined(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return type(values[0])._concat_same_type(values)


def check_event_times(batch: pa.RecordBatch, column: int, watermark_ms: int, operator: str) -> None:
    """Spark's rule for the event time of rows that go on to other operators."""
    times = batch.column(column)
    earliest = pc.min(times.cast(pa.int64())).as_py()
    if earliest is not None and earliest < watermark_ms * 1000:
        raise OutputSchemaError(
            "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with "
            f"eventTime={earliest // 1000} which is older than current_watermark_value="
            f"{watermark_ms}: processor {operator!r} must give out rows whose "
            f"{batch.schema.names[column]!r}, its eventTimeColumnName, is not behind the watermark"
        )

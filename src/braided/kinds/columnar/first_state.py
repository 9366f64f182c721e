"""The state that a columnar operator starts with: rows of a DataFrame as records of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, FractionalType, IntegralType, StructType

from braided.errors import DefinitionError, StateValueError
from braided.kinds.class_first_state import FirstRecord, FirstStateWriter
from braided.kinds.columnar.key_states import due_ms
from braided.operator.columns import ColumnOperator, column_codec
from braided.spark.arrow_types import to_arrow_schema
from braided.store.columnar.casting import exactly
from braided.store.columnar.fields import DUE, ColumnField
from braided.store.slots.key_codec import KeyCodec

__all__ = ["ColumnsWriter", "check_initial"]


def check_initial(initial: DataFrame, operator: type[ColumnOperator], key: StructType) -> None:
    """Raises DefinitionError unless the DataFrame has the grouping columns and fields only."""
    if not isinstance(initial, DataFrame) or initial.isStreaming:
        raise DefinitionError("initialState is a DataFrame that is not streaming")
    given = {field.name: field.dataType for field in initial.schema.fields}
    if len(given) < len(initial.columns):
        raise DefinitionError(f"initialState has two columns of one name: {initial.columns}")
    wanted = {field.name: _spark_type(field) for field in operator._fields}
    both = [column for column in key.names if column in wanted]
    if both:
        raise DefinitionError(
            f"initialState: {both[0]!r} is a grouping column and a field of {operator.__name__}; "
            f"group by another name, for example groupBy(F.col({both[0]!r}).alias('k'))"
        )
    for column in key.fields:
        if column.name not in given:
            raise DefinitionError(f"initialState has no column {column.name!r}, a grouping column")
        wanted[column.name] = column.dataType
    for name, kind in given.items():
        if name not in wanted:
            known = ", ".join([*key.names, *(field.name for field in operator._fields)])
            raise DefinitionError(
                f"initialState has column {name!r}, which is no field of {operator.__name__}; it "
                f"takes {known}"
            )
        if not _fits(wanted[name], kind):
            raise DefinitionError(
                f"initialState: column {name!r} is {kind.simpleString()} and must be "
                f"{wanted[name].simpleString()}: cast it"
            )


def _spark_type(field: ColumnField) -> DataType:
    kind = field.type
    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_type)
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def _fits(wanted: DataType, given: DataType) -> bool:
    """Numbers may be of another width; what is null in all rows has no type."""
    if given.typeName() == "void" or given.simpleString() == wanted.simpleString():
        return True
    if isinstance(wanted, ArrayType) and isinstance(given, ArrayType):
        return _fits(wanted.elementType, given.elementType)
    families = (IntegralType, FractionalType)
    return any(isinstance(wanted, each) and isinstance(given, each) for each in families)


@dataclass(frozen=True)
class ColumnsWriter(FirstStateWriter):
    """Writes rows as records of a columnar operator's fields."""

    def records(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[FirstRecord]:
        codec, width = column_codec(self.operator), 1 + len(self.key.names)
        key_codec = KeyCodec(to_arrow_schema(self.key))
        for chunk in filter(len, chunks):
            keys = key_codec.encode_batch(chunk.columns[1:width])
            given = dict(zip(self.columns, chunk.columns[width:], strict=True))
            columns = [self._column(field, given, chunk.num_rows) for field in codec.fields]
            records = codec.write(columns, chunk.num_rows).tolist()
            dues = [due_ms(c) for f, c in zip(codec.fields, columns, strict=True) if f.name == DUE]
            slots = chunk.column(0).to_pylist()
            for i, (slot, key, record) in enumerate(zip(slots, keys, records, strict=True)):
                if record != codec.fresh:  # a key that is as new has no state
                    is_due = bool(dues) and columns[-1][i].is_valid
                    yield slot, key, record, [int(dues[0][i])] if is_due else []

    def _column(self, field: ColumnField, given: dict[str, pa.Array], count: int) -> pa.Array:
        """What was given; the default where that is nothing, or null."""
        default = pa.array([field.default], field.type)
        if field.name not in given:
            return default.take(pa.array(np.zeros(count, np.int64)))
        try:
            column = exactly(given[field.name], field.type)
        except (pa.ArrowException, ValueError) as error:
            raise StateValueError(
                f"initialState of operator {self.name!r}: column {field.name!r} does not fit the "
                f"field's type {field.type}: {error}"
            ) from None
        if not column.null_count or field.default is None:
            return column
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
        both = pa.concat_arrays([column, default])
        return both.take(pa.array(np.where(valid, np.arange(count), count)))

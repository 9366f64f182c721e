"""What a checkpoint holds of a columnar operator: its fields, key by key, from files alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructType

from braided.operator.columns import ColumnOperator, column_codec
from braided.spark.arrow_types import to_arrow_schema
from braided.store.columnar.fields import DUE, StoredRecords
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.store.history.manifest_log import ManifestLog
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.contents import Contents, KeyState, read_records
from braided.tasks.rows import RowFactory

__all__ = ["ColumnContents", "state_of"]


class ColumnContents:
    """Reads the fields of a columnar operator, whose class it does not need.

    A key's `due` is shown as a timer.
    """

    expires = False

    def __init__(self, operator: str, meta: OperatorMeta) -> None:
        self._operator = operator
        self._records = StoredRecords(operator, meta.history)
        names = self._records.names
        self._due = names.index(DUE) if DUE in names else None
        self._shown = [i for i in range(len(names)) if i != self._due]
        # Parquet has no struct without fields.
        fields = [_shown(self._records.schema.field(i)) for i in self._shown]
        self._type: pa.DataType = pa.struct(fields) if fields else pa.string()

    @property
    def type(self) -> DataType:
        return from_arrow_type(self._type, prefer_timestamp_ntz=True)

    def read(
        self, files: Store, version: OperatorVersion, batch_time_ms: int, slots: Iterable[int]
    ) -> Contents:
        return read_records(files, self._operator, version, slots)

    def key_state(self, stored: Any) -> KeyState:
        if self._due is None:
            return KeyState((stored,), ())
        us = self._records.decode([stored])[self._due].cast(pa.int64())[0].as_py()
        return KeyState((stored,), () if us is None else (-(-us // 1000),))

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        there = [row is not None for row in rows]
        if not self._shown:
            return pa.array(["{}" if each else None for each in there], self._type)
        columns = self._records.decode([row[0] for row in rows if row is not None])
        # Where there is none, any will do: it is masked.
        numbers = np.maximum(np.cumsum(there) - 1, 0)
        arrays = []
        for i, field in zip(self._shown, self._type, strict=True):
            column = columns[i].cast(field.type)
            if not len(column):
                column = pa.nulls(1, field.type)
            arrays.append(column.take(pa.array(numbers)))
        missing = pa.array([not each for each in there], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=missing)


def _shown(field: pa.Field) -> pa.Field:
    """As Spark has it: it knows no lists of a fixed size."""
    kind = field.type
    return (
        field.with_type(pa.list_(kind.value_type)) if pa.types.is_fixed_size_list(kind) else field
    )


def state_of(
    store: Store, name: str, operator: type[ColumnOperator], key: StructType
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fields of every key of an operator at the newest manifest.

    `key` is the schema of the grouping columns. Nothing must write the checkpoint meanwhile.
    """
    manifests = ManifestLog(store)
    newest = manifests.newest()
    version = None if newest is None else manifests.view_at(newest).operators.get(name)
    if version is None:
        return {}
    codec = column_codec(operator).at(version.meta.history)
    records: dict[bytes, bytes] = {}
    for contents in read_records(store, name, version, range(version.meta.slots)).values():
        records.update(contents)
    keys, rows = KeyCodec(to_arrow_schema(key)), RowFactory(key)
    columns, _ = codec.read(list(records.values()))
    table = pa.Table.from_arrays(columns, schema=codec.schema)
    fields = (table.drop_columns([DUE]) if DUE in codec.names else table).to_pylist()
    return dict(zip(rows.rows_of(keys.decode_batch(list(records))), fields, strict=True))

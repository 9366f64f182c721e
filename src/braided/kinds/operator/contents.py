"""What a checkpoint holds of an Operator: its fields, key by key.

Reads durable files only, never a cache, so what it shows is what any restart would find.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructType

from braided.operator.definition import Operator, state_codec
from braided.spark.arrow_types import to_arrow_schema
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.store.history.manifest_log import ManifestLog
from braided.store.records.stored_fields import StoredFields
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.contents import Contents, KeyState, read_records
from braided.tasks.rows import RowFactory

__all__ = ["OperatorContents", "newest_batch", "state_of"]


class OperatorContents:
    """Reads the fields of an Operator, whose class it does not need."""

    expires = False

    def __init__(self, operator: str, meta: OperatorMeta) -> None:
        self._operator = operator
        self._fields = StoredFields(operator, meta.history)

    @property
    def type(self) -> DataType:
        return from_arrow_type(self._fields.type)

    def read(
        self, files: Store, version: OperatorVersion, batch_time_ms: int, slots: Iterable[int]
    ) -> Contents:
        return read_records(files, self._operator, version, slots)

    def key_state(self, stored: Any) -> KeyState:
        return KeyState(*self._fields.read(stored))

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        return self._fields.column(rows)


def newest_batch(store: Store) -> int:
    """The newest batch that has a manifest; -1 when there is none."""
    newest = ManifestLog(store).newest()
    return -1 if newest is None else newest


def state_of(
    store: Store, name: str, operator: type[Operator], key: StructType
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fields of every key of an operator at the newest manifest.

    `key` is the schema of the grouping columns. Nothing must write the checkpoint meanwhile.
    """
    version = ManifestLog(store).view_at(newest_batch(store)).operators.get(name)
    if version is None:
        return {}
    keys, rows = KeyCodec(to_arrow_schema(key)), RowFactory(key)
    codec, instance = state_codec(operator).at(version.meta.history), operator()
    encoded_keys, fields = [], []
    for records in read_records(store, name, version, range(version.meta.slots)).values():
        for encoded_key, record in records.items():
            codec.load(instance, record)
            encoded_keys.append(encoded_key)
            fields.append({field.name: getattr(instance, field.name) for field in codec.fields})
    return dict(zip(rows.rows_of(keys.decode_batch(encoded_keys)), fields, strict=True))

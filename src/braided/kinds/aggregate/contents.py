"""What a checkpoint holds of an aggregation: its kept columns, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from braided.flow.type_text import parse_type
from braided.spark.arrow_types import to_arrow_schema
from braided.store.aggregates.columns import StoredColumns
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.tasks.contents import Contents, KeyState, read_records

__all__ = ["AggregateContents"]


class AggregateContents:
    """Reads the columns of an aggregation."""

    expires = False

    def __init__(self, operator: str, meta: OperatorMeta) -> None:
        self._operator = operator
        fields = [StructField(label, parse_type(kind)) for label, _, kind in json.loads(meta.state)]
        self._columns = StoredColumns(list(to_arrow_schema(StructType(fields))))

    @property
    def type(self) -> DataType:
        return from_arrow_type(self._columns.type)

    def read(
        self, files: Store, version: OperatorVersion, batch_time_ms: int, slots: Iterable[int]
    ) -> Contents:
        return read_records(files, self._operator, version, slots)

    def key_state(self, stored: Any) -> KeyState:
        return KeyState(*self._columns.read(stored))

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        return self._columns.column(rows)

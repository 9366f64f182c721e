"""Files of rows that were put aside: how they look, and how those of late rows are written.

Late rows are known by the batch's plan and not by a task, so a small job of their own writes them,
in a batch that has some: its tasks write a file each and say how it is called.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from braided.store.durable.store import Store
from braided.store.history.manifest import DeadFile

__all__ = ["DEAD_SCHEMA", "LATE", "json_of", "write_late"]

DEAD_SCHEMA = pa.schema(
    [
        ("error", pa.string()),
        ("operator", pa.string()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("batch", pa.int64()),
    ]
)

LATE = "-late.parquet"
"""How the names of files with late rows end."""

_WRITTEN = "name string, digest string, rows bigint"


def json_of(*columns: Column) -> Column:
    """Columns as one text, those that are null too."""
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})


def write_late(
    late: DataFrame, store: Store, operator: str, batch: int, watermark_ms: int
) -> list[DeadFile]:
    """Writes late rows of an operator, given by `key` and `row`; the files count when the manifest
    names them.
    """
    time = datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat(timespec="milliseconds")
    letters = late.select(
        F.lit(f"late: the watermark was at {time.replace('+00:00', 'Z')}").alias("error"),
        F.lit(operator).alias("operator"),
        F.col("key"),
        F.col("row"),
        F.lit(batch).cast("bigint").alias("batch"),
    )
    assert letters.columns == from_arrow_schema(DEAD_SCHEMA).names
    written = letters.mapInArrow(_Writer(store, batch), _WRITTEN).collect()
    return [DeadFile(operator, row.name, row.digest, row.rows) for row in written]


class _Writer:
    """What runs in the tasks."""

    def __init__(self, store: Store, batch: int) -> None:
        self._store = store
        self._batch = batch

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq  # which few tasks need, and all would wait for

        buffer, rows = pa.BufferOutputStream(), 0
        with pq.ParquetWriter(buffer, DEAD_SCHEMA) as file:
            for chunk in chunks:
                if chunk.num_rows:
                    table = pa.Table.from_batches([chunk])
                    file.write_table(table.cast(DEAD_SCHEMA))
                    rows += chunk.num_rows
        if not rows:
            return
        data = buffer.getvalue()
        name = f"dead/{self._batch}-{uuid.uuid4().hex[:12]}{LATE}"
        self._store.put(name, data)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        yield pa.RecordBatch.from_pydict({"name": [name], "digest": [digest], "rows": [rows]})

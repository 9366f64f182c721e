"""How much of a batch for Kafka is in memory at once."""

from __future__ import annotations

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq

from braided.sinks.kafka import rows_at_once


def file_of(rows: int, row_bytes: int) -> pq.FileMetaData:
    written = io.BytesIO()
    values = [os.urandom(row_bytes) for _ in range(rows)]
    pq.write_table(pa.table({"value": values}), written, row_group_size=7)
    return pq.ParquetFile(written).metadata


def test_large_rows_are_read_a_few_at_a_time_and_small_ones_by_thousands() -> None:
    assert 12 <= rows_at_once(file_of(20, 1 << 20)) <= 16
    assert rows_at_once(file_of(2, 17 << 20)) == 1
    assert rows_at_once(file_of(50, 10)) == 4096
    assert rows_at_once(file_of(0, 0)) >= 1

"""The hashes that rows of a pinned key are known by.

Rows are hashed in the JVM, so a key is too: a frame of one row, with the types of the grouping
columns, through the expressions of `flow/route.py`.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from braided.flow.route import can_be_pinned, pin_hashes
from braided.store.slots.keys import KeyCodec

__all__ = ["key_hashes"]


def key_hashes(spark: SparkSession, key_schema: StructType, key: bytes) -> tuple[int, int] | None:
    """Both hashes of a key, given as the state knows it; None if it can't be pinned."""
    if not can_be_pinned(key_schema):
        return None
    codec = KeyCodec(to_arrow_schema(key_schema, timezone="UTC"))
    names = [f"k{i}" for i in range(len(key_schema.fields))]
    fields = zip(names, key_schema.fields, strict=True)
    schema = StructType([StructField(name, field.dataType) for name, field in fields])
    rows = pa.Table.from_arrays(codec.decode_batch([key]), names=names)
    found = spark.createDataFrame(rows, schema).selectExpr(*pin_hashes(names)).head()
    assert found is not None
    return int(found[0]), int(found[1])

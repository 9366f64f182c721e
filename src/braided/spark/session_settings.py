"""Settings of the session that a query's batches run in: how tasks get their rows."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    UserDefinedType,
    VariantType,
)

__all__ = ["configure"]

CHUNK_ROWS = 32_768
CHUNK_BYTES = 32 << 20
"""How large the Arrow chunks are that Spark hands to tasks: whichever is reached first."""


def configure(spark: SparkSession, arriving: Iterable[StructType]) -> None:
    """Sets them in the query's own session, which is not the user's.

    `arriving` are the schemas of the rows that its tasks get.
    """
    # Adaptive execution would drop the tasks of empty channels.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "false")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(CHUNK_ROWS))
    # Rows of a split key are dealt out by their order, which a map task that is run again may give
    # otherwise: then all that has read it runs again as well.
    for name in ("enabled", "enableFullRetryOnMismatch"):
        spark.conf.set(f"spark.sql.shuffle.orderIndependentChecksum.{name}", "true")
    # Weighing each row costs a tenth of the batch, and rows of a fixed width need no weighing.
    bounded = all(map(_is_narrow, arriving))
    most = 2**31 - 1 if bounded else CHUNK_BYTES
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(most))


def _is_narrow(schema: StructType) -> bool:
    """Whether every row has the same, small number of bytes."""
    wide = (StringType, BinaryType, ArrayType, MapType, StructType, VariantType, UserDefinedType)
    kinds = [field.dataType for field in schema.fields]
    return len(kinds) <= 64 and not any(isinstance(kind, wide) for kind in kinds)

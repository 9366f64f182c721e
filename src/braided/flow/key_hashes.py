"""The hashes that rows of a pinned key are known by.

Rows are hashed in the JVM, so a key is too: a frame of one row, with the types of the grouping
columns, through the expressions of `flow/route.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from braided.flow.route import can_be_pinned, pin_hashes
from braided.flow.step import KeyedStep
from braided.store.slots.key_codec import KeyCodec

__all__ = ["KeyHashes", "KeyNaming", "key_hashes"]


class KeyHashes:
    """The hashes of the keys of a flow's steps, by the same expressions that route their rows."""

    def __init__(self, spark: SparkSession, steps: Sequence[KeyedStep]) -> None:
        self._spark = spark
        self._steps = {step.name: step for step in steps}

    def of_key(self, name: str, key: bytes) -> tuple[int, int] | None:
        """Both hashes of a key, given as the state knows it; None if it can't be pinned."""
        step = self._steps[name]
        return key_hashes(self._spark, step.key_schema, key) if step.can_be_pinned else None

    def of_keys(self, name: str, keys: Sequence[bytes]) -> list[tuple[int, int]] | None:
        """Both hashes of many keys, by one job; None if keys of that step can't be pinned."""
        step = self._steps[name]
        if not step.can_be_pinned or not can_be_pinned(step.key_schema):
            return None
        return _hashes(self._spark, step.key_schema, keys) if keys else []


class KeyNaming:
    """Shows keys of a flow's steps to people, as the tuple of their columns."""

    def __init__(self, steps: Sequence[KeyedStep]) -> None:
        self._schemas = {step.name: step.key_schema for step in steps}

    def __call__(self, name: str, key: bytes) -> str:
        codec = KeyCodec(to_arrow_schema(self._schemas[name], timezone="UTC"))
        return repr(tuple(column[0].as_py() for column in codec.decode_batch([key])))


def key_hashes(spark: SparkSession, key_schema: StructType, key: bytes) -> tuple[int, int] | None:
    """Both hashes of a key of such columns; None if they do not tell all keys apart."""
    if not can_be_pinned(key_schema):
        return None
    return _hashes(spark, key_schema, [key])[0]


def _hashes(
    spark: SparkSession, key_schema: StructType, keys: Sequence[bytes]
) -> list[tuple[int, int]]:
    codec = KeyCodec(to_arrow_schema(key_schema, timezone="UTC"))
    names = [f"k{i}" for i in range(len(key_schema.fields))]
    fields = zip(names, key_schema.fields, strict=True)
    schema = StructType([StructField(name, field.dataType) for name, field in fields])
    rows = pa.Table.from_arrays(codec.decode_batch(keys), names=names)
    hashed = spark.createDataFrame(rows, schema).selectExpr(*pin_hashes(names))
    # Collected in the order of the rows: there is no shuffle on the way.
    return [(int(first), int(second)) for first, second in hashed.collect()]

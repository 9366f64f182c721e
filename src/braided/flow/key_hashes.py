"""The hashes that rows of pinned and assigned keys are known by.

Rows are hashed in the JVM, so keys are too: a frame with a row for each, with the types of the
grouping columns, through the expressions of `flow/route.py`; one job for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from braided.control.routing.key_assignment import Hashes, KeyAssignment
from braided.flow.route import can_be_pinned, pin_hashes
from braided.flow.step import KeyedStep
from braided.spark.arrow_types import to_arrow_schema
from braided.store.slots.key_codec import KeyCodec

__all__ = ["KeyHashes", "KeyNaming", "key_hashes", "many_key_hashes"]


class KeyHashes:
    """The hashes of the keys of a flow's steps, by the same expressions that route their rows."""

    def __init__(self, spark: SparkSession, steps: Sequence[KeyedStep]) -> None:
        self._spark = spark
        self._steps = {step.name: step for step in steps}

    def of_key(self, name: str, key: bytes) -> tuple[int, int] | None:
        """Both hashes of a key, given as the state knows it; None if it can't be pinned."""
        step = self._steps[name]
        return key_hashes(self._spark, step.key_schema, key) if step.can_be_pinned else None

    def of_keys(self, name: str, keys: Sequence[bytes]) -> tuple[Hashes, Hashes] | None:
        """Both hashes of each of many keys, by one job; None if they can't be pinned."""
        step = self._steps[name]
        if not step.can_be_pinned or not can_be_pinned(step.key_schema):
            return None
        return many_key_hashes(self._spark, step.key_schema, keys)

    def assigned(
        self, name: str, keys: Sequence[bytes], slots: npt.ArrayLike
    ) -> KeyAssignment | None:
        """Keys, given as the state knows them, each with a slot of its own; None if the operator's
        keys can't be told apart by hashes. Bytes that the state does not know a key by are refused:
        rows would go to the new slot by their hashes, and what the key has would stay in the old.
        """
        _check_form(self._steps[name].key_schema, keys)
        hashes = self.of_keys(name, keys)
        return None if hashes is None else KeyAssignment.of(keys, *hashes, slots)


class KeyNaming:
    """Shows keys of a flow's steps to people, as the tuple of their columns."""

    def __init__(self, steps: Sequence[KeyedStep]) -> None:
        self._schemas = {step.name: step.key_schema for step in steps}

    def __call__(self, name: str, key: bytes) -> str:
        codec = KeyCodec(to_arrow_schema(self._schemas[name]))
        return repr(tuple(column[0].as_py() for column in codec.decode_batch([key])))


def key_hashes(spark: SparkSession, key_schema: StructType, key: bytes) -> tuple[int, int] | None:
    """Both hashes of a key of such columns; None if they do not tell all keys apart."""
    if not can_be_pinned(key_schema):
        return None
    (hash,), (check,) = many_key_hashes(spark, key_schema, [key])
    return int(hash), int(check)


def many_key_hashes(
    spark: SparkSession, key_schema: StructType, keys: Sequence[bytes]
) -> tuple[Hashes, Hashes]:
    """Both hashes of each of the keys, of columns that tell them apart; in one job."""
    if not keys:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    codec = KeyCodec(to_arrow_schema(key_schema))
    names = [f"k{i}" for i in range(len(key_schema.fields))]
    fields = zip(names, key_schema.fields, strict=True)
    schema = StructType([StructField(name, field.dataType) for name, field in fields])
    rows = pa.Table.from_arrays(codec.decode_batch(list(keys)), names=names)
    sql = [f"{each} AS {name}" for each, name in zip(pin_hashes(names), ("a", "b"), strict=True)]
    # In one partition, so that they come back in their order.
    found = spark.createDataFrame(rows, schema).coalesce(1).selectExpr(*sql).toArrow()
    hashes, checks = (found[name].to_numpy().astype(np.int64) for name in ("a", "b"))
    return hashes, checks


def _check_form(key_schema: StructType, keys: Sequence[bytes]) -> None:
    """Refuses keys that are not as the codec would write them."""
    codec = KeyCodec(to_arrow_schema(key_schema))
    try:
        written = codec.encode_batch(codec.decode_batch(keys))
    except (IndexError, TypeError) as error:
        raise ValueError(f"keys that are not of the columns {key_schema.names}") from error
    for key, as_written in zip(keys, written, strict=True):
        if key != as_written:
            raise ValueError(f"a key of the state is {as_written.hex()}, not {key.hex()}")

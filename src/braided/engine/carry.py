"""The carry: rows taken in but not yet processed; they are processed first next time.

A task that is told to stop after a number of rows drains the rest of its input into one file. The
rows keep their order columns, so they come before everything newer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braided.errors import CheckpointCorruptError
from braided.state.files import Files
from braided.state.manifest import CarryFile

__all__ = ["Cut", "read_carry"]


class Cut:
    """Lets `limit` rows of a task's input through and keeps the rest."""

    def __init__(self, chunks: Iterator[pa.RecordBatch], limit: int | None, columns: int) -> None:
        self._chunks = chunks
        self._limit = limit
        self._columns = list(range(columns))
        self._rest: pa.RecordBatch | None = None

    def through(self) -> Iterator[pa.RecordBatch]:
        if self._limit is None:
            yield from self._chunks
            return
        left = self._limit
        for chunk in self._chunks:
            if chunk.num_rows > left:
                self._rest = chunk.slice(left)
                if left:
                    yield chunk.slice(0, left)
                return
            left -= chunk.num_rows
            yield chunk

    def keep(self, files: Files, operator: str, name: str) -> CarryFile | None:
        """Writes what was not let through; None when that is nothing."""
        if self._rest is None:
            return None
        rows = 0
        sink = pa.BufferOutputStream()
        schema = self._rest.select(self._columns).schema
        with pa.ipc.new_stream(sink, schema) as writer:
            for chunk in (self._rest, *self._chunks):
                rows += chunk.num_rows
                writer.write_batch(chunk.select(self._columns))
        data = sink.getvalue()
        files.write(name, data)
        return CarryFile(operator=operator, name=name, digest=_digest(data), rows=rows)


def read_carry(
    spark: SparkSession, root: str, files: list[CarryFile], schema: StructType
) -> DataFrame:
    """The rows of carry files, order columns first, as they were kept."""

    def read(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = Files(root)
        for chunk in chunks:
            for name, digest in zip(*[c.to_pylist() for c in chunk.columns], strict=True):
                yield from _read_one(source, name, digest)

    names = spark.createDataFrame([(f.name, f.digest) for f in files], "name string, digest string")
    return names.repartition(len(files)).mapInArrow(read, schema)


def _read_one(files: Files, name: str, digest: str) -> Iterator[pa.RecordBatch]:
    try:
        data = files.read(name)
    except FileNotFoundError:
        raise CheckpointCorruptError(f"carry file {files.root}/{name} is missing") from None
    if _digest(data) != digest:
        raise CheckpointCorruptError(
            f"carry file {files.root}/{name} is damaged: its digest differs"
        )
    with pa.ipc.open_stream(data) as reader:
        for chunk in reader:
            # One batch older than when it was kept: it comes before all that are younger.
            yield chunk.set_column(0, chunk.schema.field(0), pc.subtract(chunk.column(0), 1))


def _digest(data: pa.Buffer) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()

"""The carry: rows taken in but not yet processed; they are processed first next time.

A task that is told to stop, beforehand or while it runs, drains the rest of its input into one
file. The rows keep their order, so they come before everything newer. Rows that an operator sends
back to one before it come the same way.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braided.errors import CheckpointCorruptError
from braided.store.durable.store import Store
from braided.store.history.manifest import CarryFile
from braided.tasks.columns import order_columns
from braided.tasks.pieces import Pieces
from braided.tasks.task_line import TaskLine

__all__ = ["CarriedColumns", "Cut", "read_carry", "write_carry"]

_PIECE_BYTES = 4 << 20
_FILE_BITS = 40
"""Rows of a file are numbered by so many bits; what is above says which file."""
_BEFORE_ALL = -(1 << 62)
"""The age of rows that have lost their order columns: ahead of all that comes from elsewhere."""


class Cut:
    """Lets a task's input through, piece by piece, until it is told to stop; keeps the rest."""

    def __init__(
        self,
        chunks: Iterator[pa.RecordBatch],
        limit: int | None,
        line: TaskLine,
        pieces: Pieces,
    ) -> None:
        """`limit`: after how many rows to stop, where that is known from the start."""
        self._chunks = chunks
        self._limit = limit
        self._line = line
        self._pieces = pieces
        self._rest: pa.RecordBatch | None = None
        self.rows = 0
        """Rows that were let through."""

    @property
    def is_cut(self) -> bool:
        """Whether rows were left."""
        return self._rest is not None

    def through(self) -> Iterator[pa.RecordBatch]:
        """The rows that the task is to process."""
        for chunk in self._chunks:
            begin = 0
            while begin < chunk.num_rows:
                limit = self._line.limit(self.rows) if self._limit is None else self._limit
                if limit is not None and limit <= self.rows:
                    self._rest = chunk.slice(begin)
                    return
                end = self._pieces.begin(chunk, begin)
                if limit is not None:
                    end = min(end, begin + limit - self.rows)
                whole = end - begin == chunk.num_rows
                yield chunk if whole else chunk.slice(begin, end - begin)
                self._pieces.end(end - begin)
                self.rows += end - begin
                begin = end
                self._line.went(self.rows)

    def keep(
        self, files: Store, operator: str, name: str, layout: CarriedColumns
    ) -> CarryFile | None:
        """Writes what was not let through; None when that is nothing."""
        if self._rest is None:
            return None
        rest = itertools.chain([self._rest], self._chunks)
        return _write(files, name, operator, layout.of(rest))


class CarriedColumns:
    """The columns of carried rows: order columns, then the rows' own.

    Where a task's rows came without order columns, they get some that say the order in which they
    are: rows of one key are in one file, behind one another; those of a split key in several, one
    file after the other.
    """

    def __init__(self, order: int, has_order: bool, width: int, channel: int) -> None:
        """`width`: how many columns are the rows' own. `channel`: whose rows they are."""
        self._first = channel << _FILE_BITS
        self._order = order
        self._has_order = has_order
        self._kept = list(range(width + (order if has_order else 0)))

    def of(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        position = 0
        for chunk in chunks:
            kept = chunk.select(self._kept)
            yield kept if self._has_order else self._with_order(kept, position)
            position += chunk.num_rows

    def _with_order(self, chunk: pa.RecordBatch, position: int) -> pa.RecordBatch:
        count = chunk.num_rows
        zeros = pa.array(np.zeros(count, np.int64))
        # However often they are carried: what operators before have still to give out is newer.
        age = pa.array(np.full(count, _BEFORE_ALL, np.int64))
        sequence = pa.array(np.arange(count, dtype=np.int64) + (self._first + position))
        order = [age, sequence, *[zeros] * (self._order - 2)]
        names = [*order_columns(self._order), *chunk.schema.names]
        return pa.RecordBatch.from_arrays([*order, *chunk.columns], names=names)


def write_carry(df: DataFrame, store: Store, name: str, operator: str) -> list[CarryFile]:
    """Keeps the rows of a DataFrame for the next batch, those of each partition in a file."""

    def write(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = (chunk for chunk in chunks if chunk.num_rows)
        first = next(kept, None)
        if first is None:
            return
        file = f"{name}-{uuid.uuid4().hex[:12]}"
        carry = _write(store, file, operator, itertools.chain([first], kept))
        columns = [[carry.name], [carry.digest], [carry.rows]]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["name", "digest", "rows"])

    written = df.mapInArrow(write, "name string, digest string, rows long").collect()
    return [CarryFile(operator=operator, **file.asDict()) for file in written]


def _write(files: Store, name: str, operator: str, chunks: Iterator[pa.RecordBatch]) -> CarryFile:
    """Writes chunk by chunk, because a carry may be larger than memory."""
    rows, digest = 0, hashlib.blake2b(digest_size=16)
    first = next(chunks)
    with files.writer(name) as write:
        sink = _TeeFile(write, digest.update)
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), first.schema) as writer:
            for chunk in itertools.chain([first], chunks):
                rows += chunk.num_rows
                writer.write_batch(chunk)
    return CarryFile(operator=operator, name=name, digest=digest.hexdigest(), rows=rows)


class _TeeFile:
    """A file to Arrow; every piece that it writes goes to all takers."""

    closed = False

    def __init__(self, *takers: Callable[[Any], Any]) -> None:
        self._takers = takers

    def write(self, data: Any) -> int:
        for take in self._takers:
            take(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def read_carry(
    spark: SparkSession, store: Store, files: list[CarryFile], schema: StructType
) -> DataFrame:
    """The rows of carry files, order columns first, as they were kept."""

    def read(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            for number in chunk.column(0).to_pylist():
                for file in files[number : number + 1]:
                    yield from _read_one(store, file.name, file.digest)

    # A partition for each file, made without a job or a shuffle of its own; one without rows for
    # no file, because Spark makes no tasks for what it knows to be empty.
    parts = max(1, len(files))
    return spark.range(0, parts, 1, parts).mapInArrow(read, schema)


def _read_one(files: Store, name: str, digest: str) -> Iterator[pa.RecordBatch]:
    try:
        file = files.reader(name)
    except FileNotFoundError:
        raise CheckpointCorruptError(f"carry file {files.path(name)} is missing") from None
    with file:
        if _digest(file) != digest:
            raise CheckpointCorruptError(
                f"carry file {files.path(name)} is damaged: its digest differs"
            )
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            for chunk in reader:
                # A row is a batch older than when it was kept, so it comes before younger ones.
                yield chunk.set_column(0, chunk.schema.field(0), pc.subtract(chunk.column(0), 1))


def _digest(file: pa.NativeFile) -> str:
    digest = hashlib.blake2b(digest_size=16)
    while piece := file.read_buffer(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()

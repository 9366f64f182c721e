"""Rows of Parquet files on the driver, a piece at a time: those of a batch, and those of a file
that stay when others take the place of some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from braided.sinks.table_log import BatchRows
from braided.store.slots.key_codec import KeyCodec

__all__ = ["KeySet", "remaining", "stored_rows"]

_ROWS = 64 * 1024


def stored_rows(batch: BatchRows, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """The rows of a batch, file by file."""
    paths = [file["path"] for file in batch.files]
    with batch.store.reader(paths[0]) as file:
        schema = pq.read_schema(file)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])

    def pieces() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with batch.store.reader(path) as file:
                for piece in pq.ParquetFile(file).iter_batches(_ROWS, columns=schema.names):
                    yield piece.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


class KeySet:
    """Keys, and which rows have one of them; null is the same as null, as where Spark groups."""

    def __init__(self, keys: pa.Table) -> None:
        self._schema = keys.schema
        self._codec = KeyCodec(keys.schema)
        self._columns = [column.combine_chunks() for column in keys.columns]

    @property
    def names(self) -> list[str]:
        return list(self._schema.names)

    @cached_property
    def _encoded(self) -> pa.Array:
        return pa.array(self._codec.encode_batch(self._columns), pa.binary())

    def bounds(self) -> list[tuple[str, Any, Any, bool]]:
        """Of each column its name, its least and greatest value, and whether there are nulls;
        without those whose values Python has no words for, such as texts that are no UTF-8.
        """
        found = []
        for name, column in zip(self._schema.names, self._columns, strict=True):
            try:
                ends = pc.min_max(column).as_py()
            except (OverflowError, ValueError):
                continue
            found.append((name, ends["min"], ends["max"], column.null_count > 0))
        return found

    def values(self, name: str, most: int) -> list[Any] | None:
        """The values of a column but null; None if there are more, or Python can't say them."""
        found = pc.unique(self._columns[self._schema.names.index(name)]).drop_null()
        try:
            return list(found.to_pylist()) if len(found) <= most else None
        except (OverflowError, ValueError):
            return None

    def hits(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Of each row whether its key is among these, given the columns that keys are made of."""
        columns = [
            column.cast(field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        mask = pa.array([True] * len(columns[0]))
        for column, own in zip(columns, self._columns, strict=True):
            if not pa.types.is_floating(column.type):  # of which several are one key
                mask = pc.and_(mask, pc.is_in(column, own))
        some = [column.filter(mask) for column in columns]
        encoded = pa.array(self._codec.encode_batch(some), pa.binary())
        return pc.replace_with_mask(mask, mask, pc.is_in(encoded, self._encoded))


def remaining(
    file: pq.ParquetFile, columns: Callable[[pa.RecordBatch], Sequence[pa.Array]], keys: KeySet
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A file's rows whose keys are not among those, a piece at a time, each with the number of rows
    that are left out. `columns` finds those of the key in a piece.
    """
    for piece in file.iter_batches(_ROWS):
        hits = keys.hits(columns(piece))
        yield pc.sum(hits).as_py() or 0, piece.filter(pc.invert(hits))

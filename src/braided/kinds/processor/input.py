"""The rows of a task, key by key, as a processor takes them.

Chunks come in sorted, and the rows of a key may begin in one and end in another. A processor pulls
the rows of its key from an iterator, which reads the next chunk when it must; what it leaves is
skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import Row

from braided.kinds.processor.program import ProcessorProgram
from braided.spark.pandas_conversion import to_series
from braided.tasks.groups import GroupedChunk
from braided.tasks.rows import row_class
from braided.tasks.slot_meter import SlotMeter

__all__ = ["Group", "GroupReader", "PandasReader", "RowReader"]


Group = tuple[int, bytes, tuple[Any, ...], Iterator[Any], int]
"""The rows of one key: slot, the key's bytes and values, rows, where they begin in the chunk."""


class RowReader:
    """Rows as Spark's worker makes them: each value as Arrow gives it to Python."""

    def __init__(self, program: ProcessorProgram, begin: int) -> None:
        width = len(program.input.fields)
        hidden = [i for i in program.key_positions if i >= width]
        keys = dict(zip(program.key_positions, program.key.names, strict=True))
        self._columns = [begin + i for i in (*hidden, *range(width))]
        names = [*(keys[i] for i in hidden), *program.input.names]
        self._make: Any = partial(tuple.__new__, row_class(names))

    def read(self, chunk: pa.RecordBatch) -> list[Row]:
        values = [_values(chunk.column(i)) for i in self._columns]
        return list(map(self._make, zip(*values, strict=True)))

    def keys(self, columns: list[pa.Array]) -> list[tuple[Any, ...]]:
        return list(zip(*map(_values, columns), strict=True))

    def part(self, rows: list[Row], begin: int, end: int) -> Iterator[Row]:
        return iter(rows[begin:end])

    def joined(self, parts: Iterator[tuple[list[Row], int, int]]) -> Iterator[Row]:
        for rows, begin, end in parts:
            yield from rows[begin:end]


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    return list(column.to_pylist())


class PandasReader:
    """Data frames of at most so many rows, with the types that Spark's worker gives them."""

    def __init__(self, program: ProcessorProgram, begin: int) -> None:
        self._settings = program.settings
        self._columns = list(range(begin, begin + len(program.input.fields)))
        self._names = program.input.names
        self._exact = program.exact_frames
        self._indexes: dict[int, pd.RangeIndex] = {}
        self._rows_max = self._settings.rows_max
        self._read_rows = self._read_bytes = 0

    def read(self, chunk: pa.RecordBatch) -> pd.DataFrame:
        rows = chunk.select(self._columns)
        self._measure(rows)
        series = self._series(rows)
        if not self._exact:
            series = list(map(_widened, series))
        frame = pd.DataFrame(dict(enumerate(series)))
        frame.columns = pd.Index(self._names)
        _ = frame._mgr.blknos  # found out here once, and taken over by every part of the frame
        return frame

    def _measure(self, rows: pa.RecordBatch) -> None:
        """Spark's rule: the row that brings a frame to the limit is its last, where a row counts
        as much as those that were read so far did on average.
        """
        self._read_rows += rows.num_rows
        self._read_bytes += rows.nbytes
        if self._read_bytes:
            by_bytes = -(-self._settings.bytes_max * self._read_rows // self._read_bytes)
            self._rows_max = min(self._settings.rows_max, max(1, by_bytes))

    def keys(self, columns: list[pa.Array]) -> list[tuple[Any, ...]]:
        names = [f"k{i}" for i in range(len(columns))]
        series = self._series(pa.RecordBatch.from_arrays(columns, names=names))
        if self._exact:
            numeric = [each.dtype.kind in "biuf" for each in series]
            return list(
                zip(
                    *(s.to_numpy() if n else s for s, n in zip(series, numeric, strict=True)),
                    strict=True,
                )
            )
        return list(zip(*series, strict=True))

    def _series(self, batch: pa.RecordBatch) -> list[pd.Series[Any]]:
        return to_series(batch, self._settings.timezone, self._settings.int_ext_dtype)

    def part(self, frame: pd.DataFrame, begin: int, end: int) -> Iterator[pd.DataFrame]:
        most = self._rows_max
        if end - begin <= most:
            return iter((self._slice(frame, begin, end),))
        bounds = [*range(begin, end, most), end]
        return (self._slice(frame, b, e) for b, e in pairwise(bounds))

    def joined(self, parts: Iterator[tuple[pd.DataFrame, int, int]]) -> Iterator[pd.DataFrame]:
        waiting, count = [], 0
        for frame, begin, end in parts:
            while begin < end:
                # The limit may have sunk below what waits since, with a chunk of larger rows.
                taken = min(end - begin, max(1, self._rows_max - count))
                waiting.append(frame[begin : begin + taken])
                begin, count = begin + taken, count + taken
                if count >= self._rows_max:
                    yield self._concat(waiting)
                    waiting, count = [], 0
        if waiting:
            yield self._concat(waiting)

    def _concat(self, frames: list[pd.DataFrame]) -> pd.DataFrame:
        return pd.concat(frames, ignore_index=True)

    def _slice(self, frame: pd.DataFrame, begin: int, end: int) -> pd.DataFrame:
        # What frame[begin:end].reset_index(drop=True) comes to, without what that looks at on the
        # way, which takes longer than most processors do with it.
        count = end - begin
        index = self._indexes.get(count)
        if index is None:
            index = self._indexes[count] = pd.RangeIndex(count)
        part = frame._mgr.get_slice(slice(begin, end), axis=1)
        # Views, because a name that is given to an index would be seen by the other keys.
        part.axes[:] = [part.axes[0].view(), index.view()]
        return pd.DataFrame._from_mgr(part, part.axes)


def _widened(series: pd.Series[Any]) -> pd.Series[Any]:
    """Spark makes frames from Python values, which have one size of number."""
    kind = series.dtype
    if isinstance(kind, np.dtype) and kind.kind in "if" and kind.itemsize < 8:
        return series.astype(np.int64 if kind.kind == "i" else np.float64)
    return series


class _Window(NamedTuple):
    """A chunk with its groups, as the processor takes them."""

    rows: Any
    begins: list[int]
    ends: list[int]
    slots: list[int]
    keys: list[bytes]
    values: list[tuple[Any, ...]]
    chunk: pa.RecordBatch


class GroupReader:
    """Iterates over the keys of a task's input, each with all its rows."""

    def __init__(
        self,
        chunks: Iterator[GroupedChunk],
        reader: RowReader | PandasReader,
        meter: SlotMeter | None = None,
    ) -> None:
        """`meter`: whose task reads them."""
        self._chunks = chunks
        self._meter = SlotMeter() if meter is None else meter
        self._reader: Any = reader
        self._next: tuple[_Window, int] | None = None
        self.chunk: pa.RecordBatch | None = None
        """The chunk in which the rows of the newest key begin."""
        self._bounds: tuple[list[int], list[int]] = ([], [])
        """Where in it the rows of each key begin and end."""

    def __iter__(self) -> Iterator[Group]:
        self._next = self._read()
        while self._next is not None:
            window, start = self._next
            self._next = None
            self.chunk, self._bounds = window.chunk, (window.begins, window.ends)
            last = len(window.begins) - 1
            rows, part = window.rows, self._reader.part
            _, begins, ends, slots, keys, values, _ = window
            for i in range(start, last):
                begin = begins[i]
                yield slots[i], keys[i], values[i], part(rows, begin, ends[i]), begin
            parts = self._parts(window, last)
            spanning = self._reader.joined(parts)
            yield slots[last], keys[last], values[last], spanning, begins[last]
            for _ in parts:
                pass  # rows that the processor has left

    def rows_from(self, begin: int, columns: range, names: list[str]) -> pa.Table:
        """The rows of a key that begin there, as far as they are in the chunk."""
        assert self.chunk is not None
        begins, ends = self._bounds
        rows = self.chunk.slice(begin, ends[begins.index(begin)] - begin)
        return pa.Table.from_arrays([rows.column(i) for i in columns], names=names)

    def _parts(self, window: _Window, last: int) -> Iterator[tuple[Any, int, int]]:
        """The rows of the last key of a window, which may go on in the ones after it."""
        key = window.keys[last]
        yield window.rows, window.begins[last], window.ends[last]
        while (following := self._read()) is not None:
            after, _ = following
            if after.keys[0] != key:
                self._next = (after, 0)
                return
            yield after.rows, after.begins[0], after.ends[0]
            if len(after.keys) > 1:
                self._next = (after, 1)
                return

    def _read(self) -> tuple[_Window, int] | None:
        """The next chunk, of which no group has been taken."""
        grouped = next(self._chunks, None)
        if grouped is None:
            return None
        with self._meter.sharing():
            window = _Window(
                rows=self._reader.read(grouped.chunk),
                begins=grouped.begins,
                ends=grouped.ends,
                slots=grouped.slots,
                keys=grouped.keys,
                values=self._reader.keys(grouped.key_columns),
                chunk=grouped.chunk,
            )
        return window, 0

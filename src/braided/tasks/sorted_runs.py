"""Rows that are too many for memory, put in order by way of a file: sorted runs, then merged.

Only the order columns stay in memory. From them follows which rows come next, and as every run is
sorted by itself, those are one stretch of each run: a piece is put together of stretches, and the
file is read through once. Whatever the rows, memory holds a run or a piece of them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["SortedRuns"]

_PIECE_ROWS = 16_384
_PIECE_BYTES = 16 << 20
"""A piece that comes back has at most so many rows and bytes, unless one row has more."""

Numbers = npt.NDArray[np.int64]


class SortedRuns:
    """Takes chunks, whose first columns are numbers to sort by, and gives their rows in order.

    The file has no name, so that nothing is left of it however the process ends.
    """

    def __init__(self, order: int, schema: pa.Schema, run_bytes: int) -> None:
        self._order = order
        self._run_bytes = run_bytes
        self._file = tempfile.TemporaryFile(prefix="braided-", dir=_local_dir())  # noqa: SIM115
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._columns: list[list[npt.NDArray[Any]]] = []
        """Of each run its order columns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        self._file.close()

    def add(self, chunk: pa.RecordBatch) -> None:
        if chunk.num_rows:
            self._waiting.append(chunk)
            self._waiting_bytes += chunk.nbytes
            if self._waiting_bytes >= self._run_bytes:
                self._end_run()

    def _end_run(self) -> None:
        run = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        columns = [np.array(run.column(i)) for i in range(self._order)]
        by_order = np.lexsort(columns[::-1])
        if (np.diff(by_order) < 0).any():
            run = run.take(pa.array(by_order))
            columns = [column[by_order] for column in columns]
        self._columns.append(columns)
        self._writer.write_batch(run)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """All rows in order; those that have the same come as they were added."""
        if self._waiting:
            self._end_run()
        self._writer.close()
        self._file.flush()
        lengths = [len(columns[0]) for columns in self._columns]
        columns = [np.concatenate(each) for each in zip(*self._columns, strict=True)]
        self._columns.clear()
        order = np.lexsort(columns[::-1])
        del columns
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
        runs = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        starts = np.cumsum([0, *lengths])
        for begin in range(0, len(order), _PIECE_ROWS):
            yield from _pieces(runs, starts, order[begin : begin + _PIECE_ROWS])


def _pieces(runs: list[pa.RecordBatch], starts: Numbers, rows: Numbers) -> Iterator[pa.RecordBatch]:
    """The rows of these numbers, which are a stretch of every run that has any of them."""
    by_number = np.argsort(rows)
    numbers = rows[by_number]
    bounds = np.searchsorted(numbers, starts)
    stretches = [
        runs[i].slice(int(numbers[bounds[i]] - starts[i]), int(bounds[i + 1] - bounds[i]))
        for i in np.flatnonzero(np.diff(bounds)).tolist()
    ]
    if len(rows) > 1 and sum(each.nbytes for each in stretches) > _PIECE_BYTES:
        middle = len(rows) // 2
        yield from _pieces(runs, starts, rows[:middle])
        yield from _pieces(runs, starts, rows[middle:])
        return
    ranks = np.empty(len(rows), np.int64)
    ranks[by_number] = np.arange(len(rows))
    # A copy in any case: a slice would keep the file, and so the disk, for as long as it lives.
    yield pa.concat_batches(stretches).take(pa.array(ranks))


def _local_dir() -> str | None:
    """Where Spark wants its executors to put what does not last; the system's place if unknown."""
    named = filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(","))
    return next((each for each in named if os.access(each, os.W_OK | os.X_OK)), None)

"""Rows of each place put in order by the task, where Spark has brought them together by place only.

To sort by one number is what Spark does fastest, by far (a radix sort). Rows of one place then come
as the shuffle has them, which is nearly always their order: a look at whole columns tells, and what
is out of order is sorted here. For that a place has to be complete, so the last one of a chunk
waits for the next chunk. A place of very many rows, that of a hot key, waits in a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["PlaceOrder"]

MEMORY_BYTES = 64 << 20
"""What the rows of one place may take of memory before they wait in a file."""
_PIECE_ROWS = 16_384
"""Rows of a chunk that comes from a file."""


class PlaceOrder:
    """Takes chunks of order columns, rows and places, the latter sorted."""

    def __init__(self, order: int, keep_order: bool) -> None:
        """`order`: how many order columns there are, which stay only if they are to be kept."""
        self._order = order
        self._keep_order = keep_order

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        """Rows of one place, which may go on."""
        for chunk in chunks:
            if not chunk.num_rows:
                continue
            places = _places(chunk)
            last = int(np.searchsorted(places, places[-1]))
            if held and _places(held[0])[0] != places[0]:
                yield self._given(held)
                held = []
            if last == 0:
                held.append(chunk)
                if sum(each.nbytes for each in held) >= MEMORY_BYTES:
                    rest = yield from self._by_file(held, chunks)
                    held = [] if rest is None else [rest]
                continue
            yield self._given([*held, chunk.slice(0, last)])
            held = [chunk.slice(last)]
        if held:
            yield self._given(held)

    def _given(self, chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Chunks, whose places ascend, as one in order."""
        chunk = chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
        order = [chunk.column(i).to_numpy() for i in range(self._order)]
        if not self._keep_order:
            kept = chunk.select(list(range(self._order, chunk.num_columns)))
        else:
            kept = chunk
        if not _descends(order, _places(chunk)).any():
            return kept
        return kept.take(pa.array(np.lexsort([*reversed(order), _places(chunk)])))

    def _by_file(
        self, held: list[pa.RecordBatch], chunks: Iterator[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, pa.RecordBatch | None]:
        """A place that is too large: its rows go to a file and come back in order, piece by piece.

        Its result is what of the last chunk that was read is of later places.
        """
        place, rest = _places(held[0])[0], None
        handle, path = tempfile.mkstemp(prefix="braided-", suffix=".arrow")
        os.close(handle)
        try:
            order: list[list[npt.NDArray[Any]]] = []
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, held[0].schema) as writer:
                while held:
                    chunk = held.pop(0)
                    order.append([np.array(chunk.column(i)) for i in range(self._order)])
                    writer.write_batch(chunk)
                    following = None if held or rest is not None else next(chunks, None)
                    if following is not None and following.num_rows:
                        end = int(np.searchsorted(_places(following), place, side="right"))
                        if end < following.num_rows:
                            rest = following.slice(end)
                        if end:
                            held.append(following.slice(0, end))
                    elif following is not None:
                        held.append(following)
            columns = [np.concatenate(each) for each in zip(*order, strict=True)]
            yield from self._from_file(path, np.lexsort(columns[::-1]))
        finally:
            os.unlink(path)
        return rest

    def _from_file(self, path: str, order: npt.NDArray[Any]) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(path) as file:
            whole = pa.ipc.open_file(file).read_all()
            if not self._keep_order:
                whole = whole.select(list(range(self._order, whole.num_columns)))
            for begin in range(0, len(order), _PIECE_ROWS):
                piece = whole.take(pa.array(order[begin : begin + _PIECE_ROWS]))
                yield from piece.combine_chunks().to_batches()


def _places(chunk: pa.RecordBatch) -> npt.NDArray[np.int64]:
    return np.asarray(chunk.column(chunk.num_columns - 1).to_numpy())


def _descends(
    order: list[npt.NDArray[Any]], places: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Where a row comes before the one above it, though both have one place."""
    undecided = places[1:] == places[:-1]
    descends = np.zeros(len(undecided), np.bool_)
    for column in order:
        descends |= undecided & (column[1:] < column[:-1])
        undecided = undecided & (column[1:] == column[:-1])
    return descends

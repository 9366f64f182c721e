"""Rows of each place put in order by the task, where Spark has brought them together by place only.

To sort by one number is what Spark does fastest, by far (a radix sort). Rows of one place then come
as the shuffle has them, which is nearly always their order: a look at whole columns tells, and what
is out of order is sorted here. For that a place has to be complete, so the last one of a chunk
waits for the next chunk. A place of very many rows, that of a hot key, waits in a file
(`tasks/sorted_runs.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.tasks.slot_meter import SlotMeter
from braided.tasks.sorted_runs import SortedRuns

__all__ = ["PlaceOrder"]

MEMORY_BYTES = 64 << 20
"""What the rows of one place may take of memory before they wait in a file."""


class PlaceOrder:
    """Takes chunks of order columns, rows and places, the latter sorted."""

    def __init__(self, order: int, keep_order: bool, meter: SlotMeter | None = None) -> None:
        """`order`: how many order columns there are, which stay only if they are to be kept.
        `meter`: that of the task, whose work it is to put them in order.
        """
        self._order = order
        self._keep_order = keep_order
        self._meter = SlotMeter() if meter is None else meter

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        """Rows of one place, which may go on."""
        rest: pa.RecordBatch | None = None
        """What was read along with a place that went through a file: a chunk like any other."""
        while (chunk := next(chunks, None) if rest is None else rest) is not None:
            rest = None
            if not chunk.num_rows:
                continue
            places = _places(chunk)
            last = int(np.searchsorted(places, places[-1]))
            if held and _places(held[0])[0] != places[0]:
                yield self._in_order_by_place(held)
                held = []
            if last == 0:
                held.append(chunk)
                if sum(each.nbytes for each in held) >= MEMORY_BYTES:
                    rest = yield from self._by_file(held, chunks)
                    held = []
                continue
            yield self._in_order_by_place([*held, chunk.slice(0, last)])
            held = [chunk.slice(last)]
        if held:
            yield self._in_order_by_place(held)

    def _in_order_by_place(self, chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Chunks, whose places ascend, as one in order."""
        with self._meter.ahead():
            chunk = chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
            order = [chunk.column(i).to_numpy() for i in range(self._order)]
            kept = self._kept(chunk)
            if not _descends(order, _places(chunk)).any():
                return kept
            return kept.take(pa.array(np.lexsort([*reversed(order), _places(chunk)])))

    def _kept(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        if self._keep_order:
            return chunk
        return chunk.select(list(range(self._order, chunk.num_columns)))

    def _by_file(
        self, held: list[pa.RecordBatch], chunks: Iterator[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, pa.RecordBatch | None]:
        """A place that is too large: its rows go to a file and come back in order, piece by piece.

        Its result is what of the last chunk that was read is of later places.
        """
        place, rest = _places(held[0])[0], None
        with SortedRuns(self._order, held[0].schema, MEMORY_BYTES) as runs:
            with self._meter.ahead():
                while held:
                    runs.add(held.pop(0))
            while rest is None and (chunk := next(chunks, None)) is not None:
                end = int(np.searchsorted(_places(chunk), place, side="right"))
                with self._meter.ahead():
                    runs.add(chunk.slice(0, end))
                if end < chunk.num_rows:
                    rest = chunk.slice(end)
            pieces = runs.merged()
            while True:
                with self._meter.ahead():
                    piece = next(pieces, None)
                if piece is None:
                    return rest
                yield self._kept(piece)


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

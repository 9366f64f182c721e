"""Rows brought together, so that a call has many keys and each of them with all its rows.

Rows come sorted by place, and those of a key have one. What has the last place of a chunk may go on
in the next one and waits for it. A place that is too much for one call comes in several, each with
the state that the one before has left: where it is divided follows from its own rows alone
(`division.py`), so that every attempt divides it alike.

How much comes together goes by the clock where the task may be told to stop: it is asked between
calls only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter_ns

import numpy as np
import pyarrow as pa

from braided.kinds.columnar.division import divisions
from braided.tasks.slot_meter import SlotMeter

__all__ = ["CALL_BYTES", "CALL_ROWS", "ChunkGathering"]

CALL_ROWS = 65_536
CALL_BYTES = 64 << 20
"""A call has about so many rows or bytes, however many there are; a key has no more."""
_CALL_NS = 50_000_000
"""What a call should take where a task may be told to stop."""

_rows_of_newest: dict[str, int] = {}
"""Rows of a call that the newest task of an operator in this process came to."""


class ChunkGathering:
    """Gathers the chunks of one task."""

    def __init__(self, operator: str, can_stop: bool, meter: SlotMeter | None = None) -> None:
        """`meter`: whose task they are of."""
        self._operator = operator
        self._can_stop = can_stop
        self._meter = SlotMeter() if meter is None else meter
        self._rows_max = _rows_of_newest.get(operator, 1) if can_stop else CALL_ROWS

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for chunk in _at_most(chunks):
            waiting.append(chunk)
            rows += chunk.num_rows
            size += chunk.nbytes
            if rows < CALL_ROWS and size < CALL_BYTES:
                one_place = _place(waiting[0], 0) == _place(chunk, -1)
                if one_place or rows < self._rows_max:
                    continue
            whole, ends = self._divided(waiting, _ends)
            begin = 0
            for end in ends:
                yield from self._measured(whole.slice(begin, end - begin))
                begin = end
            rest = whole.slice(begin)
            waiting, rows, size = [rest] if rest.num_rows else [], rest.num_rows, rest.nbytes
        if waiting:
            whole, ends = self._divided(waiting, _divisions)
            for begin, end in pairwise([0, *ends, rows]):
                if begin < end:
                    yield from self._measured(whole.slice(begin, end - begin))

    def _divided(
        self, chunks: list[pa.RecordBatch], divide: Callable[[pa.RecordBatch], list[int]]
    ) -> tuple[pa.RecordBatch, list[int]]:
        """The chunks as one, and where it is divided."""
        with self._meter.ahead():
            whole = _joined(chunks)
            return whole, divide(whole)

    def _measured(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        begun_ns = perf_counter_ns()
        yield chunk
        if self._can_stop:
            took_ns = max(1, perf_counter_ns() - begun_ns)
            fitting = chunk.num_rows * _CALL_NS // took_ns
            self._rows_max = _rows_of_newest[self._operator] = max(1, min(fitting, CALL_ROWS))


def _at_most(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in chunks that are no larger than a call."""
    for chunk in chunks:
        for begin in range(0, chunk.num_rows, CALL_ROWS):
            yield chunk.slice(begin, CALL_ROWS) if chunk.num_rows > CALL_ROWS else chunk


def _joined(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)


def _place(chunk: pa.RecordBatch, row: int) -> int:
    return int(chunk.column(chunk.num_columns - 1)[row].as_py())


def _ends(chunk: pa.RecordBatch) -> list[int]:
    """Where calls end: where a place is divided, and before the last one, which may go on."""
    ends = _divisions(chunk)
    places = chunk.column(chunk.num_columns - 1).to_numpy()
    last = int(np.searchsorted(places, places[-1], side="left"))
    return [*ends, last] if last > (ends[-1] if ends else 0) else ends


def _divisions(chunk: pa.RecordBatch) -> list[int]:
    return divisions(chunk, CALL_ROWS, CALL_BYTES)

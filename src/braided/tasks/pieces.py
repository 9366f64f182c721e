"""In which pieces a task takes its rows: it can be told to stop between two of them.

A chunk of Spark's may be the work of milliseconds or of minutes. Where a piece ends changes nothing
of what the task comes to, as long as it is told nothing: so pieces may go by the clock.
"""

from __future__ import annotations

from enum import Enum
from time import perf_counter_ns

import numpy as np
import pyarrow as pa

__all__ = ["Grain", "Pieces"]

_PIECE_NS = 50_000_000
"""What a piece of work should take; a task that is told to stop goes on for as long."""
_FIRST_ROWS = 8
_GROWTH = 8

_rows_of_newest: dict[str, int] = {}
"""Rows of a piece that the newest task of an operator in this process came to."""


class Grain(Enum):
    """Between what a task's input can be divided."""

    ROW = "row"
    KEY = "key"
    CHUNK = "chunk"


class Pieces:
    """The pieces of one task: few rows at first, then as many as are done in a moment."""

    def __init__(self, operator: str, grain: Grain) -> None:
        self._operator = operator
        self._grain = grain
        self._rows = _rows_of_newest.get(operator, _FIRST_ROWS)
        self._begun_ns = 0

    def begin(self, chunk: pa.RecordBatch, begin: int) -> int:
        """A piece begins with this row of a chunk, now; where it ends."""
        self._begun_ns = perf_counter_ns()
        rows: int = chunk.num_rows
        end = min(begin + self._rows, rows)
        if self._grain is Grain.CHUNK or end == rows:
            return rows
        if self._grain is Grain.KEY:
            # Rows are sorted by place, and those of one key have one.
            places = chunk.column(chunk.num_columns - 1).to_numpy()
            end = int(np.searchsorted(places, places[end - 1], side="right"))
        return end

    def end(self, rows: int) -> None:
        """The piece is done; it had so many rows."""
        took_ns = perf_counter_ns() - self._begun_ns
        fitting = max(1, rows * _PIECE_NS // max(took_ns, 1))
        if rows < self._rows < fitting:
            return  # a chunk ended before the piece did, which tells nothing of larger ones
        self._rows = min(fitting, self._rows * _GROWTH)
        _rows_of_newest[self._operator] = self._rows

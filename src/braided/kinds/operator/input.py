"""What an operator's hook is called with, from Arrow chunks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from braided.kinds.operator.program import Program

__all__ = ["InputReader"]


class InputReader:
    """Reads chunks as the operator wants them: Rows for `onRow`, tables for `onBatch`."""

    def __init__(self, program: Program, first_column: int, by_batch: bool) -> None:
        self._program = program
        self._first_column = first_column
        self._columns = list(range(first_column, first_column + len(program.input.fields)))
        if by_batch:
            self.read = self._read_table
        elif program.sides:
            self.read = self._read_sides
        else:
            self.read = self._read_rows

    def _read_table(self, chunk: pa.RecordBatch) -> Any:
        return pa.Table.from_batches([chunk.select(self._columns)])

    def _read_rows(self, chunk: pa.RecordBatch) -> Any:
        return self._program.rows.rows(chunk.select(self._columns))

    def _read_sides(self, chunk: pa.RecordBatch) -> Any:
        """Of two inputs, rows of either (`flow/two_sided.py`)."""
        program = self._program
        begin = self._first_column + 1 + len(program.key_positions)
        sides = []
        for factory in program.side_rows:
            end = begin + len(factory.schema.fields)
            sides.append(factory.rows_of(chunk.columns[begin:end]))
            begin = end
        side_of_row = chunk.column(self._first_column).to_pylist()
        return [sides[side][row] for row, side in enumerate(side_of_row)]

"""What an operator's hooks give out, on its way to Arrow chunks: rows wait, tables leave."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from braided.errors import OutputSchemaError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.tasks.emitter import OUTPUT_ROWS, Emitter, WaitingRows
from braided.tasks.order import Tag, Tags
from braided.tasks.output import OutputEncoder
from braided.tasks.slot_meter import SlotMeter
from braided.tasks.user_code import UserCode

__all__ = ["ARROW", "OperatorOutput"]

ARROW = (pa.Table, pa.RecordBatch)


class OperatorOutput:
    """Takes output rows and tables in the order in which they are given out."""

    def __init__(
        self,
        emitter: Emitter,
        encoder: OutputEncoder,
        runtime: OperatorRuntime,
        code: UserCode,
        meter: SlotMeter,
    ) -> None:
        waiting = WaitingRows(emitter, self._encode, meter)
        self.entered = waiting.entered
        self.rows: list[Any] = waiting.rows
        """Rows that wait, detached. Loops that must be quick add to them directly."""
        self.tags: Tags = waiting.tags
        self.ends: list[int] = [0]
        """How many rows waited when a key that gave some was done with, and in `owners` which key
        that was: a row that does not fit is found when many are encoded at once.
        """
        self.owners: list[Any] = [None]
        self._flush = waiting.flush
        self._runtime = runtime
        self._code = code
        self.encoder = encoder
        self.detach = encoder.detach
        self.lasting = encoder.lasting
        self._emitter = emitter

    def flush(self) -> Iterator[pa.RecordBatch]:
        """All that has waited, as chunks."""
        yield from self._flush()
        del self.ends[1:]
        del self.owners[1:]

    def closed(self, key: Any) -> None:
        """What is given out from now on is another key's."""
        if len(self.rows) != self.ends[-1]:
            self.ends.append(len(self.rows))
            self.owners.append(key)

    def _encode(self, rows: Sequence[Any]) -> tuple[pa.RecordBatch]:
        try:
            return (self.encoder.encode(rows),)
        except OutputSchemaError as error:
            owner = bisect_right(self.ends, error.index)
            key = self.owners[owner] if owner < len(self.owners) else self._runtime.op.key
            raise self._code.failure(error, key, rows[error.index]) from None

    def extend(self, items: Iterable[Any]) -> None:
        """Rows that need no tags."""
        self.rows.extend(map(self.detach, items))

    def extend_tagged(self, items: Iterable[Any], tag: Tag, first: int = 0) -> None:
        """Rows that one row, or one timer, was the cause of, numbered from `first`."""
        detach = self.detach
        for number, item in enumerate(items, first):
            self.rows.append(detach(item))
            self.tags.append((*tag, number))

    def take(self, items: Iterable[Any], tag: Tag | None) -> Iterator[pa.RecordBatch]:
        """What `onBatch` gave out for one call: rows and tables."""
        number = 0
        for item in items:
            if isinstance(item, ARROW):
                yield from self.emit_table(item, tag, number)
                number += item.num_rows
                continue
            self.rows.append(self.detach(item))
            if tag is not None:
                self.tags.append((*tag, number))
            number += 1
            if len(self.rows) >= OUTPUT_ROWS:
                yield from self.flush()

    def emit_table(
        self, table: pa.Table | pa.RecordBatch, tag: Tag | None = None, number: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Arrow leaves as it is, after the rows that were given out before it."""
        if self.rows:
            yield from self.flush()
        for chunk in self.encoder.encode_arrow(table):
            tags: Tags = []
            if tag is not None:
                tags = [(*tag, number + row) for row in range(chunk.num_rows)]
            number += chunk.num_rows
            yield self._emitter.emit(chunk, tags)

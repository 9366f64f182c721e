"""The way out of a task: output becomes Arrow chunks that Spark, or the next operator, takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from braided.tasks.columns import order_columns
from braided.tasks.key_pairs import KeyPairs
from braided.tasks.order import Tag, Tags
from braided.tasks.row_digest import RowDigest
from braided.tasks.slot_meter import SlotMeter
from braided.tasks.spec import ChannelSpec

__all__ = ["OUTPUT_ROWS", "Emitter", "WaitingRows"]

OUTPUT_ROWS = 8192
"""Rows per Arrow chunk that a task gives away."""


class Emitter:
    """Counts the output of a task and, where rows keep their order, gives it its order columns."""

    def __init__(self, spec: ChannelSpec, batch: int = 0) -> None:
        self.rows_out = 0
        self.keep_order = spec.keep_order
        self._columns = spec.order + 1
        self._names = order_columns(self._columns)
        self._digest = RowDigest()
        self.pairs = None if spec.pairs is None else KeyPairs(spec.pairs, batch)
        """Counts with which keys of the next operators the rows go on; None where nobody asks."""

    def emit(self, chunk: pa.RecordBatch, tags: Sequence[Tag]) -> pa.RecordBatch:
        """The chunk as it leaves; it needs tags only where rows keep their order."""
        order: list[pa.Array] = []
        if self.keep_order:
            order = [pa.array(column, pa.int64()) for column in zip(*tags, strict=True)]
            if not order:
                order = [pa.array([], pa.int64())] * self._columns
        return self.emit_ordered(chunk, order)

    def emit_ordered(
        self,
        chunk: pa.RecordBatch,
        order: Sequence[pa.Array],
        traits: pa.RecordBatch | None = None,
    ) -> pa.RecordBatch:
        """The same with tags that are columns already.

        `traits` stands for the chunk where another attempt would not give out the same.
        """
        if self.pairs is not None:
            self.pairs.emitted(chunk, self.rows_out)
        self.rows_out += chunk.num_rows
        if not self.keep_order:
            return chunk
        ordered = self._tagged(chunk, order)
        # A later operator reads this through a shuffle, which Spark may run again: whether a
        # second run gave the same rows must be seen.
        self._digest.add(ordered if traits is None else self._tagged(traits, order))
        return ordered

    def _tagged(self, chunk: pa.RecordBatch, order: Sequence[pa.Array]) -> pa.RecordBatch:
        names = [*self._names, *chunk.schema.names]
        return pa.RecordBatch.from_arrays([*order, *chunk.columns], names=names)

    def digest(self) -> str:
        """Equal for two attempts that gave out the same; empty where that does not matter."""
        return self._digest.hexdigest() if self.keep_order else ""


class WaitingRows:
    """Output that waits for more, because to encode many rows at once is far cheaper.

    `rows` and `tags` stay the same lists, so that the loop that fills them can hold on to them. To
    encode them is work for the slots that they are of.
    """

    def __init__(
        self,
        emitter: Emitter,
        encode: Callable[[Sequence[Any]], Iterable[pa.RecordBatch]],
        meter: SlotMeter,
    ) -> None:
        self.rows: list[Any] = []
        """Whatever `encode` makes chunks of."""
        self.tags: Tags = []
        """Of each row, where rows keep their order."""
        self.emitter = emitter
        self._encode = encode
        self._meter = meter
        self._entered: list[tuple[int, int]] = []
        """The slots that the task went to, each with how many waited by then."""

    def entered(self, slot: int) -> None:
        """What is given out from now on is this slot's."""
        self._entered.append((slot, len(self.rows)))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """All that has waited, as chunks."""
        chunks, begin = [], 0
        with self._meter.sharing(self._by_slot()):
            for chunk in self._encode(self.rows):
                end = begin + chunk.num_rows
                chunks.append(self.emitter.emit(chunk, self.tags[begin:end]))
                begin = end
        self.rows.clear()
        self.tags.clear()
        self._entered = [(slot, 0) for slot, _ in self._entered[-1:]]
        yield from chunks

    def _by_slot(self) -> list[tuple[int, int]]:
        bounds = [*self._entered, (-1, len(self.rows))]
        counts = ((slot, end - begin) for (slot, begin), (_, end) in pairwise(bounds))
        return [(slot, count) for slot, count in counts if count]

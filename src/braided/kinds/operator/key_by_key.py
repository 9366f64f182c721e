"""The plain way: opens a key, calls the operator with its rows, and goes on to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from braided.kinds.operator.way import KeyGroup, OperatorParts
from braided.store.history.manifest import DeadFile
from braided.tasks.channel import Channel
from braided.tasks.emitter import OUTPUT_ROWS
from braided.tasks.failure import Words
from braided.tasks.order import Tag, Tags

__all__ = ["CALL_ROWS", "KeyByKey", "TableCalls", "collect_fired"]

CALL_ROWS = 10_000
CALL_BYTES = 32 << 20
"""`onBatch` gets the rows of a key in one call unless there are more than this."""


class KeyByKey:
    """Goes through the rows in order, key by key. An error of the operator ends the task."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts = parts
        self._tables = TableCalls(parts, self._call_table)

    def run(
        self, rows: Any, tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        run = self._tables.run if self._parts.hook.by_batch else self._run_rows
        return run(rows, tags, groups)

    def _run_rows(
        self, rows: list[Any], tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        keys, (hook, _, call, checked), output, _ = self._parts
        out, detach, extend_tagged = output.rows, output.detach, output.extend_tagged
        for begin, end, slot, key, key_row in groups:
            if key != keys.key or slot != keys.slot_number:
                keys.open(slot, key, key_row)
            row = None
            try:
                for index in range(begin, end):
                    row = rows[index]
                    items = call(row) if checked is None else checked(call(row), hook)
                    if tags is None:
                        out.extend(map(detach, items))
                    else:
                        extend_tagged(items, tags[index])
                    if len(out) >= OUTPUT_ROWS:
                        yield from output.flush()
            except Exception as error:
                raise keys.code.failure(error, key_row, row) from None
            keys.row = row

    def _call_table(self, table: pa.Table, tag: Tag | None) -> Iterator[pa.RecordBatch]:
        keys, (hook, _, call, checked), output, _ = self._parts
        try:
            items = call(table) if checked is None else checked(call(table), hook)
            yield from output.take(items, tag)
        except Exception as error:
            raise keys.code.failure(error, keys.runtime.op.key, table) from None

    def end(self) -> Iterator[pa.RecordBatch]:
        yield from self._tables.call_waiting()
        self._parts.keys.close()

    def fire(self, ms: int, order: tuple[Tag, int] | None) -> None:
        keys = self._parts.keys
        try:
            collect_fired(self._parts, ms, order)
        except Exception as error:
            what = Words(f"timer of {ms} ms")
            raise keys.code.failure(error, keys.runtime.op.key, what) from None

    def write_dead(self, channel: Channel) -> DeadFile | None:
        return None


def collect_fired(parts: OperatorParts, ms: int, order: tuple[Tag, int] | None) -> None:
    """Calls `onTimer` for a timer of the open key and takes what it gives out."""
    runtime, output = parts.keys.runtime, parts.output
    items = runtime.rows_of(runtime.fire(ms), "onTimer")
    if order is None:
        output.extend(items)
    else:
        output.extend_tagged(items, *order)


class TableCalls:
    """Gathers the rows of the open key into as few calls of `onBatch` as can be.

    `call` is handed a table and the tag of its first row.
    """

    def __init__(
        self,
        parts: OperatorParts,
        call: Callable[[pa.Table, Tag | None], Iterator[pa.RecordBatch]],
    ) -> None:
        self._keys = parts.keys
        self._call = call
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._tag: Tag | None = None

    def run(
        self, table: pa.Table, tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        keys = self._keys
        for begin, end, slot, key, key_row in groups:
            if key != keys.key or slot != keys.slot_number:
                yield from self.call_waiting()
                keys.open(slot, key, key_row)
            if not self._waiting:
                self._tag = tags[begin] if tags is not None else None
            self._waiting.append(table.slice(begin, end - begin))
            self._waiting_rows += end - begin
            while self._waiting_rows >= CALL_ROWS or (
                end == table.num_rows and sum(t.nbytes for t in self._waiting) >= CALL_BYTES
            ):
                yield from self.call_waiting(CALL_ROWS)
                if tags is not None and self._waiting_rows:
                    self._tag = tags[end - self._waiting_rows]

    def call_waiting(self, rows_max: int | None = None) -> Iterator[pa.RecordBatch]:
        """Hands over the rows that wait, at most so many of them."""
        if not self._waiting_rows:
            return
        whole = self._waiting[0] if len(self._waiting) == 1 else pa.concat_tables(self._waiting)
        if rows_max is not None and whole.num_rows > rows_max:
            table, rest = whole.slice(0, rows_max), whole.slice(rows_max)
            self._waiting, self._waiting_rows = [rest], rest.num_rows
        else:
            table = whole
            self._waiting, self._waiting_rows = [], 0
        yield from self._call(table, self._tag)

"""`braided.onError=divert`: a row whose operator raises goes to the dead letters.

The key is then as it was before the row: fields, timers and output. To be able to go back, the
key's record is encoded after every call of a hook and not once per key and batch; this also finds a
value that can't be stored at the row that made it. Output is checked per call for the same reason.

Diverted rows are prepared like everything else of a batch: a file that counts when the manifest
names it. For `onBatch` all rows of the call are diverted, for `onTimer` the timer, with no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from braided.errors import CheckpointError, DefinitionError
from braided.kinds.operator.dead_letters import DeadLetters
from braided.kinds.operator.key_by_key import TableCalls, collect_fired
from braided.kinds.operator.output import ARROW
from braided.kinds.operator.way import KeyGroup, OperatorParts
from braided.tasks.emitter import OUTPUT_ROWS
from braided.tasks.failure import Words, diverted
from braided.tasks.order import Tag, Tags

__all__ = ["Diverting"]

# Not the row's fault: every row would be diverted, or state has been lost.
_FATAL = (DefinitionError, CheckpointError, MemoryError)


class Diverting:
    """Goes key by key, and goes on after an error of the operator."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts = parts
        self._tables = TableCalls(parts, self._call_table)
        self._dead = DeadLetters()
        self.write_dead = self._dead.write
        self._saved: tuple[bytes | None, bool] = (None, False)
        self._saved_opening = 0

    def run(
        self, rows: Any, tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        run = self._tables.run if self._parts.hook.by_batch else self._run_rows
        return run(rows, tags, groups)

    def _run_rows(
        self, rows: list[Any], tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        parts = self._parts
        keys, hook, output = parts.keys, parts.hook, parts.output
        for begin, end, slot, key, key_row in groups:
            if key != keys.key or slot != keys.slot_number:
                keys.open(slot, key, key_row)
            for index in range(begin, end):
                row = rows[index]

                def call(row: Any = row, index: int = index) -> None:
                    items = keys.runtime.rows_of(hook.call(row), hook.name)
                    if tags is None:
                        output.extend(items)
                    else:
                        output.extend_tagged(items, tags[index])

                error = self._attempt(call, row)
                if error is not None:
                    self._dead.add(error, keys.runtime.op.key, row)
                if len(output.rows) >= OUTPUT_ROWS:
                    yield from output.flush()

    def _call_table(self, table: pa.Table, tag: Tag | None) -> Iterator[pa.RecordBatch]:
        parts = self._parts
        runtime, hook, encoder = parts.keys.runtime, parts.hook, parts.output.encoder
        items: list[Any] = []

        def call() -> None:
            rows = []
            for item in runtime.rows_of(hook.call(table), hook.name):
                if isinstance(item, ARROW):
                    encoder.encode_arrow(item)
                    items.append(item)
                else:
                    rows.append(encoder.detach(item))
                    items.append(rows[-1])
            encoder.check(rows)

        error = self._attempt(call, table)
        if error is None:
            yield from parts.output.take(items, tag)
            return
        for batch in table.to_batches():
            for row in parts.program.rows.rows(batch):
                self._dead.add(error, runtime.op.key, row)

    def end(self) -> Iterator[pa.RecordBatch]:
        yield from self._tables.call_waiting()
        self._parts.keys.close()

    def fire(self, ms: int, order: tuple[Tag, int] | None) -> None:
        op = self._parts.keys.runtime.op
        what = Words(f"timer of {ms} ms")
        error = self._attempt(lambda: collect_fired(self._parts, ms, order), what)
        if error is not None:
            op._timers.discard(ms)
            self._dead.add(error, op.key, None)

    def _attempt(self, call: Callable[[], None], what: Any) -> str | None:
        """Does something with the open key, wholly or not at all; the error if not."""
        keys, output = self._parts.keys, self._parts.output
        if self._saved_opening != keys.keys_touched:
            # Another key has been opened, or the same once more: it is as its record says.
            self._saved_opening = keys.keys_touched
            self._saved = keys.runtime.saved_at_open()
        rows, tags = len(output.rows), len(output.tags)
        try:
            call()
            if len(output.rows) > rows:
                output.encoder.check(output.rows[rows:])
            self._saved = keys.runtime.save()
        except _FATAL as error:
            raise keys.code.failure(error, keys.runtime.op.key, what) from None
        except Exception as error:
            del output.rows[rows:]
            del output.tags[tags:]
            keys.runtime.restore(self._saved)
            return diverted(error)
        return None

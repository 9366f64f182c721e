"""`braided.onError=divert`: a row whose operator raises goes to the dead letters.

The key is then as it was before the row: fields, timers and output. To be able to go back, the
key's record is encoded after every call of a hook and not once per key and batch; this also finds a
value that can't be stored at the row that made it. Output is checked per call for the same reason.

Diverted rows are prepared like everything else of a batch: a file that counts when the manifest
names it. For `onBatch` all rows of the call are diverted, for `onTimer` the timer, with no row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from braided.errors import CheckpointError, DefinitionError
from braided.kinds.operator.row_json import row_json
from braided.kinds.operator.run import OUTPUT_ROWS, ChannelRun, Group, Tags
from braided.store.history.manifest import DeadFile
from braided.tasks.failure import diverted
from braided.tasks.reports import ChannelReport

__all__ = ["DEAD_SCHEMA", "DivertingRun"]

DEAD_SCHEMA = pa.schema(
    [
        ("error", pa.string()),
        ("operator", pa.string()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("batch", pa.int64()),
    ]
)
# Not the row's fault: every row would be diverted, or state has been lost.
_FATAL = (DefinitionError, CheckpointError, MemoryError)


class DivertingRun(ChannelRun):
    """A task that goes on after an error of its operator."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._dead: list[tuple[str, str, str | None]] = []
        self._saved: tuple[bytes | None, bool] = (None, False)

    def _open_key(self, slot: int, key: bytes, key_row: Any) -> None:
        super()._open_key(slot, key, key_row)
        self._saved = self.runtime.saved_at_open()

    def _attempt(self, act: Callable[[], None], what: Any) -> str | None:
        """Does something with the open key, wholly or not at all; the error if not."""
        out, tags = len(self.out), len(self.tags)
        try:
            act()
            if len(self.out) > out:
                self.program.encoder.check(self.out[out:])
            self._saved = self.runtime.save()
        except _FATAL as error:
            raise self._failed(error, self.runtime.op.key, what) from None
        except Exception as error:
            del self.out[out:]
            del self.tags[tags:]
            self.runtime.restore(self._saved)
            return diverted(error)
        return None

    def _divert(self, error: str, row: Any) -> None:
        text = None if row is None else row_json(row)
        self._dead.append((error, row_json(self.runtime.op.key), text))

    # -- rows ------------------------------------------------------------------------------

    def _run_rows(
        self, rows: list[Any], tags: Tags | None, groups: Sequence[Group]
    ) -> Iterator[pa.RecordBatch]:
        detach = self.program.encoder.detach
        for begin, end, slot, key, key_row in groups:
            if key != self.key:
                self._open_key(slot, key, key_row)
            self.rows[slot] += end - begin
            for index in range(begin, end):
                row = rows[index]

                def act(row: Any = row, index: int = index) -> None:
                    given = self.runtime.rows_of(self.call(row), "onRow")
                    if tags is None:
                        self.out.extend(map(detach, given))
                    else:
                        self._extend_tagged(given, tags[index])

                error = self._attempt(act, row)
                if error is not None:
                    self._divert(error, row)
                if len(self.out) >= OUTPUT_ROWS:
                    yield self._flush()

    def _call_batch(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        table = self._take_pending(limit)
        if table is None:
            return
        items: list[Any] = []

        def act() -> None:
            encoder = self.program.encoder
            rows = []
            for item in self.runtime.rows_of(self.call(table), "onBatch"):
                if isinstance(item, pa.Table | pa.RecordBatch):
                    encoder.encode_arrow(item)
                    items.append(item)
                else:
                    rows.append(encoder.detach(item))
                    items.append(rows[-1])
            encoder.check(rows)

        error = self._attempt(act, table)
        if error is None:
            yield from self._give(items)
            return
        for batch in table.to_batches():
            for row in self.program.rows.rows(batch):
                self._divert(error, row)

    # -- timers ----------------------------------------------------------------------------

    def _fire(self, ms: int, place: int | None) -> None:
        error = self._attempt(lambda: self._collect_fired(ms, place), f"timer of {ms} ms")
        if error is not None:
            self.runtime.op._timers.discard(ms)
            self._divert(error, None)

    # -- the end ---------------------------------------------------------------------------

    def finish(self) -> ChannelReport:
        report = super().finish()
        if not self._dead:
            return report
        digest = hashlib.blake2b(digest_size=16)
        for _, key, row in self._dead:
            digest.update(msgspec.msgpack.encode((key, row)))
        errors, keys, rows = zip(*self._dead, strict=True)
        count = len(self._dead)
        columns = [errors, [self.program.name] * count, keys, rows, [self.batch.batch] * count]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, DEAD_SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(arrays, schema=DEAD_SCHEMA), sink)
        name = f"dead/{self.attempt}.parquet"
        self.files.write(name, sink.getvalue())
        dead = DeadFile(self.program.name, name, digest.hexdigest(), count)
        return msgspec.structs.replace(report, dead=dead)

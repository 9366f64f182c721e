"""One channel of an operator in one batch: rows in, rows out, changes of state.

A task is a pure function of its slots' state at the version before and its ordered rows. It reads
Arrow chunks sorted by slot, the key's hash and order, runs the operator key by key, gives its
output away in Arrow chunks, and at the end writes one changelog and reports. Nothing it writes
counts until the manifest names it.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, TypeAlias

import pyarrow as pa

from braided import failpoints
from braided.errors import BraidedError, StateValueError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.store.slots.channel_state import SlotState
from braided.store.slots.keys import record_key, timer_bound, timer_key, timer_parts, unwrap, wrap
from braided.store.variables.moving import move_key
from braided.tasks.carry import Cut
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT, TIMER_SEQUENCE, order_columns
from braided.tasks.failure import operator_failure
from braided.tasks.heavy_keys import HeavyKeys
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, TaskSpec

__all__ = [
    "ARROW",
    "CALL_ROWS",
    "OUTPUT_ROWS",
    "ChannelRun",
    "Group",
    "Tags",
]

OUTPUT_ROWS = 8192
"""Rows per Arrow chunk that a task gives away."""
CALL_ROWS = 10_000
CALL_BYTES = 32 << 20
"""`onBatch` gets the rows of a key in one call unless there are more than this."""
ARROW = (pa.Table, pa.RecordBatch)

Group: TypeAlias = tuple[int, int, int, bytes, Any]
"""A run of rows of one key: where it begins and ends, the slot, the key's bytes and its row."""
Tags: TypeAlias = list[tuple[int, ...]]
"""The order columns of each row."""


log = logging.getLogger("braided")


class ChannelRun(Channel):
    """The task itself: rows in order, key by key."""

    def __init__(self, spec: TaskSpec, program: Any, batch: BatchSpec, channel: int) -> None:
        super().__init__(spec, program.name, batch, channel)
        self.spec = spec
        self.program: Any = program
        self.runtime: Any = self._runtime()
        self.slot_started_ns, self.slot_waited_ns = self.started_ns, 0
        self.cut: Cut | None = None
        self.call: Callable[[Any], Any] = _no_rows
        self.checked: Callable[[Any, str], Iterable[Any]] | None = None
        # the open key
        self.key: bytes | None = None
        self.suffix = b""
        self.long_key = False
        self.slot: SlotState | None = None
        self.slot_number = -1
        # what is on its way out
        self.pending: list[pa.Table] = []
        self.pending_rows = 0
        self.pending_tag: tuple[int, ...] | None = None
        self.out: list[Any] = []
        self.tags: list[tuple[int, ...]] = []
        self.heavy = HeavyKeys()

    def _runtime(self) -> Any:
        """What runs user code."""
        batch = self.batch
        return OperatorRuntime(
            self.program.operator,
            batch.batch_time_ms,
            batch.watermark_ms if batch.watermark_ms > 0 else None,
            self.spec.meta.history,
        )

    # -- the way of the rows ---------------------------------------------------------------

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec, program = self.spec, self.program
        first = spec.order if spec.keep_order else 0
        width = len(program.input.fields)
        self.cut = Cut(chunks, self.batch.cut, first + width)
        by_batch = hasattr(program.operator, "onBatch") and not program.sides
        op: Any = self.runtime.op
        if program.sides:
            self.call = self._either
        else:
            self.call = getattr(op, "onBatch" if by_batch else "onRow", _no_rows)
        # What a generator function returns needs no look.
        generator = inspect.isgeneratorfunction(self.call)
        self.checked = None if generator else self.runtime.rows_of
        self._rehouse()
        for chunk in self.timed(self.cut.through()):
            if chunk.num_rows:
                self.rows_in += chunk.num_rows
                failpoints.reach("task-rows")
                groups, tags = self._groups(chunk, first), self._order_of(chunk)
                if by_batch:
                    rows = pa.Table.from_batches([chunk.select(range(first, first + width))])
                    yield from self._run_tables(rows, tags, groups)
                else:
                    yield from self._run_rows(self._rows_of(chunk, first, width), tags, groups)
        if by_batch:
            yield from self._call_batch()
        self._close_key()
        if hasattr(program.operator, "onTimer"):
            yield from self._fire_timers()
        self._leave_slot()
        if self.out:
            yield self._flush()

    def _groups(self, chunk: pa.RecordBatch, first: int) -> list[Group]:
        """The runs of one key in a chunk."""
        program = self.program
        columns = [chunk.column(first + position) for position in program.key_positions]
        starts = program.keys.changes(columns).nonzero()[0]
        heads = [column.take(pa.array(starts)) for column in columns]
        places = chunk.column(chunk.num_columns - 1).to_numpy()[starts]
        slots = (places >> PLACE_SHIFT).tolist()
        self.state.prepare(set(slots))
        begins = starts.tolist()
        ends = [*begins[1:], chunk.num_rows]
        keys = program.keys.encode_batch(heads)
        self.heavy.add(keys, places, starts, chunk.num_rows)
        return list(zip(begins, ends, slots, keys, program.key_rows.rows_of(heads), strict=True))

    def _run_rows(
        self, rows: list[Any], tags: Tags | None, groups: Sequence[Group]
    ) -> Iterator[pa.RecordBatch]:
        call, checked, out = self.call, self.checked, self.out
        detach = self.program.encoder.detach
        for begin, end, slot, key, key_row in groups:
            if key != self.key:
                self._open_key(slot, key, key_row)
            self.rows[slot] += end - begin
            row = None
            try:
                for index in range(begin, end):
                    row = rows[index]
                    given = call(row) if checked is None else checked(call(row), "onRow")
                    if tags is None:
                        out.extend(map(detach, given))
                    else:
                        self._extend_tagged(given, tags[index])
                    if len(out) >= OUTPUT_ROWS:
                        yield self._flush()
            except Exception as error:
                raise self._failed(error, key_row, row) from None

    def _rows_of(self, chunk: pa.RecordBatch, first: int, width: int) -> list[Any]:
        """What the operator is called with; of two inputs, rows of either (`flow/two_sided.py`)."""
        program = self.program
        if not program.sides:
            rows: list[Any] = program.rows.rows(chunk.select(range(first, first + width)))
            return rows
        begin = first + 1 + len(program.key_positions)
        sides = []
        for factory in program.side_rows:
            end = begin + len(factory.schema.fields)
            sides.append(factory.rows_of(chunk.columns[begin:end]))
            begin = end
        return [sides[side][i] for i, side in enumerate(chunk.column(first).to_pylist())]

    def _either(self, row: Any) -> Any:
        op: Any = self.runtime.op
        left = type(row) is self.program.side_rows[0].row_class
        return op.onLeft(row) if left else op.onRight(row)

    def _run_tables(
        self, table: pa.Table, tags: Tags | None, groups: Sequence[Group]
    ) -> Iterator[pa.RecordBatch]:
        for begin, end, slot, key, key_row in groups:
            if key != self.key:
                yield from self._call_batch()
                self._open_key(slot, key, key_row)
                self.pending_rows = 0
                self.pending = []
            self.rows[slot] += end - begin
            if not self.pending:
                self.pending_tag = tags[begin] if tags is not None else None
            self.pending.append(table.slice(begin, end - begin))
            self.pending_rows += end - begin
            while self.pending_rows >= CALL_ROWS or (
                end == table.num_rows and sum(t.nbytes for t in self.pending) >= CALL_BYTES
            ):
                yield from self._call_batch(CALL_ROWS)
                if tags is not None and self.pending_rows:
                    self.pending_tag = tags[end - self.pending_rows]

    def _call_batch(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Hands the open key's pending rows, at most `limit` of them, to `onBatch`."""
        table = self._take_pending(limit)
        if table is None:
            return
        try:
            given = self.call(table)
            if self.checked is not None:
                given = self.checked(given, "onBatch")
            yield from self._give(given)
        except Exception as error:
            raise self._failed(error, self.runtime.op.key, table) from None

    def _take_pending(self, limit: int | None) -> pa.Table | None:
        if self.key is None or not self.pending_rows:
            return None
        whole = self.pending[0] if len(self.pending) == 1 else pa.concat_tables(self.pending)
        if limit is not None and whole.num_rows > limit:
            table, rest = whole.slice(0, limit), whole.slice(limit)
            self.pending, self.pending_rows = [rest], rest.num_rows
        else:
            table = whole
            self.pending, self.pending_rows = [], 0
        return table

    def _give(self, given: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """What `onBatch` gave out, rows and tables."""
        number = 0
        for item in given:
            if isinstance(item, ARROW):
                yield from self._flush_arrow(item, number)
                number += item.num_rows
                continue
            self.out.append(self.program.encoder.detach(item))
            if self.pending_tag is not None:
                self.tags.append((*self.pending_tag, number))
            number += 1
            if len(self.out) >= OUTPUT_ROWS:
                yield self._flush()

    # -- keys and slots --------------------------------------------------------------------

    def _open_key(self, slot: int, key: bytes, key_row: Any) -> None:
        self._close_key()
        if slot != self.slot_number:
            self._enter_slot(slot)
        self.key = key
        self.suffix, self.long_key = record_key(key)
        assert self.slot is not None
        raw = self.slot.get(self.suffix)
        if raw is not None and self.long_key:
            raw = unwrap(self.suffix, raw)[1]
        self.runtime.open(key_row, raw)
        self.keys_touched += 1

    def _close_key(self) -> None:
        if self.key is None:
            return
        slot, key = self.slot, self.key
        assert slot is not None
        record = self._record()
        if record is None:
            slot.delete(self.suffix)
        else:
            slot.put(self.suffix, wrap(key, record) if self.long_key else record)
        self._put_timers(slot, key)
        self.key = None

    def _record(self) -> bytes | None:
        """The record of the key that is lent the operator, as it is now."""
        try:
            record: bytes | None = self.runtime.close()
        except StateValueError as error:
            where = f"key {self.runtime.op.key!r}, batch {self.batch.batch}, which is not committed"
            raise StateValueError(f"{error} ({where})") from None
        return record

    def _put_timers(self, slot: SlotState, key: bytes) -> None:
        """Of the key closed last."""
        for ms in self.runtime.removed:
            slot.delete(timer_key(ms, key)[0])
        for ms in self.runtime.added:
            slot.put(*timer_key(ms, key))

    def _enter_slot(self, slot: int) -> None:
        self._leave_slot()
        try:
            self.runtime.start()
        except Exception as error:
            raise self._failed(error, None, "onOpen, before the first key") from None
        self.slot = self.state.slot(slot)
        self.slot_number = slot
        self.rows.setdefault(slot, 0)

    def _leave_slot(self) -> None:
        now = perf_counter_ns()
        if self.slot_number >= 0:
            spent = now - self.slot_started_ns - (self.waited_ns - self.slot_waited_ns)
            self.busy_ns[self.slot_number] = self.busy_ns.get(self.slot_number, 0) + spent
        self.slot_started_ns, self.slot_waited_ns = now, self.waited_ns
        self.slot_number = -1

    def _rehouse(self) -> None:
        """Before the first row: keys that are pinned, or no longer, change slots."""
        for move in self.batch.rehoused.get(self.program.name, {}).get(self.channel, ()):
            self.state.prepare((move.donor, move.taker))
            donor, taker = self.state.slot(move.donor), self.state.slot(move.taker)
            self._housed(move.key, move_key(move.key, donor, taker))
            # A timer that is due fires here, although the driver knows it in the other slot.
            self.rows.setdefault(move.donor, 0)
            self.rows.setdefault(move.taker, 0)

    def _housed(self, key: bytes, pieces: list[bytes]) -> None:
        """A key has been moved, and where the pieces of its variables lie: operators have none."""

    # -- timers ----------------------------------------------------------------------------

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fires what is due in the slots touched and in those the driver says have something due.

        A timer set here for a time that has passed fires in the next batch, so that this one ends.
        """
        spec, batch = self.spec, self.batch
        now_ms = (
            batch.watermark_ms if self.program.time_mode == "EventTime" else batch.batch_time_ms
        )
        touched = {*self.rows, *batch.due.get(self.program.name, {}).get(self.channel, ())}
        self.state.prepare(touched)
        due = [
            (*timer_parts(suffix, value), number)
            for number in sorted(touched)
            for suffix, value in self.state.slot(number).scan(b"t", timer_bound(now_ms + 1))
        ]
        if not due:
            return
        keys = [key for _, key, _ in due]
        key_rows = self.program.key_rows.rows_of(self.program.keys.decode_batch(keys))
        places = self._hash_bits(keys) if spec.keep_order else None
        for index, ((ms, key, number), key_row) in enumerate(zip(due, key_rows, strict=True)):
            self._open_key(number, key, key_row)
            if ms not in (self.runtime.op._timers or ()):
                continue  # an earlier timer of the key took this one back
            self._fire(ms, None if places is None else places[index])
            self._close_key()
            if len(self.out) >= OUTPUT_ROWS:
                yield self._flush()

    def _fire(self, ms: int, place: int | None) -> None:
        """Fires one timer of the open key; `place` orders its output among others of its time."""
        try:
            self._collect_fired(ms, place)
        except Exception as error:
            raise self._failed(error, self.runtime.op.key, f"timer of {ms} ms") from None

    def _collect_fired(self, ms: int, place: int | None) -> None:
        given = self.runtime.rows_of(self.runtime.fire(ms), "onTimer")
        if place is None:
            self.out.extend(map(self.program.encoder.detach, given))
        else:
            tag = (0, TIMER_SEQUENCE + ms, *[0] * (self.spec.order - 2))
            self._extend_tagged(given, tag, place << 18)

    @staticmethod
    def _hash_bits(keys: list[bytes]) -> list[int]:
        """44 bits of each key that order the output of timers fired at one time."""
        return [int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 20 for key in keys]

    # -- the way out -----------------------------------------------------------------------

    def _order_of(self, chunk: pa.RecordBatch) -> Tags | None:
        if not self.spec.keep_order:
            return None
        columns = [chunk.column(i).to_numpy().tolist() for i in range(self.spec.order)]
        return list(zip(*columns, strict=True))

    def _extend_tagged(self, given: Iterable[Any], tag: tuple[int, ...], first: int = 0) -> None:
        detach = self.program.encoder.detach
        for number, item in enumerate(given, first):
            self.out.append(detach(item))
            self.tags.append((*tag, number))

    def _failed(self, error: Exception, key: Any, row: Any) -> BraidedError:
        if isinstance(error, BraidedError):
            return error
        advice = self.runtime.advice(error)
        return operator_failure(error, self.program.name, key, row, self.batch.batch, advice)

    def _flush(self) -> pa.RecordBatch:
        encoded = self.program.encoder.encode(self.out)
        chunk = self._tagged(encoded, self.tags)
        self.out.clear()
        self.tags.clear()
        return chunk

    def _flush_arrow(
        self, table: pa.Table | pa.RecordBatch, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Arrow given by `onBatch` leaves as it is, after what was given before it."""
        if self.out:
            yield self._flush()
        for chunk in self.program.encoder.encode_arrow(table):
            tags = []
            if self.pending_tag is not None:
                tags = [(*self.pending_tag, number + n) for n in range(chunk.num_rows)]
            number += chunk.num_rows
            yield self._tagged(chunk, tags)

    def _tagged(self, chunk: pa.RecordBatch, tags: list[tuple[int, ...]]) -> pa.RecordBatch:
        self.rows_out += chunk.num_rows
        if not self.spec.keep_order:
            return chunk
        order = [pa.array(column, pa.int64()) for column in zip(*tags, strict=True)]
        if not order:
            order = [pa.array([], pa.int64())] * (self.spec.order + 1)
        names = [*order_columns(self.spec.order + 1), *chunk.schema.names]
        tagged = pa.RecordBatch.from_arrays([*order, *chunk.columns], names=names)
        self.note(tagged.columns)
        return tagged

    # -- the end ---------------------------------------------------------------------------

    def abandon(self) -> None:
        """The task has failed, or nobody wants its output: lets go of what the operator opened."""
        try:
            self.runtime.stop()
        except Exception:
            # The error that ended the task is the one to show.
            log.warning("onClose of %s raised as well", self.program.name, exc_info=True)

    def finish(self) -> ChannelReport:
        assert self.cut is not None
        program = self.program
        try:
            self.runtime.stop()
        except Exception as error:
            raise self._failed(error, None, "onClose, after the last key") from None
        cut = self.cut
        return self.report(
            lambda: cut.keep(self.files, program.name, f"carry/{self.attempt}.arrow"),
            self.heavy.found(self.rows_in),
        )


def _no_rows(rows: Any) -> None:
    """An operator with `onTimer` only takes rows in and does nothing."""

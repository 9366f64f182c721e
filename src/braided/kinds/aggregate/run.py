"""One channel of an aggregation in one batch: partial results in, merged results out.

A batch has been aggregated before it comes here: one row per key. A chunk of rows is merged as a
whole: the records of its keys are read, put together with the rows by numpy, and written back.

Where the groups tell event time, records of one time lie side by side, because that group comes
first in the key, and a slot has one timer per time and not one per key. To evict is to walk
through the records of the times that have passed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import OperatorError
from braided.kinds.aggregate.program import AggregateProgram
from braided.store.aggregates.columns import Column
from braided.store.aggregates.merge import SumOverflow
from braided.store.slots.channel_state import SlotState
from braided.store.slots.layout import (
    RECORD,
    RECORD_LONG,
    record_suffix,
    record_suffixes,
    timer_suffix,
    unwrap,
    wrap,
)
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.emitter import Emitter
from braided.tasks.order import key_bits
from braided.tasks.reports import ChannelReport
from braided.tasks.timers import clock_ms, due_timers

__all__ = ["AggregateRun"]

RECORDS_MAX = 32_768
"""Records that are given out in one chunk."""

_OfSlot: TypeAlias = tuple[int, Iterator[tuple[bytes, bytes]]]
"""A slot, and keys of it with their records, which are looked for one by one."""


class AggregateRun:
    """One channel of an aggregation in one batch."""

    def __init__(self, channel: Channel, program: AggregateProgram) -> None:
        self.channel = channel
        self._program = program
        self._emitter = Emitter(channel.spec)
        self._keys_touched = 0
        self._later: dict[int, dict[bytes, None]] = {}
        """Keys by slot whose results are given out at the end: more rows of them may come."""

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        for chunk in self.channel.chunks_with_rows(chunks):
            yield from self._merge(chunk)
        if self._program.mode == "complete":
            yield from self._emit(self._all_records())
            return
        yield from self._emit(self._later_records())
        if self._program.timed:
            yield from self._emit(self._evict())

    def abandon(self) -> None:
        self.channel.close()

    def finish(self) -> ChannelReport:
        traits = self._traits if self._program.merger.is_random else None
        return self.channel.report(self._emitter, self._keys_touched, traits=traits)

    def _traits(
        self, suffixes: Sequence[bytes], values: Sequence[bytes | None]
    ) -> Sequence[bytes | None]:
        """Records without what chance decided on; timers, and what is gone, as they are."""
        program, told = self._program, list(values)
        kept = [
            (i, unwrap(suffix, value)[1])
            for i, (suffix, value) in enumerate(zip(suffixes, values, strict=True))
            if value is not None and suffix[:1] in (RECORD, RECORD_LONG)
        ]
        if kept:
            columns = program.records.decode([record for _, record in kept])
            records = program.records.encode(program.merger.traits(columns))
            for (i, _), record in zip(kept, records, strict=True):
                told[i] = record
        return told

    # -- merging ---------------------------------------------------------------------------

    def _merge(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        program, meter = self._program, self.channel.meter
        begun_ns = meter.worked_ns()
        if program.timed and program.mode != "complete":
            chunk = self._in_time(chunk)
            if not chunk.num_rows:
                return
        # By slot, so that each slot is asked once.
        places = chunk.column(chunk.num_columns - 1).to_numpy()
        order = np.argsort(places >> PLACE_SHIFT, kind="stable")
        chunk = chunk.take(pa.array(order))
        slots = (places >> PLACE_SHIFT)[order]
        keys = program.keys.encode_batch([chunk.column(i) for i in program.key_order])
        for rows in self._rounds(keys):
            part, some_slots, some_keys = chunk, slots, keys
            if rows is not None:
                part, some_slots = chunk.take(pa.array(rows)), slots[rows]
                some_keys = [keys[i] for i in rows.tolist()]
            yield from self._merge_unique(part, some_slots, some_keys)
        numbers, counts = np.unique(slots, return_counts=True)
        rows_by_slot = list(zip(numbers.tolist(), counts.tolist(), strict=True))
        meter.count(rows_by_slot)
        meter.charge(rows_by_slot, meter.worked_ns() - begun_ns)

    def _rounds(self, keys: list[bytes]) -> Iterator[npt.NDArray[np.int64] | None]:
        """Rows with one of each key; all of them at once, unless keys came as sub-keys."""
        if self._program.sub_keys == 1:
            yield None
            return
        seen: dict[bytes, int] = {}
        turn = np.zeros(len(keys), np.int64)
        for i, key in enumerate(keys):
            turn[i] = seen.get(key, 0)
            seen[key] = int(turn[i]) + 1
        for number in range(max(seen.values(), default=0)):
            yield np.flatnonzero(turn == number)

    def _merge_unique(
        self, chunk: pa.RecordBatch, slots: npt.NDArray[np.int64], keys: list[bytes]
    ) -> Iterator[pa.RecordBatch]:
        program, width = self._program, len(self._program.groups)
        fields = program.records.fields
        new = [field.read(chunk.column(width + i)) for i, field in enumerate(fields)]
        suffixes, long_keys = record_suffixes(keys)
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        bounds = [*starts.tolist(), len(slots)]
        numbers = slots[starts].tolist()
        self.channel.state.open_slots(numbers)
        olds: list[bytes | None] = []
        for i, number in enumerate(numbers):
            olds += self.channel.state.slot(number).get_many(suffixes[bounds[i] : bounds[i + 1]])
        for i in long_keys:
            stored = olds[i]
            olds[i] = None if stored is None else unwrap(suffixes[i], stored)[1]
        try:
            merged = program.merger.merge(program.records.decode(olds), new)
        except SumOverflow as error:
            raise self._overflow(error, keys[error.row]) from None
        records = program.records.encode(merged)
        for i in long_keys:
            records[i] = wrap(keys[i], records[i])
        for i, number in enumerate(numbers):
            part = slice(bounds[i], bounds[i + 1])
            slot = self.channel.state.slot(number)
            slot.put_many(suffixes[part], records[part])
            if program.timed and None in olds[part]:
                long = [i - part.start for i in long_keys if part.start <= i < part.stop]
                times = chunk.column(program.key_order[0])[part]
                self._set_timers(slot, times, keys[part], long)
        self._keys_touched += len(keys)
        if program.mode == "update" and program.sub_keys > 1:
            for slot_number, key in zip(slots.tolist(), keys, strict=True):
                self._later.setdefault(slot_number, {})[key] = None
        elif program.mode == "update":
            yield self._output_of(chunk.columns[:width], merged, keys)

    def _overflow(self, error: SumOverflow, key: bytes) -> OperatorError:
        columns = self._program.keys.decode_batch([key])
        values = [column[0].as_py() for column in columns]
        shown = dict(zip(self._program.key_names, values, strict=True))
        return OperatorError(
            f"aggregation {self._program.name!r}: {error} for key {shown}, in batch "
            f"{self.channel.batch.batch}, which is not committed. Aggregate a wider type, or set "
            "spark.sql.ansi.enabled to false to go on as Spark then does"
        )

    # -- event time ------------------------------------------------------------------------

    def _in_time(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows that the watermark of the batch before had passed."""
        ends, valid = _times_us(chunk.column(self._program.key_order[0]))
        late = valid & (ends <= self.channel.batch.late_watermark_ms * 1000)
        count = int(np.count_nonzero(late))
        if not count:
            return chunk
        self.channel.rows_late += count
        return chunk.filter(pa.array(~late))

    def _set_timers(
        self, slot: SlotState, times: pa.Array, keys: list[bytes], long_keys: list[int]
    ) -> None:
        ends, valid = _times_us(times)
        for end in np.unique(ends[valid]).tolist():
            row = int(np.flatnonzero(valid & (ends == end))[0])
            slot.put(*timer_suffix(-(-end // 1000), self._stem(times[row : row + 1])))
        for i in long_keys:
            if valid[i]:
                # It lies under a digest, not among the others of its time.
                slot.put(*timer_suffix(-(-int(ends[i]) // 1000), keys[i]))

    def _stem(self, time: pa.Array) -> bytes:
        """What the keys of one time start with."""
        return self._program.head + self._program.times.encode_batch([time])[0][1:]

    def _evict(self) -> Iterator[_OfSlot]:
        """Drops what the watermark has passed; gives it out where results are given when final."""
        now_ms = clock_ms("EventTime", self.channel.batch)
        for ms, key, number in due_timers(self.channel, now_ms):
            yield number, self._dropped(self.channel.state.slot(number), ms, key)

    def _dropped(self, slot: SlotState, ms: int, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        is_final = self._program.mode == "append"
        slot.delete(timer_suffix(ms, key)[0])
        suffix, is_long = record_suffix(key)
        if is_long:
            value = slot.get(suffix)
            records = [] if value is None else [(suffix, value)]
        else:
            records = list(slot.scan(suffix))
        for suffix, value in records:
            slot.delete(suffix)
            if is_final:
                yield unwrap(suffix, value)

    # -- giving out ------------------------------------------------------------------------

    def _later_records(self) -> Iterator[_OfSlot]:
        for number, keys in self._later.items():
            yield number, self._records_of(self.channel.state.slot(number), keys)

    def _records_of(self, slot: SlotState, keys: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        for suffix, _ in map(record_suffix, keys):
            value = slot.get(suffix)
            assert value is not None
            yield unwrap(suffix, value)

    def _all_records(self) -> Iterator[_OfSlot]:
        for number in self.channel.touched_slots():
            slot = self.channel.state.slot(number)
            found = chain.from_iterable(map(slot.scan, (RECORD_LONG, RECORD)))
            yield number, (unwrap(suffix, value) for suffix, value in found)

    def _emit(self, slots: Iterator[_OfSlot]) -> Iterator[pa.RecordBatch]:
        """Keys and their records as output. To look for them is work for their slot, and to encode
        them for all that they are of.
        """
        meter = self.channel.meter
        keys: list[bytes] = []
        values: list[bytes] = []
        counts: list[tuple[int, int]] = []
        for number, records in slots:
            meter.enter(number)
            begin = len(keys)
            for key, value in records:
                keys.append(key)
                values.append(value)
                if len(keys) == RECORDS_MAX:
                    counts.append((number, len(keys) - begin))
                    yield self._output_of_records(keys, values, counts)
                    keys, values, counts, begin = [], [], [], 0
            if len(keys) > begin:
                counts.append((number, len(keys) - begin))
        meter.leave()
        if keys:
            yield self._output_of_records(keys, values, counts)

    def _output_of_records(
        self, keys: list[bytes], values: list[bytes], counts: list[tuple[int, int]]
    ) -> pa.RecordBatch:
        """`counts`: how many of them are of each slot."""
        program = self._program
        with self.channel.meter.sharing(counts):
            decoded = program.keys.decode_batch(keys)
            groups: list[Any] = [None] * len(decoded)
            for column, i in zip(decoded, program.key_order, strict=True):
                groups[i] = column
            return self._output_of(groups, program.records.decode(values), keys)

    def _output_of(
        self, groups: list[pa.Array], columns: list[Column], keys: list[bytes]
    ) -> pa.RecordBatch:
        merger = self._program.merger
        chunk = self._chunk_of(groups, columns)
        if not self._emitter.keep_order:
            return self._emitter.emit_ordered(chunk, ())
        # Results have no order among each other; a hash of the key makes one that lasts.
        zeros = pa.array(np.zeros(len(keys), np.int64))
        hashes = pa.array(key_bits(keys, 63), pa.int64())
        order = [zeros] * self.channel.spec.order + [hashes]
        traits = self._chunk_of(groups, merger.traits(columns)) if merger.is_random else None
        return self._emitter.emit_ordered(chunk, order, traits)

    def _chunk_of(self, groups: list[pa.Array], columns: list[Column]) -> pa.RecordBatch:
        program = self._program
        fields = zip(program.records.fields, columns, strict=True)
        results = [field.write(column) for field, column in fields]
        names = [*program.groups.names, *program.partials.names]
        return pa.RecordBatch.from_arrays([*groups, *results], names=names)


def _times_us(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """When each group is over: the end of a window, or the time itself; and where it is known."""
    if pa.types.is_struct(column.type):
        column = column.flatten()[1]
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(values), valid

"""One channel of an aggregation in one batch: partial results in, merged results out.

A batch has been aggregated before it comes here: one row per key. A chunk of rows is merged as a
whole: the records of its keys are read, put together with the rows by numpy, and written back.

Where the groups tell event time, records of one time lie side by side, because that group comes
first in the key, and a slot has one timer per time and not one per key. To evict is to walk
through the records of the times that have passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided import failpoints
from braided.errors import OperatorError
from braided.kinds.aggregate.program import AggregateProgram
from braided.store.aggregates.merge import SumOverflow
from braided.store.slots.channel_state import SlotState
from braided.store.slots.keys import (
    RECORD,
    SUFFIX_BYTES_MAX,
    record_key,
    timer_bound,
    timer_key,
    timer_parts,
    unwrap,
    wrap,
)
from braided.tasks.channel import Channel, ChannelTask
from braided.tasks.columns import PLACE_SHIFT, order_columns
from braided.tasks.spec import BatchSpec, ChannelSpec

__all__ = ["AggregateSpec", "AggregateTask"]

OUTPUT_ROWS = 32_768


@dataclass(frozen=True)
class AggregateSpec(ChannelSpec):
    program: AggregateProgram


class AggregateRun(Channel):
    """The task itself."""

    def __init__(self, spec: AggregateSpec, batch: BatchSpec, channel: int) -> None:
        super().__init__(spec, spec.program.name, batch, channel)
        self.spec = spec
        self.program = spec.program
        self.later: dict[int, dict[bytes, None]] = {}
        """Keys by slot whose results are given out at the end: more rows of them may come."""

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in self.timed(chunks):
            if chunk.num_rows:
                self.rows_in += chunk.num_rows
                failpoints.reach("task-rows")
                yield from self._merge(chunk)
        if self.program.mode == "complete":
            yield from self._given(self._everything())
            return
        yield from self._given(self._changed())
        if self.program.timed:
            yield from self._given(self._evicted())

    # -- merging ---------------------------------------------------------------------------

    def _merge(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        program = self.program
        begun_ns = perf_counter_ns() - self.waited_ns
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
        per_row = (perf_counter_ns() - self.waited_ns - begun_ns) / len(slots)
        for slot, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.rows[slot] = self.rows.get(slot, 0) + count
            self.busy_ns[slot] = self.busy_ns.get(slot, 0) + int(per_row * count)

    def _rounds(self, keys: list[bytes]) -> Iterator[npt.NDArray[np.int64] | None]:
        """Rows with one of each key; all of them at once, unless keys came as sub-keys."""
        if self.program.sub_keys == 1:
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
        program, width = self.program, len(self.program.groups)
        fields = program.records.fields
        new = [field.read(chunk.column(width + i)) for i, field in enumerate(fields)]
        places, long_keys = _suffixes(keys)
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        bounds = [*starts.tolist(), len(slots)]
        numbers = slots[starts].tolist()
        self.state.prepare(numbers)
        olds: list[bytes | None] = []
        for i, number in enumerate(numbers):
            olds += self.state.slot(number).get_many(places[bounds[i] : bounds[i + 1]])
        for i in long_keys:
            stored = olds[i]
            olds[i] = None if stored is None else unwrap(places[i], stored)[1]
        try:
            merged = program.merger.merge(program.records.decode(olds), new)
        except SumOverflow as error:
            raise self._overflow(error, keys[error.row]) from None
        records = program.records.encode(merged)
        for i in long_keys:
            records[i] = wrap(keys[i], records[i])
        for i, number in enumerate(numbers):
            part = slice(bounds[i], bounds[i + 1])
            slot = self.state.slot(number)
            slot.put_many(places[part], records[part])
            if program.timed and None in olds[part]:
                long = [i - part.start for i in long_keys if part.start <= i < part.stop]
                times = chunk.column(program.key_order[0])[part]
                self._set_timers(slot, times, keys[part], long)
        self.keys_touched += len(keys)
        if program.mode == "update" and program.sub_keys > 1:
            for slot_number, key in zip(slots.tolist(), keys, strict=True):
                self.later.setdefault(slot_number, {})[key] = None
        elif program.mode == "update":
            columns = chunk.columns[:width]
            columns += [field.write(c) for field, c in zip(fields, merged, strict=True)]
            yield self._tagged(columns, keys)

    def _overflow(self, error: SumOverflow, key: bytes) -> OperatorError:
        columns = self.program.keys.decode_batch([key])
        values = [column[0].as_py() for column in columns]
        shown = dict(zip(self.program.key_names, values, strict=True))
        return OperatorError(
            f"aggregation {self.program.name!r}: {error} for key {shown}, in batch "
            f"{self.batch.batch}, which is not committed. Aggregate a wider type, or set "
            "spark.sql.ansi.enabled to false to go on as Spark then does"
        )

    # -- event time ------------------------------------------------------------------------

    def _in_time(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows that the watermark of the batch before had passed."""
        ends, valid = _times_us(chunk.column(self.program.key_order[0]))
        late = valid & (ends <= self.batch.late_watermark_ms * 1000)
        return chunk.filter(pa.array(~late)) if late.any() else chunk

    def _set_timers(
        self, slot: SlotState, times: pa.Array, keys: list[bytes], long_keys: list[int]
    ) -> None:
        ends, valid = _times_us(times)
        for end in np.unique(ends[valid]).tolist():
            row = int(np.flatnonzero(valid & (ends == end))[0])
            slot.put(*timer_key(-(-end // 1000), self._stem(times[row : row + 1])))
        for i in long_keys:
            if valid[i]:
                # It lies under a digest, not among the others of its time.
                slot.put(*timer_key(-(-int(ends[i]) // 1000), keys[i]))

    def _stem(self, time: pa.Array) -> bytes:
        """What the keys of one time start with."""
        return self.program.head + self.program.times.encode_batch([time])[0][1:]

    def _evicted(self) -> Iterator[tuple[bytes, bytes]]:
        """Drops what the watermark has passed; gives it out where results are given when final."""
        due = self.batch.due.get(self.program.name, {}).get(self.channel, ())
        touched = {*self.rows, *due}
        self.state.prepare(touched)
        final = self.program.mode == "append"
        for number in sorted(touched):
            slot = self.state.slot(number)
            for place, stored in list(slot.scan(b"t", timer_bound(self.batch.watermark_ms + 1))):
                _, key = timer_parts(place, stored)
                slot.delete(place)
                if len(key) >= SUFFIX_BYTES_MAX:
                    suffix, _ = record_key(key)
                    value = slot.get(suffix)
                    items = [] if value is None else [(suffix, value)]
                else:
                    items = list(slot.scan(RECORD + key))
                for suffix, value in items:
                    slot.delete(suffix)
                    if final:
                        yield unwrap(suffix, value)

    # -- giving out ------------------------------------------------------------------------

    def _changed(self) -> Iterator[tuple[bytes, bytes]]:
        for number, keys in self.later.items():
            for suffix, _ in map(record_key, keys):
                value = self.state.slot(number).get(suffix)
                assert value is not None
                yield unwrap(suffix, value)

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        due = self.batch.due.get(self.program.name, {}).get(self.channel, ())
        numbers = sorted({*self.rows, *due})
        self.state.prepare(numbers)
        for number in numbers:
            for kind in (b"K", b"k"):
                for suffix, value in self.state.slot(number).scan(kind):
                    yield unwrap(suffix, value)

    def _given(self, records: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        """Keys and their records as output."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in records:
            keys.append(key)
            values.append(value)
            if len(keys) == OUTPUT_ROWS:
                yield self._output_of(keys, values)
                keys, values = [], []
        if keys:
            yield self._output_of(keys, values)

    def _output_of(self, keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
        program = self.program
        decoded = program.keys.decode_batch(keys)
        groups: list[Any] = [None] * len(decoded)
        for column, i in zip(decoded, program.key_order, strict=True):
            groups[i] = column
        fields = program.records.fields
        columns = program.records.decode(values)
        given = [field.write(column) for field, column in zip(fields, columns, strict=True)]
        return self._tagged([*groups, *given], keys)

    def _tagged(self, columns: list[pa.Array], keys: list[bytes]) -> pa.RecordBatch:
        self.rows_out += len(keys)
        names = [*self.program.groups.names, *self.program.partials.names]
        if not self.spec.keep_order:
            return pa.RecordBatch.from_arrays(columns, names=names)
        # Results have no order among each other; a hash of the key makes one that lasts.
        hashes = [
            int.from_bytes(hashlib.blake2b(k, digest_size=8).digest(), "big") >> 1 for k in keys
        ]
        zeros = pa.array(np.zeros(len(keys), np.int64))
        tags = [zeros] * self.spec.order + [pa.array(hashes, pa.int64())]
        self.note((*tags, *columns))
        names = [*order_columns(self.spec.order + 1), *names]
        return pa.RecordBatch.from_arrays([*tags, *columns], names=names)


class AggregateTask(ChannelTask):
    """One channel of an aggregation."""

    def begin(self, batch: BatchSpec, channel: int) -> AggregateRun:
        return AggregateRun(self.spec, batch, channel)


def _suffixes(keys: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Where the records of keys lie, and which of them lie under a digest."""
    if max(map(len, keys), default=0) < SUFFIX_BYTES_MAX:
        return [RECORD + key for key in keys], []
    found = [record_key(key) for key in keys]
    return [place for place, _ in found], [i for i, (_, long) in enumerate(found) if long]


def _times_us(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """When each group is over: the end of a window, or the time itself; and where it is known."""
    if pa.types.is_struct(column.type):
        column = column.flatten()[1]
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(values), valid

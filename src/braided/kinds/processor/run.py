"""One channel of a StatefulProcessor in one batch.

Keys come one after the other with their rows, then the timers that are due, in the order of their
time, then what has expired is swept out of the slots that were touched. All the rest, from routing
to the changelog, is as with any operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from types import GeneratorType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import Row

from braided import failpoints
from braided.errors import OutputSchemaError
from braided.kinds.operator.run import OUTPUT_ROWS, ChannelRun
from braided.kinds.processor.handle import ProcessorHandle
from braided.kinds.processor.input import Groups, PandasReader, RowReader
from braided.kinds.processor.output import check_event_times
from braided.kinds.processor.program import ProcessorProgram
from braided.store.slots.keys import timer_bound, timer_parts
from braided.store.variables.declared import Declared
from braided.store.variables.expiry import sweep
from braided.store.variables.layout import variable_prefix
from braided.store.variables.open_key import OpenKey
from braided.tasks.carry import Cut
from braided.tasks.columns import PLACE_SHIFT, TIMER_SEQUENCE
from braided.tasks.rows import RowFactory

__all__ = ["ProcessorRun", "ProcessorRuntime"]

_FRAMES_MAX = 4096


class ProcessorRuntime:
    """A processor with its handle, for one task."""

    def __init__(
        self,
        program: ProcessorProgram,
        history: tuple[str, ...],
        batch_time_ms: int,
        watermark_ms: int,
    ) -> None:
        declared = Declared.read(history[-1])
        self.op: Any = program.make()
        self.key = OpenKey(batch_time_ms, frozenset(declared.retired))
        self.handle = ProcessorHandle(program.time_mode, self.key, history, program.schemas)
        self.times = TimerValues(batch_time_ms, watermark_ms)
        if program.time_mode == "None" and not getattr(self.op, "always_timed", False):
            self.times = TimerValues(-1, -1)
        self._started = False
        self._phase = "INITIALIZED"

    def start(self) -> None:
        """Have `init` called, if it was not; before the first key."""
        if not self._started:
            self._started = True
            self.op.init(self.handle)
            self.handle.enter(self._phase)

    def enter(self, phase: str) -> None:
        self._phase = phase
        if self._started:
            self.handle.enter(phase)

    def stop(self) -> None:
        """Have `close` called, if `init` was."""
        if self._started:
            self._started = False
            self.handle.enter("CLOSED")
            self.op.close()

    def advice(self, error: BaseException) -> str | None:
        return None


class ProcessorRun(ChannelRun):
    """The task of a processor."""

    program: ProcessorProgram
    runtime: ProcessorRuntime

    def _runtime(self) -> ProcessorRuntime:
        batch = self.batch
        return ProcessorRuntime(
            self.program, self.spec.meta.history, batch.batch_time_ms, batch.watermark_ms
        )

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program = self.program
        first = self.spec.order if self.spec.keep_order else 0
        self.cut = Cut(chunks, self.batch.cut, first + len(program.input.fields))
        reader = (PandasReader if program.pandas else RowReader)(program, first)
        positions = [first + position for position in program.key_positions]
        self._rehouse()
        chunks = self._counted(self.cut.through())
        groups = Groups(chunks, reader, program.keys, positions, self.heavy)
        yield from self._handle_rows(groups)
        self.runtime.enter("DATA_PROCESSED")
        if program.time_mode != "None":
            yield from self._fire_timers()
        if program.expires:
            self._sweep()
        self._leave_slot()
        if self.out:
            yield from self._flushed()

    def _counted(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in self.timed(chunks):
            if chunk.num_rows:
                self.rows_in += chunk.num_rows
                failpoints.reach("task-rows")
                places = chunk.column(chunk.num_columns - 1).to_numpy()
                slots, counts = np.unique(places >> PLACE_SHIFT, return_counts=True)
                self.state.prepare(slots.tolist())
                for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                    self.rows[slot] = self.rows.get(slot, 0) + count
                yield chunk

    def _handle_rows(self, groups: Groups) -> Iterator[pa.RecordBatch]:
        handle, times = self.runtime.op.handleInputRows, self.runtime.times
        key = self.runtime.key
        for slot, key_bytes, values, rows, begin in groups:
            if slot != self.slot_number:
                self._enter_slot(slot)
            assert self.slot is not None
            key.open(self.slot, key_bytes)
            self.keys_touched += 1
            try:
                given = handle(values, rows, times)
                if type(given) is not GeneratorType:
                    given = self._given(given, "handleInputRows")
                yield from self._collect(given, self._tag(groups, begin))
                key.close()
            except Exception as error:
                raise self._failed(error, values, "its rows") from None

    def _given(self, given: Any, hook: str) -> Iterator[Any]:
        refused = isinstance(given, str | bytes | Row | dict | pd.DataFrame)
        if isinstance(given, Iterable) and not refused:
            return iter(given)
        raise OutputSchemaError(
            f"processor {self.program.name!r}: {hook} returned {type(given).__name__} "
            f"{given!r:.80}; it must return an iterator of "
            f"{'pandas.DataFrames' if self.program.pandas else 'Rows'}"
        )

    def _tag(self, groups: Groups, begin: int) -> tuple[int, ...] | None:
        """The order of a key's output: that of its first row."""
        if not self.spec.keep_order:
            return None
        assert groups.chunk is not None
        return tuple(groups.chunk.column(i)[begin].as_py() for i in range(self.spec.order))

    def _collect(
        self, given: Iterator[Any], tag: tuple[int, ...] | None, number: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """What was given out for one key or timer."""
        is_pandas, out = self.program.pandas, self.out
        if not is_pandas and tag is None:
            detach = self.program.rows.detach
            while some := list(islice(given, OUTPUT_ROWS)):
                out += detach(some)
                if len(out) < OUTPUT_ROWS:
                    return  # it has no more: there were fewer than were asked for
                yield from self._flushed()
            return
        for item in given:
            rows = 1
            if is_pandas:
                columns = self.program.frames.columns(item)
                rows = len(item)
                if not rows:
                    continue
                out.append(columns)  # and not the frame: what is kept has to be looked through
            else:
                out += self.program.rows.detach([item])
            if tag is not None:
                self.tags += [(*tag, number + i) for i in range(rows)]
                number += rows
            self.pending_rows += rows
            if self.pending_rows >= OUTPUT_ROWS or len(out) >= _FRAMES_MAX:
                yield from self._flushed()

    def _flushed(self) -> Iterator[pa.RecordBatch]:
        program = self.program
        encoded = (
            program.frames.encode(self.out) if program.pandas else [program.rows.encode(self.out)]
        )
        begin = 0
        for chunk in encoded:
            if program.event_time is not None:
                watermark_ms = self.batch.watermark_ms
                check_event_times(chunk, program.event_time, watermark_ms, program.name)
            yield self._tagged(chunk, self.tags[begin : begin + chunk.num_rows])
            begin += chunk.num_rows
        self.out.clear()
        self.tags.clear()
        self.pending_rows = 0

    def _housed(self, key: bytes, pieces: list[bytes]) -> None:
        # Written by this task, and not yet stored: who looks for entries has to know of them.
        for place in pieces:
            self.runtime.key.touch(variable_prefix(place, key), place)

    # -- timers ----------------------------------------------------------------------------

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        """All that were due when the rows had been processed, as Spark does: also one that the
        handler of another has deleted; one that a handler sets waits for the next batch.
        """
        batch, program = self.batch, self.program
        is_event = program.time_mode == "EventTime"
        now_ms = batch.watermark_ms if is_event else batch.batch_time_ms
        touched = {*self.rows, *batch.due.get(program.name, {}).get(self.channel, ())}
        self.state.prepare(touched)
        due = [
            (*timer_parts(suffix, value), number)
            for number in sorted(touched)
            for suffix, value in self.state.slot(number).scan(b"t", timer_bound(now_ms + 1))
        ]
        if not due:
            return
        due.sort(key=itemgetter(0))  # those of one time stay together by their slots
        keys = [key for _, key, _ in due]
        rows = RowFactory(program.key).rows_of(program.keys.decode_batch(keys))
        places = self._hash_bits(keys) if self.spec.keep_order else None
        for index, ((ms, key, number), key_row) in enumerate(zip(due, rows, strict=True)):
            if number != self.slot_number:
                self._enter_slot(number)
            tag = None
            if places is not None:
                tag = (0, TIMER_SEQUENCE + ms, *[0] * (self.spec.order - 2))
            yield from self._fire_timer(ms, key, key_row, tag, (places[index] if places else 0))

    def _fire_timer(
        self, ms: int, key: bytes, key_row: Any, tag: tuple[int, ...] | None, place: int
    ) -> Iterator[pa.RecordBatch]:
        runtime = self.runtime
        assert self.slot is not None
        runtime.key.open(self.slot, key)
        self.keys_touched += 1
        try:
            given = runtime.op.handleExpiredTimer(
                key=key_row, timerValues=runtime.times, expiredTimerInfo=ExpiredTimerInfo(ms)
            )
            if type(given) is not GeneratorType:
                given = self._given(given, "handleExpiredTimer")
            yield from self._collect(given, tag, place << 18)
            runtime.key.drop_timer(ms)
            runtime.key.close()
        except Exception as error:
            raise self._failed(error, key_row, f"timer of {ms} ms") from None

    def _sweep(self) -> None:
        key = self.runtime.key
        for number in self.rows:
            sweep(self.state.slot(number), key, self.batch.batch_time_ms)

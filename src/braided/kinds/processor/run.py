"""One channel of a StatefulProcessor in one batch.

Keys come one after the other with their rows, then the timers that are due, in the order of their
time, then what has expired is swept out of the slots that were touched. All the rest, from routing
to the changelog, is as with any operator.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import repeat
from operator import itemgetter
from types import GeneratorType
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

from braided.kinds.processor.collector import OutputCollector
from braided.kinds.processor.input import GroupReader, PandasReader, RowReader
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.runtime import ProcessorRuntime
from braided.store.slots.slot import SlotState
from braided.store.variables.expiry import sweep
from braided.store.variables.layout import variable_prefix
from braided.tasks.channel import Channel
from braided.tasks.emitter import Emitter
from braided.tasks.failure import Words
from braided.tasks.groups import GroupSource
from braided.tasks.order import Tag, tag_of_row
from braided.tasks.pieces import Grain
from braided.tasks.rehousing import rehouse_keys
from braided.tasks.reports import ChannelReport
from braided.tasks.rows import RowFactory
from braided.tasks.timers import clock_ms, due_timers, timer_tags, timers_by_slot
from braided.tasks.user_code import UserCode

__all__ = ["ProcessorRun"]

_LIST_ITERATOR: type = type(iter([]))


class ProcessorRun:
    """One channel of a processor in one batch."""

    def __init__(self, channel: Channel, program: ProcessorProgram) -> None:
        spec, batch = channel.spec, channel.batch
        self.channel = channel
        self.runtime = ProcessorRuntime(
            program, spec.meta.history, batch.batch_time_ms, batch.watermark_ms
        )
        self._program = program
        self._code = UserCode(self.runtime, channel)
        self._source = GroupSource(
            channel,
            program.keys,
            program.key_positions,
            len(program.input.fields),
            # How many rows a frame has depends on the chunks that were read before.
            Grain.CHUNK if program.pandas else Grain.ROW,
        )
        self._emitter = Emitter(spec, channel.batch.batch)
        self._output = OutputCollector(
            program, self._emitter, batch.output_watermark_ms, self._code, channel.meter
        )
        self._keys_touched = 0

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        program, channel = self._program, self.channel
        self._rehouse()
        reader = (PandasReader if program.pandas else RowReader)(program, channel.spec.first_column)
        yield from self._handle_rows(GroupReader(self._source.read(chunks), reader, channel.meter))
        self.runtime.enter("DATA_PROCESSED")
        if program.time_mode != "None" and not self._source.timers_wait:
            yield from self._fire_timers()
        if program.expires:
            for number in list(channel.meter.rows):
                sweep(channel.enter(number), self.runtime.key, channel.batch.batch_time_ms)
        channel.meter.leave()
        yield from self._output.flush()

    def _rehouse(self) -> None:
        for key, pieces in rehouse_keys(self.channel):
            # Written by this task, and not yet stored: who looks for entries has to know of them.
            for suffix in pieces:
                self.runtime.key.touch(variable_prefix(suffix, key), suffix)

    def _enter(self, number: int) -> SlotState:
        slot = self.channel.enter(number)
        self._output.entered(number)
        self._code.start()
        return slot

    def _handle_rows(self, groups: GroupReader) -> Iterator[pa.RecordBatch]:
        handle, times = self.runtime.op.handleInputRows, self.runtime.times
        key, output, pairs = self.runtime.key, self._output, self._emitter.pairs
        keep_order = self.channel.spec.keep_order
        entered = -1
        for number, key_bytes, values, rows, begin in groups:
            if number != entered:
                slot, entered = self._enter(number), number
            key.open(slot, key_bytes)
            self._keys_touched += 1
            if pairs is not None:
                pairs.opened(key_bytes, self._emitter.rows_out + output.rows_waiting)
            try:
                items = handle(values, rows, times)
                if type(items) is not GeneratorType:
                    items = output.checked(items, "handleInputRows")
                tag = self._tag(groups, begin) if keep_order else None
                yield from output.collect(items, values, tag)
                key.close()
            except Exception as error:
                row = self._at_hand(groups, rows, begin)
                raise self._code.failure(error, values, row) from None

    def _at_hand(self, groups: GroupReader, rows: Iterator[Any], begin: int) -> Any:
        """The row that the processor took last, where that can be told; else its key's rows."""
        state: Any = rows.__reduce__() if type(rows) is _LIST_ITERATOR else ()
        if len(state) == 3:
            [taken], position = state[1:]
            return taken[position - 1] if position else Words("none of its rows was taken")
        first, names = self.channel.spec.first_column, self._program.input.names
        return groups.rows_from(begin, range(first, first + len(names)), names)

    def _tag(self, groups: GroupReader, begin: int) -> Tag:
        """The order of a key's output, where rows keep theirs: that of its first row."""
        assert groups.chunk is not None
        return tag_of_row(groups.chunk, begin, self.channel.spec.order)

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        """All that were due when the rows had been processed, as Spark does: also one that the
        handler of another has deleted; one that a handler sets waits for the next batch.
        """
        program, spec = self._program, self.channel.spec
        timers = due_timers(self.channel, clock_ms(program.time_mode, self.channel.batch))
        if not timers:
            return
        timers.sort(key=itemgetter(0))  # those of one time stay together by their slots
        orders: Iterable[tuple[Tag | None, int]] = repeat((None, 0), len(timers))
        with self.channel.meter.sharing(timers_by_slot(timers)):
            columns = program.keys.decode_batch([key for _, key, _ in timers])
            key_rows = RowFactory(program.key).rows_of(columns)
            if spec.keep_order:
                orders = timer_tags(timers, spec.order)
        entered = -1
        for (ms, key, number), key_row, order in zip(timers, key_rows, orders, strict=True):
            if number != entered:
                slot, entered = self._enter(number), number
            self.runtime.key.open(slot, key)
            if self._emitter.pairs is not None:
                position = self._emitter.rows_out + self._output.rows_waiting
                self._emitter.pairs.opened(key, position)
            yield from self._fire_timer(ms, key_row, *order)

    def _fire_timer(
        self, ms: int, key_row: Any, tag: Tag | None, number: int
    ) -> Iterator[pa.RecordBatch]:
        """A timer of the open key."""
        runtime, output = self.runtime, self._output
        self._keys_touched += 1
        try:
            items = runtime.op.handleExpiredTimer(
                key=key_row, timerValues=runtime.times, expiredTimerInfo=ExpiredTimerInfo(ms)
            )
            if type(items) is not GeneratorType:
                items = output.checked(items, "handleExpiredTimer")
            yield from output.collect(items, key_row, tag, number)
            runtime.key.drop_timer(ms)
            runtime.key.close()
        except Exception as error:
            raise self._code.failure(error, key_row, Words(f"timer of {ms} ms")) from None

    def abandon(self) -> None:
        self._code.abandon()
        self.channel.close()

    def finish(self) -> ChannelReport:
        self._code.stop()
        return self.channel.report(
            self._emitter, self._keys_touched, self._source.keep_rest, self._source.heaviest()
        )

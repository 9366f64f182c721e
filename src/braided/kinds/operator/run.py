"""One channel of an operator in one batch: rows in, rows out, changes of state.

A task is a pure function of its slots' state at the version before and its ordered rows. It reads
Arrow chunks sorted by slot, key (first its hash) and order, runs the operator key by key, gives its
output away in Arrow chunks, and at the end writes one changelog and reports. Nothing it writes
counts until the manifest names it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import msgspec
import pyarrow as pa

from braided.kinds.operator.hook import hook_of
from braided.kinds.operator.input import InputReader
from braided.kinds.operator.key_runner import KeyRunner
from braided.kinds.operator.output import OperatorOutput
from braided.kinds.operator.program import Program
from braided.kinds.operator.runtime import OperatorRuntime
from braided.kinds.operator.way import OperatorParts, Way
from braided.tasks.channel import Channel
from braided.tasks.emitter import OUTPUT_ROWS, Emitter
from braided.tasks.groups import GroupSource
from braided.tasks.order import tags_of_rows
from braided.tasks.pieces import Grain
from braided.tasks.rehousing import rehouse_keys
from braided.tasks.reports import ChannelReport, KeyRecord
from braided.tasks.split_keys import whole_records
from braided.tasks.timers import clock_ms, due_timers, timer_tags, timers_by_slot
from braided.tasks.user_code import UserCode

__all__ = ["OperatorRun"]


class OperatorRun:
    """One channel of an operator in one batch: rows in order, key by key, then due timers."""

    def __init__(self, channel: Channel, program: Program, way: type[Way]) -> None:
        """`way`: how the task goes through its rows."""
        self.channel = channel
        self._program = program
        runtime = _runtime_of(channel, program)
        self._code = UserCode(runtime, channel)
        hook = hook_of(program, runtime)
        self._source = GroupSource(
            channel,
            program.keys,
            program.key_positions,
            len(program.input.fields),
            Grain.KEY if hook.by_batch else Grain.ROW,
        )
        self._emitter = Emitter(channel.spec, channel.batch.batch)
        self._output = OperatorOutput(
            self._emitter, program.encoder, runtime, self._code, channel.meter
        )
        pairs = self._emitter.pairs
        # What is given out from there on is that of the key.
        opened = None if pairs is None else pairs.noting(self._emitter, self._output.rows)
        output = self._output
        self._keys = KeyRunner(channel, runtime, self._code, output.entered, opened, output.closed)
        self._reader = InputReader(program, channel.spec.first_column, hook.by_batch)
        self._wholes: tuple[KeyRecord, ...] = ()
        self._way = way(OperatorParts(self._keys, hook, self._output, program))

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        spec, program, way = self.channel.spec, self._program, self._way
        rehouse_keys(self.channel)
        self._wholes = whole_records(self.channel)
        for grouped in self._source.read(chunks):
            with self.channel.meter.sharing():
                _, begins, ends, slots, keys, key_columns, *_ = grouped
                key_rows = program.key_rows.rows_of(key_columns)
                groups = list(zip(begins, ends, slots, keys, key_rows, strict=True))
                tags = tags_of_rows(grouped.chunk, spec.order) if spec.keep_order else None
                rows = self._reader.read(grouped.chunk)
            yield from way.run(rows, tags, groups)
        yield from way.end()
        if hasattr(program.operator, "onTimer") and not self._source.timers_wait:
            yield from self._fire_timers()
        self.channel.meter.leave()
        if self._output.rows:
            yield from self._output.flush()

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        program, keys, spec = self._program, self._keys, self.channel.spec
        timers = due_timers(self.channel, clock_ms(program.time_mode, self.channel.batch))
        if not timers:
            return
        with self.channel.meter.sharing(timers_by_slot(timers)):
            columns = program.keys.decode_batch([key for _, key, _ in timers])
            key_rows = program.key_rows.rows_of(columns)
            orders = timer_tags(timers, spec.order) if spec.keep_order else None
        for index, ((ms, key, slot), key_row) in enumerate(zip(timers, key_rows, strict=True)):
            keys.open(slot, key, key_row)
            if ms not in (keys.runtime.op._timers or ()):
                continue  # an earlier timer of the key took this one back
            self._way.fire(ms, None if orders is None else orders[index])
            keys.close()
            if len(self._output.rows) >= OUTPUT_ROWS:
                yield from self._output.flush()

    def abandon(self) -> None:
        self._code.abandon()
        self.channel.close()

    def finish(self) -> ChannelReport:
        self._code.stop()
        report = self.channel.report(
            self._emitter, self._keys.keys_touched, self._source.keep_rest, self._source.heaviest()
        )
        dead = self._way.write_dead(self.channel)
        if dead is None and not self._keys.split:
            return report
        return msgspec.structs.replace(
            report, dead=dead, wholes=self._wholes, partials=self._keys.partials()
        )


def _runtime_of(channel: Channel, program: Program) -> OperatorRuntime:
    batch = channel.batch
    return OperatorRuntime(
        program.operator,
        batch.batch_time_ms,
        batch.known_watermark_ms,
        channel.spec.meta.history,
    )

"""One channel of a columnar operator in one batch: rows in, rows out, changes of state.

Arrow chunks come sorted by place. Their rows are put in order (`tasks/place_order.py`) and brought
together to calls of whole keys (`gathering.py`), the states of their keys are read as columns
(`key_states.py`), the hook runs once for all of them, and what has changed is written. At the end
keys that are due come, many at a time, and then one changelog is written. Nothing counts until the
manifest names it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import BraidedError, OutputSchemaError, StateValueError
from braided.kinds.columnar.gathering import ChunkGathering
from braided.kinds.columnar.key_states import KeyStates, LoadedKeys, TooMuchState, due_ms
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.returned import new_columns, positions_of, returned, table_of
from braided.kinds.columnar.runtime import ColumnRuntime
from braided.store.columnar.fields import DUE
from braided.store.slots.layout import timer_suffix
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.emitter import Emitter
from braided.tasks.failure import Words
from braided.tasks.groups import GroupedChunk, GroupSource, group_chunk
from braided.tasks.pieces import Grain
from braided.tasks.place_order import PlaceOrder
from braided.tasks.rehousing import rehouse_keys
from braided.tasks.reports import ChannelReport, KeyRecord
from braided.tasks.split_keys import whole_records
from braided.tasks.timers import DueTimer, clock_ms, due_timers, timer_tags, timers_by_slot
from braided.tasks.user_code import UserCode

__all__ = ["ColumnRun"]

DUE_KEYS = 32_768
"""Keys that are handed to `onDue` in one call."""

Numbers = npt.NDArray[np.int64]


class _HookCall(NamedTuple):
    """A hook that is called for some keys."""

    hook: str
    loaded: LoadedKeys
    key_columns: list[pa.Array]
    columns: list[pa.Array]
    """The state that the hook is given: what it does not return stays so."""
    arguments: tuple[Any, ...]
    origins: int
    """How many rows (keys, in `onDue`) the output may come from."""
    starts: Numbers | None
    """Where each key's rows begin; None if the origins are the keys themselves."""
    order: list[pa.Array]
    """Of each origin, what its output is ordered by; nothing where rows do not keep their order."""
    firsts: Numbers | None = None
    """Of each origin, the number of its first row of output, if that is not 0."""


class ColumnRun:
    """One channel of a columnar operator in one batch."""

    def __init__(self, channel: Channel, program: ColumnProgram) -> None:
        self.channel = channel
        self._program = program
        self._runtime = ColumnRuntime(program.operator, channel.batch, channel.spec.meta.history)
        self._fields = self._runtime.codec.fields
        names = [field.name for field in self._fields]
        self._due = names.index(DUE) if program.has_due else -1
        self._code = UserCode(self._runtime, channel)
        self._states = KeyStates(channel, self._runtime.codec)
        self._source = GroupSource(
            channel,
            program.keys,
            program.key_positions,
            len(program.input.fields),
            Grain.KEY,
            ChunkGathering(program.name, channel.line.can_stop, channel.meter),
        )
        spec, first = channel.spec, channel.spec.first_column
        self._in_order = PlaceOrder(spec.order, spec.keep_order, channel.meter)
        self._key_positions = [first + position for position in program.key_positions]
        self._columns = list(range(first, first + len(program.input.fields)))
        self._emitter = Emitter(channel.spec)
        self._wholes: tuple[KeyRecord, ...] = ()
        self._keys_touched = 0

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        meter = self.channel.meter
        rehouse_keys(self.channel)
        self._wholes = whole_records(self.channel)
        for grouped in self._source.read(self._in_order(chunks)):
            with meter.sharing():
                output = self._rows(self._one_group_each(grouped))
            yield from output
        if self._program.has_due and not self._source.timers_wait:
            yield from self._fire()
        meter.leave()

    def abandon(self) -> None:
        self._code.abandon()
        self.channel.close()

    def finish(self) -> ChannelReport:
        self._code.stop()
        report = self.channel.report(
            self._emitter, self._keys_touched, self._source.keep_rest, self._source.heaviest()
        )
        partials = self._states.partials()
        if not self._wholes and not partials:
            return report
        return msgspec.structs.replace(report, wholes=self._wholes, partials=partials)

    # -- what a hook is called with --------------------------------------------------------

    def _one_group_each(self, grouped: GroupedChunk) -> GroupedChunk:
        """The same rows, but those of a key side by side.

        Keys of one place take turns: those whose hashes collide, and such as (1, null) and
        (null, 1), which Spark's hash does not tell apart.
        """
        same_place = grouped.places[1:] == grouped.places[:-1]
        if not same_place.any():
            return grouped
        firsts: dict[tuple[int, bytes], int] = {}
        ranks = [
            firsts.setdefault(group, len(firsts))
            for group in zip(grouped.places.tolist(), grouped.keys, strict=True)
        ]
        if len(firsts) == len(ranks):
            return grouped
        # A new key of a place has a higher rank than all of the places before: those stay sorted.
        lengths = np.diff(grouped.starts, append=grouped.chunk.num_rows)
        order = np.argsort(np.repeat(ranks, lengths), kind="stable")
        return self._grouped(grouped.chunk.take(pa.array(order)))

    def _rows(self, grouped: GroupedChunk) -> list[pa.RecordBatch]:
        """The output of the rows, by one call unless the state of their keys is too much for it."""
        try:
            call = self._rows_call(grouped)
        except TooMuchState:
            middle = grouped.begins[len(grouped.begins) // 2]
            return [
                chunk
                for half in (grouped.chunk.slice(0, middle), grouped.chunk.slice(middle))
                for chunk in self._rows(self._grouped(half))
            ]
        return self._run(call)

    def _grouped(self, chunk: pa.RecordBatch) -> GroupedChunk:
        return group_chunk(chunk, self._program.keys, self._key_positions, by_place=True)

    def _rows_call(self, grouped: GroupedChunk) -> _HookCall:
        spec, chunk = self.channel.spec, grouped.chunk
        starts, key_columns, keys = grouped.starts, grouped.key_columns, grouped.keys
        loaded = self._states.load(keys, grouped.places >> PLACE_SHIFT)
        lengths = np.diff(starts, append=chunk.num_rows)
        rows = pa.Table.from_batches([chunk.select(self._columns)])
        index = np.repeat(np.arange(len(keys)), lengths)
        order = [chunk.column(i) for i in range(spec.order)] if spec.keep_order else []
        arguments = (self._table(loaded.columns), rows, index)
        return _HookCall(
            hook="onRows",
            loaded=loaded,
            key_columns=key_columns,
            columns=loaded.columns,
            arguments=arguments,
            origins=chunk.num_rows,
            starts=starts,
            order=order,
        )

    def _fire(self) -> Iterator[pa.RecordBatch]:
        program, meter = self._program, self.channel.meter
        timers = due_timers(self.channel, clock_ms(program.time_mode, self.channel.batch))
        for first in range(0, len(timers), DUE_KEYS):
            some = timers[first : first + DUE_KEYS]
            with meter.sharing(timers_by_slot(some)):
                output = self._due_output(some)
            yield from output

    def _due_output(self, timers: list[DueTimer]) -> list[pa.RecordBatch]:
        try:
            call = self._due_call(timers)
        except TooMuchState:
            middle = len(timers) // 2
            return [*self._due_output(timers[:middle]), *self._due_output(timers[middle:])]
        return [] if call is None else self._run(call)

    def _due_call(self, timers: list[DueTimer]) -> _HookCall | None:
        """Keys that are due. A key has one timer, which says the same as its record."""
        spec = self.channel.spec
        keys, slots = [key for _, key, _ in timers], np.array([slot for *_, slot in timers])
        loaded = self._states.load(keys, slots)
        due = loaded.columns[self._due]
        stale = due_ms(due) != [ms for ms, _, _ in timers]
        if stale.any():
            # Of a class that had an onDue once, and was without for a while; or `upgrade` has just
            # given the key another time, to which its timer goes then.
            others = list(compress(timers, stale.tolist()))
            moving = self._states.load(list(compress(keys, stale.tolist())), slots[stale])
            self._states.store(moving, moving.columns)
            for ms, key, slot in others:
                self.channel.state.slot(slot).delete(timer_suffix(ms, key)[0])
            rest = list(compress(timers, (~stale).tolist()))
            return self._due_call(rest) if rest else None
        columns = list(loaded.columns)
        columns[self._due] = pa.nulls(len(keys), due.type)
        order: list[pa.Array] = []
        firsts = None
        if spec.keep_order:
            tags = timer_tags(timers, spec.order)
            tagged = zip(*(tag for tag, _ in tags), strict=True)
            order = [pa.array(values, pa.int64()) for values in tagged]
            firsts = np.array([number for _, number in tags], np.int64)
        key_columns = self._program.keys.decode_batch(keys)
        arguments = (self._table(columns), pa.chunked_array([due]))
        return _HookCall(
            "onDue", loaded, key_columns, columns, arguments, len(keys), None, order, firsts
        )

    def _table(self, columns: list[pa.Array]) -> pa.Table:
        return pa.Table.from_arrays(columns, schema=self._runtime.codec.schema)

    # -- the call --------------------------------------------------------------------------

    def _run(self, call: _HookCall) -> list[pa.RecordBatch]:
        """Calls the hook, keeps the new state, and gives the output."""
        op, loaded = self._runtime.op, call.loaded
        self._code.start()
        op.keys = pa.Table.from_arrays(call.key_columns, schema=self._program.key_schema)
        try:
            value = getattr(op, call.hook)(*call.arguments)
        except Exception as error:
            raise self._code.failure(error, _Keys(self, call), _rows_of(call)) from None
        try:
            state, output, origin = returned(value, call.hook)
            columns, removed = new_columns(
                state, self._fields, call.columns, len(loaded.keys), call.hook
            )
            self._states.store(loaded, columns, removed)
            self._keys_touched += len(loaded.keys)
            if output is None:
                return []
            return self._given_out(call, table_of(output, call.hook), origin)
        except (StateValueError, OutputSchemaError) as error:
            raise self._failure_with_keys(error, call) from None

    def _given_out(self, call: _HookCall, table: pa.Table, origin: Any) -> list[pa.RecordBatch]:
        hook = call.hook
        at = positions_of(origin, table.num_rows, call.origins, call.starts, hook)
        if not self._emitter.keep_order:
            chunks = self._program.encoder.encode_arrow(table)
            return [self._emitter.emit_ordered(chunk, ()) for chunk in chunks]
        if (np.diff(at) < 0).any():
            # Which rows share a call goes by the clock, and must not be seen in the output, whose
            # digest tells attempts apart.
            by_origin = np.argsort(at, kind="stable")
            table, at = table.take(pa.array(by_origin)), at[by_origin]
        chunks = self._program.encoder.encode_arrow(table)
        numbers = _numbers(at)
        if call.firsts is not None:
            numbers = numbers + call.firsts[at]
        order = [column.take(pa.array(at)) for column in call.order]
        order.append(pa.array(numbers))
        emitted, begin = [], 0
        for chunk in chunks:
            tags = [column.slice(begin, chunk.num_rows) for column in order]
            emitted.append(self._emitter.emit_ordered(chunk, tags))
            begin += chunk.num_rows
        return emitted

    def _failure_with_keys(
        self, error: StateValueError | OutputSchemaError, call: _HookCall
    ) -> BraidedError:
        """Names the operator, the keys, the rows, the batch and the hook's line as well."""
        which = f"operator {self._program.name!r}"
        named = error if str(error).startswith(which) else type(error)(f"{which}: {error}")
        return self._code.failure(named, _Keys(self, call), _rows_of(call))


class _Keys:
    """The keys of a call, as errors tell them."""

    def __init__(self, run: ColumnRun, call: _HookCall) -> None:
        self._run = run
        self._call = call

    def __repr__(self) -> str:
        columns = [column.slice(0, 1) for column in self._call.key_columns]
        [first] = self._run._program.key_rows.rows_of(columns)
        others = len(self._call.loaded.keys) - 1
        return f"{first!r}, the first of {others + 1}" if others else repr(first)


def _rows_of(call: _HookCall) -> Any:
    if call.hook == "onRows":
        return call.arguments[1]
    return Words(f"{call.hook} of {call.origins} keys")


def _numbers(at: Numbers) -> Numbers:
    """Of each row of the output its number among those of the same origin."""
    order = np.argsort(at, kind="stable")
    grouped = at[order]
    begins = np.flatnonzero(np.diff(grouped, prepend=-1))
    lengths = np.diff(begins, append=len(at))
    numbers = np.empty(len(at), np.int64)
    numbers[order] = np.arange(len(at)) - np.repeat(begins, lengths)
    return numbers

"""The state that a processor makes of `initialState`, before its first batch.

`handleInitialState` gives nothing out, so all there is of it is state: a Spark job calls it for
every row, in the slots of the keys, and writes what it left as snapshots. The processor's first
batch reads its slots on top of them, and the manifest of that batch names them
(`tasks/first_state.py`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.errors import BraidedError
from braided.flow.route import place_column, slot_of_place, slot_sql
from braided.kinds.processor.input import GroupReader, PandasReader, RowReader
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.runtime import ProcessorRuntime
from braided.spark.offset_log import BatchTimes
from braided.spark.sql_text import quoted
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.slot import SlotState, empty_slot
from braided.tasks.columns import PLACE
from braided.tasks.failure import operator_failure, to_text
from braided.tasks.first_state import FirstState, deal_out, write_slots, written_by
from braided.tasks.groups import group_chunk
from braided.tasks.packing import PackedProgram, pack

__all__ = [
    "InitialRows",
    "handle_initial",
    "initial_program",
    "placed_initial",
    "unnamed",
    "write_first_state",
]


@dataclass(frozen=True)
class InitialRows:
    """Rows that a processor makes its first state of, before its first batch."""

    df: DataFrame
    keys: tuple[str, ...]
    """The grouping columns, in the order of the processor's."""


def write_first_state(
    initial: InitialRows,
    program: ProcessorProgram,
    broadcasts: tuple[Broadcast[Any], ...],
    meta: OperatorMeta,
    store: Store,
    batch: int,
    times: BatchTimes,
) -> FirstState:
    """Runs `handleInitialState`; nothing counts before a manifest names what it left."""
    df = placed_initial(initial, meta.slots)
    dealt = deal_out(df, slot_of_place(), meta.slots)
    ordered = dealt.sortWithinPartitions(PLACE, *map(quoted, initial.keys))
    packed = pack(initial_program(initial, program), broadcasts)
    write = _VariablesWriter(packed, meta.history, store, batch, times)
    return written_by(unnamed(ordered), write)


def placed_initial(initial: InitialRows, slots: int) -> DataFrame:
    """The rows with the places of their keys."""
    df = initial.df
    keys = [quoted(name) for name in initial.keys]
    place = place_column(keys, F.expr(slot_sql(keys, slots)))
    return df.select(*map(quoted, df.columns), place)


def initial_program(initial: InitialRows, program: ProcessorProgram) -> ProcessorProgram:
    """The processor as one that reads such rows."""
    columns = initial.df.columns
    positions = tuple(columns.index(name) for name in initial.keys)
    return replace(program, input=initial.df.schema, key_positions=positions)


def unnamed(df: DataFrame) -> DataFrame:
    """The same columns without names that `mapInArrow` would stumble over; tasks count them."""
    return df.toDF(*(f"c{i}" for i in range(len(df.columns))))


def handle_initial(
    program: ProcessorProgram,
    runtime: ProcessorRuntime,
    chunks: Iterator[pa.RecordBatch],
    slot_of: Callable[[int], SlotState],
    batch: int,
) -> None:
    """Calls `handleInitialState` for every row; `program` reads them."""
    reader = (PandasReader if program.pandas else RowReader)(program, 0)
    grouped = (
        group_chunk(chunk, program.keys, program.key_positions)
        for chunk in chunks
        if chunk.num_rows
    )
    for number, key, values, rows, _ in GroupReader(grouped, reader):
        runtime.start()
        runtime.key.open(slot_of(number), key)
        row: Any = None
        try:
            for row in rows:
                runtime.op.handleInitialState(values, row, runtime.times)
            runtime.key.close()
        except Exception as error:
            raise operator_failure(error, program.name, values, row, batch, None) from None


@dataclass(frozen=True)
class _VariablesWriter:
    """What `mapInArrow` calls: the rows of some slots in, one snapshot out."""

    program: PackedProgram
    history: tuple[str, ...]
    store: Store
    batch: int
    times: BatchTimes

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            slots = self._slots(chunks)
        except BraidedError as error:
            raise RuntimeError(to_text(error)) from None
        if slots:
            operator = self.program.unpack().name
            path = f"state/{operator}/{self.batch}-initial-{uuid.uuid4().hex[:12]}"
            yield write_slots(self.store, path, slots)

    def _slots(self, chunks: Iterator[pa.RecordBatch]) -> dict[int, dict[bytes, bytes]]:
        program = self.program.unpack()
        runtime = ProcessorRuntime(
            program, self.history, self.times.batch_time_ms, self.times.watermark_ms
        )
        slots: defaultdict[int, SlotState] = defaultdict(empty_slot)
        try:
            handle_initial(program, runtime, chunks, slots.__getitem__, self.batch)
        except BaseException:
            with contextlib.suppress(Exception):  # the error that ended it is the one to show
                runtime.stop()
            raise
        runtime.stop()
        return {number: slot.items() for number, slot in slots.items()}

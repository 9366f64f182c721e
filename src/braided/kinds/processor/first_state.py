"""The state that a processor makes of `initialState`, before its first batch.

`handleInitialState` gives nothing out, so all there is of it is state: a Spark job calls it for
every row, in the slots of the keys, and writes what it left as snapshots. The processor's first
batch reads its slots on top of them, and the manifest of that batch names them (see initial.py).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.errors import BraidedError
from braided.flow.graph import InitialRows, ProcessorStep
from braided.flow.route import PLACE, PLACE_SHIFT, quoted
from braided.kinds.operator.first_state import RUN_SCHEMA, Imported, imported
from braided.kinds.operator.program import PackedProgram, pack
from braided.kinds.processor.input import Groups, PandasReader, RowReader
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.run import ProcessorRuntime
from braided.kinds.processor.stage import program_of
from braided.query.checkpoint import BatchTimes
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.slot import SlotState, empty_slot
from braided.tasks.failure import from_worker, operator_failure, to_text
from braided.tasks.first_state import snapshot
from braided.tasks.heavy_keys import HeavyKeys

__all__ = ["handle_initial", "placed_initial", "unnamed", "write_first_state"]


def write_first_state(
    step: ProcessorStep, meta: OperatorMeta, root: str, batch: int, times: BatchTimes
) -> Imported:
    """Runs `handleInitialState`; nothing counts before a manifest names what it left."""
    assert step.initial is not None
    df, program = placed_initial(step, step.initial, meta.slots)
    tasks = min(meta.slots, 4 * df.sparkSession.sparkContext.defaultParallelism)
    slot = f"shiftright({PLACE}, {PLACE_SHIFT})"
    placed = df.repartitionById(tasks, F.expr(f"int({slot} % {tasks})")).sortWithinPartitions(
        PLACE, *map(quoted, step.initial.keys)
    )
    write = _Writer(program, meta.history, root, batch, times)
    try:
        return imported(unnamed(placed).mapInArrow(write, RUN_SCHEMA).collect())
    except PySparkException as error:
        raise from_worker(error) or error from None


def placed_initial(
    step: ProcessorStep, initial: InitialRows, slots: int
) -> tuple[DataFrame, PackedProgram]:
    """The rows with their places, and the processor as one that reads such rows."""
    df, names = initial.df, initial.keys
    keys = ", ".join(map(quoted, names))
    place = f"shiftleft(pmod(xxhash64({keys}), {slots}), {PLACE_SHIFT}) AS {PLACE}"
    program = replace(
        program_of(step),
        input=df.schema,
        key_positions=tuple(df.columns.index(name) for name in names),
    )
    placed = df.selectExpr(*map(quoted, df.columns), place)
    return placed, pack(program, step.broadcasts)


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
    chunks = (chunk for chunk in chunks if chunk.num_rows)
    groups = Groups(chunks, reader, program.keys, list(program.key_positions), HeavyKeys())
    for number, key, values, rows, _ in groups:
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
class _Writer:
    """What `mapInArrow` calls: the rows of some slots in, one snapshot out."""

    program: PackedProgram
    history: tuple[str, ...]
    root: str
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
            yield snapshot(self.root, path, slots)

    def _slots(self, chunks: Iterator[pa.RecordBatch]) -> dict[int, dict[bytes, bytes]]:
        program = self.program.unpack()
        runtime = ProcessorRuntime(
            program, self.history, self.times.batch_time_ms, self.times.watermark_ms
        )
        slots: defaultdict[int, SlotState] = defaultdict(empty_slot)
        handle_initial(program, runtime, chunks, slots.__getitem__, self.batch)
        runtime.stop()
        return {number: slot.items() for number, slot in slots.items()}

"""The state that a processor makes of `initialState`, before its first batch.

`handleInitialState` gives nothing out, so all there is of it is state: a Spark job calls it for
every row, in the slots of the keys, and writes what it left as snapshots. The processor's first
batch reads its slots on top of them, and the manifest of that batch names them (see initial.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from braided.engine.checkpoint import BatchTimes
from braided.engine.failure import from_worker, operator_failure, to_text
from braided.engine.flow import ProcessorStep
from braided.engine.heavy import HeavyKeys
from braided.engine.initial import RUN_SCHEMA, Imported, imported
from braided.engine.processor_input import Groups, PandasReader, RowReader
from braided.engine.processor_run import ProcessorRuntime
from braided.engine.processor_stage import program_of
from braided.engine.program import PackedProgram, pack
from braided.engine.route import PLACE, PLACE_SHIFT, quoted
from braided.engine.snapshots import snapshot
from braided.errors import BraidedError
from braided.state.manifest import OperatorMeta
from braided.state.slot import SlotState, empty_slot

__all__ = ["write_first_state"]


def write_first_state(
    step: ProcessorStep, meta: OperatorMeta, root: str, batch: int, times: BatchTimes
) -> Imported:
    """Runs `handleInitialState`; nothing counts before a manifest names what it left."""
    assert step.initial is not None
    df, names = step.initial.df, step.initial.keys
    keys = ", ".join(map(quoted, names))
    place = f"shiftleft(pmod(xxhash64({keys}), {meta.slots}), {PLACE_SHIFT}) AS {PLACE}"
    tasks = min(meta.slots, 4 * df.sparkSession.sparkContext.defaultParallelism)
    slot = f"shiftright({PLACE}, {PLACE_SHIFT})"
    placed = (
        df.selectExpr(*map(quoted, df.columns), place)
        .repartitionById(tasks, F.expr(f"int({slot} % {tasks})"))
        .sortWithinPartitions(PLACE, *map(quoted, names))
    )
    program = replace(
        program_of(step),
        input=df.schema,
        key_positions=tuple(df.columns.index(name) for name in names),
    )
    write = _Writer(pack(program, step.broadcasts), meta.history, root, batch, times)
    try:
        return imported(placed.mapInArrow(write, RUN_SCHEMA).collect())
    except PySparkException as error:
        raise from_worker(error) or error from None


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
        reader = (PandasReader if program.pandas else RowReader)(program, 0)
        chunks = (chunk for chunk in chunks if chunk.num_rows)
        groups = Groups(chunks, reader, program.keys, list(program.key_positions), HeavyKeys())
        runtime = ProcessorRuntime(
            program, self.history, self.times.batch_time_ms, self.times.watermark_ms
        )
        slots: dict[int, SlotState] = {}
        for number, key, values, rows, _ in groups:
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = empty_slot()
            runtime.start()
            runtime.key.open(slot, key)
            row: Any = None
            try:
                for row in rows:
                    runtime.op.handleInitialState(values, row, runtime.times)
                runtime.key.close()
            except Exception as error:
                raise operator_failure(error, program.name, values, row, self.batch, None) from None
        runtime.stop()
        return {number: slot.items() for number, slot in slots.items()}

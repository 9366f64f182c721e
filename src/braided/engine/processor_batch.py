"""A StatefulProcessor on a DataFrame that is not streaming: one batch, and no state after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.engine.failure import to_text
from braided.engine.flow import ProcessorStep
from braided.engine.processor_run import ProcessorRun
from braided.engine.processor_stage import program_of
from braided.engine.program import PackedProgram, pack
from braided.engine.route import PLACE, PLACE_SHIFT, Route
from braided.engine.spec import BatchSpec, ChannelSpec, TaskSpec
from braided.errors import BraidedError
from braided.state.declared import VARIABLES
from braided.state.manifest import OperatorMeta
from braided.state.slot import SlotState, empty_slot
from braided.state.slots import Limits

__all__ = ["process_batch"]


def process_batch(df: DataFrame, step: ProcessorStep) -> DataFrame:
    """What a processor gives out for all rows of a DataFrame."""
    tasks = int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    route = Route(step.keys, tasks, 0)
    hidden = step.keys.hidden()
    placed = route.placed(df.select("*", *hidden) if hidden else df)
    routed = placed.repartitionById(tasks, F.expr(f"int(shiftright({PLACE}, {PLACE_SHIFT}))"))
    program = pack(program_of(step), step.broadcasts)
    task = _BatchTask(program, step.state, step.time_mode, int(time.time() * 1000))
    return routed.sortWithinPartitions(PLACE).mapInArrow(task, step.output)


class _Memory:
    """Slots that are gone when the task is."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotState] = {}

    def prepare(self, slots: Iterable[int]) -> None:
        for number in slots:
            self._slots.setdefault(number, empty_slot())

    def slot(self, number: int) -> SlotState:
        self.prepare([number])
        return self._slots[number]


class _BatchRun(ProcessorRun):
    def _open(self, spec: ChannelSpec) -> Any:
        return _Memory()


@dataclass(frozen=True)
class _BatchTask:
    """What `mapInArrow` calls in every partition."""

    program: PackedProgram
    state: str
    time_mode: str
    now_ms: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        channel = context.partitionId() if context is not None else 0
        program = self.program.unpack()
        spec = TaskSpec(
            program=self.program,
            meta=OperatorMeta(0, 1, "", self.state, VARIABLES, self.time_mode),
            flow="",
            root="",
            cache="",
            limits=Limits(),
            order=0,
            keep_order=False,
            processor=True,
        )
        # As in Spark: there is a time, but no watermark.
        batch = BatchSpec("", 0, self.now_ms, -1, -1, {}, None)
        run = _BatchRun(spec, program, batch, channel)
        try:
            try:
                yield from run.process(chunks)
            except BaseException:
                run.abandon()
                raise
            run.runtime.stop()
        except BraidedError as error:
            raise RuntimeError(to_text(error)) from None

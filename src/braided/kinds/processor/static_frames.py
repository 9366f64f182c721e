"""A StatefulProcessor on a DataFrame that is not streaming: one batch, and no state after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.errors import BraidedError
from braided.flow.route import Route, slot_of_place
from braided.kinds.processor.first_state import (
    handle_initial,
    initial_program,
    placed_initial,
    unnamed,
)
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.run import ProcessorRun
from braided.kinds.processor.step import ProcessorStep
from braided.spark.sql_text import quoted
from braided.store.codec_names import VARIABLES
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.slot import SlotState, empty_slot
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE
from braided.tasks.failure import to_text
from braided.tasks.packing import PackedProgram, pack
from braided.tasks.spec import BatchSpec, TaskSpec

__all__ = ["process_batch"]

_INITIAL = "__braided_initial"


def process_batch(df: DataFrame, step: ProcessorStep) -> DataFrame:
    """What a processor gives out for all rows of a DataFrame."""
    tasks = int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    route = Route(step.keys, tasks, 0)
    hidden = step.keys.hidden()
    rows = route.placed(df.select("*", *hidden) if hidden else df)
    # By the key, too: several may have one place.
    order, first = [F.col(PLACE), *map(F.expr, step.keys.sql())], None
    if step.initial is not None:
        rows = _initial_then_rows(placed_initial(step.initial, tasks), rows)
        first = pack(initial_program(step.initial, step.program()), step.broadcasts)
        keys = [F.col(_INITIAL).getField(name) for name in step.initial.keys]
        order = [F.col(_INITIAL).isNull(), *order, *keys]
    routed = rows.repartitionById(tasks, F.expr(slot_of_place()))
    task = _BatchTask(step.packed(), first, step.state, step.time_mode, int(time.time() * 1000))
    return unnamed(routed.sortWithinPartitions(*order)).mapInArrow(task, step.output)


def _initial_then_rows(initial: DataFrame, rows: DataFrame) -> DataFrame:
    """Both in one DataFrame: the rows with a first column more, which only initial ones have."""
    first = F.struct(*(F.col(quoted(name)) for name in initial.columns[:-1])).alias(_INITIAL)
    nothing = [
        F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields[:-1]
    ]
    begin = initial.select(first, *nothing, PLACE)
    no_first = F.lit(None).cast(begin.schema[_INITIAL].dataType).alias(_INITIAL)
    return begin.union(rows.select(no_first, "*"))


class _Parted:
    """The chunks of such rows, in order: first what is initial, then all others as they were."""

    def __init__(self, chunks: Iterator[pa.RecordBatch]) -> None:
        self._chunks = chunks
        self._rest: list[pa.RecordBatch] = []

    def initial(self) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks:
            first = chunk.column(0)
            count = len(first) - first.null_count
            if count:
                columns = first.slice(0, count).flatten()
                place = chunk.column(chunk.num_columns - 1).slice(0, count)
                names = [*(field.name for field in first.type), PLACE]
                yield pa.RecordBatch.from_arrays([*columns, place], names=names)
            if count < chunk.num_rows:
                self._rest.append(chunk.slice(count))
                return

    def others(self) -> Iterator[pa.RecordBatch]:
        for chunk in chain(self._rest, self._chunks):
            yield chunk.select(range(1, chunk.num_columns))


class _MemorySlots:
    """Slots that are gone when the task is."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotState] = {}

    def open_slots(self, slots: Iterable[int]) -> None:
        for number in slots:
            self._slots.setdefault(number, empty_slot())

    def slot(self, number: int) -> SlotState:
        self.open_slots([number])
        return self._slots[number]

    def close(self) -> None:
        """There is nothing behind them to let go of."""


@dataclass(frozen=True)
class _BatchTask:
    """What `mapInArrow` calls in every partition."""

    program: PackedProgram
    initial: PackedProgram | None
    state: str
    time_mode: str
    now_ms: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        program = self.program.unpack()
        spec = TaskSpec(
            program=self.program,
            meta=OperatorMeta(0, 1, "", self.state, VARIABLES, self.time_mode),
            flow="",
            store=LocalStore(""),  # never touched: slots are in memory
            cache=None,
            limits=SnapshotLimits(),
            order=0,
            keep_order=False,
        )
        # As in Spark: there is a time, but no watermark.
        batch = BatchSpec("", 0, self.now_ms, -1, -1, {}, None)
        channel = Channel(spec, program.name, batch, number, _MemorySlots())
        run = ProcessorRun(channel, program)
        try:
            try:
                if self.initial is not None:
                    parted = _Parted(chunks)
                    _handle_initial(run, self.initial.unpack(), parted.initial())
                    chunks = parted.others()
                yield from run.process(chunks)
            except BaseException:
                run.abandon()
                raise
            run.runtime.stop()
        except BraidedError as error:
            raise RuntimeError(to_text(error)) from None


def _handle_initial(
    run: ProcessorRun, program: ProcessorProgram, chunks: Iterator[pa.RecordBatch]
) -> None:
    """Before the rows: what `handleInitialState` leaves. `program` reads such rows."""
    channel = run.channel

    def slot_of(number: int) -> SlotState:
        channel.meter.touch([number])
        return channel.state.slot(number)

    handle_initial(program, run.runtime, chunks, slot_of, channel.batch.batch)

"""What Spark calls for a channel of an operator, and which way its rows then go."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from braided.kinds.operator.divert import Diverting
from braided.kinds.operator.key_by_key import KeyByKey
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.kinds.operator.way import Way
from braided.kinds.operator.whole_keys import WholeKeys
from braided.tasks.channel import Channel
from braided.tasks.spec import BatchSpec, TaskSpec
from braided.tasks.task import ChannelTask

__all__ = ["OperatorTask", "begin_run", "import_task"]


class OperatorTask(ChannelTask):
    """One channel of an operator."""

    def begin(self, batch: BatchSpec, number: int) -> OperatorRun:
        return begin_run(self.spec, self.spec.program.unpack(), batch, number)


def begin_run(spec: TaskSpec, program: Program, batch: BatchSpec, number: int) -> OperatorRun:
    channel = Channel.open(spec, program.name, batch, number)
    return OperatorRun(channel, program, _way_of(spec))


def _way_of(spec: TaskSpec) -> type[Way]:
    """How a task runs: able to take back what a hook did, with its rows' order, or quickly."""
    if spec.divert:
        return Diverting
    return KeyByKey if spec.keep_order else WholeKeys


def import_task(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Does nothing, in a worker that has imported this module and its libraries to do so."""
    return chunks

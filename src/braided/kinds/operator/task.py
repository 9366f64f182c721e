"""What Spark calls for a channel of an operator, and which way its rows then go."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from braided.kinds.operator.divert import DivertingRun
from braided.kinds.operator.run import ChannelRun
from braided.kinds.operator.whole_keys import WholeKeysRun
from braided.tasks.channel import ChannelTask
from braided.tasks.spec import BatchSpec, TaskSpec

__all__ = ["OperatorTask", "import_task", "run_of"]


class OperatorTask(ChannelTask):
    """One channel of an operator."""

    def begin(self, batch: BatchSpec, channel: int) -> ChannelRun:
        spec = self.spec
        return run_of(spec)(spec, spec.program.unpack(), batch, channel)


def run_of(spec: TaskSpec) -> type[ChannelRun]:
    """How a task runs: able to take back what a hook did, with its rows' order, or quickly."""
    if spec.divert:
        return DivertingRun
    return ChannelRun if spec.keep_order else WholeKeysRun


def import_task(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Does nothing, in a worker that has imported this module and its libraries to do so."""
    return chunks

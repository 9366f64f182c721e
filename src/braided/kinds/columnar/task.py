"""What Spark calls for a channel of a columnar operator."""

from __future__ import annotations

from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.run import ColumnRun
from braided.tasks.channel import Channel
from braided.tasks.spec import BatchSpec, TaskSpec
from braided.tasks.task import ChannelTask

__all__ = ["ColumnTask", "begin_run"]


class ColumnTask(ChannelTask):
    """One channel of a columnar operator."""

    def begin(self, batch: BatchSpec, number: int) -> ColumnRun:
        return begin_run(self.spec, self.spec.program.unpack(), batch, number)


def begin_run(spec: TaskSpec, program: ColumnProgram, batch: BatchSpec, number: int) -> ColumnRun:
    return ColumnRun(Channel.open(spec, program.name, batch, number), program)

"""What Spark calls for a channel of a StatefulProcessor."""

from __future__ import annotations

from braided.kinds.processor.run import ProcessorRun
from braided.tasks.channel import Channel
from braided.tasks.spec import BatchSpec
from braided.tasks.task import ChannelTask

__all__ = ["ProcessorTask"]


class ProcessorTask(ChannelTask):
    """One channel of a processor."""

    def begin(self, batch: BatchSpec, number: int) -> ProcessorRun:
        program = self.spec.program.unpack()
        return ProcessorRun(Channel.open(self.spec, program.name, batch, number), program)

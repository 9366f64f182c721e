"""What Spark calls for a channel of a StatefulProcessor."""

from __future__ import annotations

from braided.kinds.processor.run import ProcessorRun
from braided.tasks.channel import ChannelTask
from braided.tasks.spec import BatchSpec

__all__ = ["ProcessorTask"]


class ProcessorTask(ChannelTask):
    """One channel of a processor."""

    def begin(self, batch: BatchSpec, channel: int) -> ProcessorRun:
        return ProcessorRun(self.spec, self.spec.program.unpack(), batch, channel)

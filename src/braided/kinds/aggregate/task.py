"""What Spark calls for a channel of an aggregation."""

from __future__ import annotations

from dataclasses import dataclass

from braided.kinds.aggregate.program import AggregateProgram
from braided.kinds.aggregate.run import AggregateRun
from braided.tasks.channel import Channel
from braided.tasks.spec import BatchSpec, ChannelSpec
from braided.tasks.task import ChannelTask

__all__ = ["AggregateSpec", "AggregateTask"]


@dataclass(frozen=True)
class AggregateSpec(ChannelSpec):
    """What is the same for all its tasks; its program is ours and travels as it is."""

    program: AggregateProgram


class AggregateTask(ChannelTask):
    """One channel of an aggregation."""

    def begin(self, batch: BatchSpec, number: int) -> AggregateRun:
        program = self.spec.program
        return AggregateRun(Channel.open(self.spec, program.name, batch, number), program)

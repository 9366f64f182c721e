"""A StatefulProcessor as a stage of a batch's plan."""

from __future__ import annotations

from typing import Any

from braided.flow.graph import ProcessorStep
from braided.kinds.operator.program import PackedProgram, pack
from braided.kinds.operator.stage import Stage
from braided.kinds.processor.program import ProcessorProgram

__all__ = ["ProcessorStage", "program_of"]


class ProcessorStage(Stage):
    """One processor with all that does not change between batches."""

    runs_processor = True

    def _pack(self) -> PackedProgram:
        assert isinstance(self.step, ProcessorStep)
        return pack(program_of(self.step), self.step.broadcasts)


def program_of(step: ProcessorStep) -> ProcessorProgram:
    """What travels to the workers of a processor."""
    names: list[Any] = step.output.names
    return ProcessorProgram(
        name=step.name,
        processor=step.processor,
        time_mode=step.time_mode,
        pandas=step.pandas,
        input=step.input,
        key=step.key_schema,
        key_positions=tuple(step.keys.positions(step.input.names)),
        output=step.output,
        schemas=dict(step.schemas),
        expires=any(variable.expires for variable in step.declared.variables),
        settings=step.settings,
        exact_frames=step.exact_frames,
        event_time=names.index(step.event_time) if step.event_time else None,
    )

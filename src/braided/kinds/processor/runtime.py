"""One processor, with its handle, for all keys of a task."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.stateful_processor import TimerValues

from braided.kinds.processor.group_state import GroupStateProcessor
from braided.kinds.processor.handle import ProcessorHandle
from braided.kinds.processor.program import ProcessorProgram
from braided.store.variables.declared import Declared
from braided.store.variables.open_key import OpenKey

__all__ = ["ProcessorRuntime"]


class ProcessorRuntime:
    """A processor with its handle, for one task."""

    def __init__(
        self,
        program: ProcessorProgram,
        history: tuple[str, ...],
        batch_time_ms: int,
        watermark_ms: int,
    ) -> None:
        declared = Declared.read(history[-1])
        self.op: Any = program.make()
        self.key = OpenKey(batch_time_ms, frozenset(declared.retired))
        self.handle = ProcessorHandle(program.time_mode, self.key, history, program.schemas)
        self.times = TimerValues(batch_time_ms, watermark_ms)
        if program.time_mode == "None" and not getattr(self.op, "always_timed", False):
            self.times = TimerValues(-1, -1)
        self._started = False
        self._phase = "INITIALIZED"

    def start(self) -> None:
        """Have `init` called, if it was not; before the first key."""
        if not self._started:
            self._started = True
            self.op.init(self.handle)
            self.handle.enter(self._phase)

    def enter(self, phase: str) -> None:
        self._phase = phase
        if self._started:
            self.handle.enter(phase)

    def stop(self) -> None:
        """Have `close` called, if `init` was."""
        if self._started:
            self._started = False
            self.handle.enter("CLOSED")
            self.op.close()

    def code(self) -> Any:
        return self.op.function if isinstance(self.op, GroupStateProcessor) else type(self.op)

    def advice(self, error: BaseException) -> str | None:
        return None

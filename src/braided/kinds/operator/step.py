"""An Operator as a keyed step of a flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from braided.flow.step import FieldsByKey
from braided.kinds.class_first_state import FirstStateWriter
from braided.kinds.class_step import ClassStep
from braided.kinds.operator.contents import state_of
from braided.kinds.operator.first_state import FieldsWriter, check_initial
from braided.kinds.operator.merging import merge_parts
from braided.kinds.operator.program import Program
from braided.kinds.operator.stage import OperatorStage
from braided.operator.definition import state_codec
from braided.store.codec_names import RECORDS
from braided.store.durable.store import Store
from braided.store.records.old_records import evolve
from braided.tasks.stage import StageSetting

__all__ = ["OperatorStep"]


@dataclass(frozen=True)
class OperatorStep(ClassStep):
    """An Operator, wherever it stands in a flow."""

    codec: ClassVar[str] = RECORDS
    first_state_writer: ClassVar[type[FirstStateWriter]] = FieldsWriter
    can_divert: ClassVar[bool] = True
    counts_pairs: ClassVar[bool] = True

    @property
    def state(self) -> str:
        return state_codec(self.operator).describe()

    @property
    def fires(self) -> bool:
        return hasattr(self.operator, "onTimer")

    def evolved(self, history: tuple[str, ...]) -> tuple[str, ...]:
        return evolve(state_codec(self.operator), self.name, history)

    def check_initial(self, initial: DataFrame) -> None:
        check_initial(initial, self.operator, self.key_schema)

    def state_of(self, files: Store) -> FieldsByKey:
        return state_of(files, self.name, self.operator, self.key_schema)

    @property
    def merges(self) -> Callable[..., bytes | None] | None:
        """Timers belong to a whole key, and rows of two inputs to each other."""
        cls = self.operator
        can_merge = getattr(cls, "merge", None) is not None
        return merge_parts if can_merge and not hasattr(cls, "onTimer") and not self.sides else None

    def stage(self, setting: StageSetting) -> OperatorStage:
        return OperatorStage(self.program().pack(), self.keys, self.input, self.output, setting)

    def program(self) -> Program:
        return Program(
            name=self.name,
            operator=self.operator,
            time_mode=self.time_mode,
            input=self.input,
            key=self.key_schema,
            key_positions=tuple(self.keys.positions(self.input.names)),
            output=self.output,
            sides=self.sides,
        )

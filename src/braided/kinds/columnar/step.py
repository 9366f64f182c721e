"""A ColumnOperator as a keyed step of a flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame

from braided.flow.step import FieldsByKey
from braided.kinds.class_first_state import FirstStateWriter
from braided.kinds.class_step import ClassStep
from braided.kinds.columnar.contents import state_of
from braided.kinds.columnar.first_state import ColumnsWriter, check_initial
from braided.kinds.columnar.merging import merge_parts
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.stage import ColumnStage
from braided.operator.columns import column_codec
from braided.store.codec_names import ARROW_FIELDS
from braided.store.columnar.fields import evolve
from braided.store.durable.store import Store
from braided.tasks.stage import StageSetting

__all__ = ["ColumnStep"]


@dataclass(frozen=True)
class ColumnStep(ClassStep):
    """A ColumnOperator, wherever it stands in a flow."""

    codec: ClassVar[str] = ARROW_FIELDS
    first_state_writer: ClassVar[type[FirstStateWriter]] = ColumnsWriter
    can_divert: ClassVar[bool] = False
    counts_pairs: ClassVar[bool] = False

    @property
    def state(self) -> str:
        return column_codec(self.operator).describe()

    @property
    def fires(self) -> bool:
        return hasattr(self.operator, "onDue")

    def evolved(self, history: tuple[str, ...]) -> tuple[str, ...]:
        return evolve(column_codec(self.operator), self.name, history)

    def check_initial(self, initial: DataFrame) -> None:
        check_initial(initial, self.operator, self.key_schema)

    def state_of(self, files: Store) -> FieldsByKey:
        return state_of(files, self.name, self.operator, self.key_schema)

    @property
    def merges(self) -> Callable[..., bytes | None] | None:
        """A time at which a key is due belongs to the whole key."""
        cls = self.operator
        can_merge = bool(cls._merges) or getattr(cls, "merge", None) is not None
        return merge_parts if can_merge and not hasattr(cls, "onDue") else None

    def stage(self, setting: StageSetting) -> ColumnStage:
        return ColumnStage(self.program().pack(), self.keys, self.input, self.output, setting)

    def program(self) -> ColumnProgram:
        return ColumnProgram(
            name=self.name,
            operator=self.operator,
            time_mode=self.time_mode,
            input=self.input,
            key=self.key_schema,
            key_positions=tuple(self.keys.positions(self.input.names)),
            output=self.output,
        )

"""A ColumnOperator as a keyed step of a flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.flow.route import GroupingKeys
from braided.flow.step import FieldsByKey, ImportedState, KeyedStep, MergeParts
from braided.kinds.columnar.contents import state_of
from braided.kinds.columnar.first_state import write_initial
from braided.kinds.columnar.merging import merge_parts
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.stage import ColumnStage
from braided.operator.columns import ColumnOperator, column_codec
from braided.spark.offset_log import BatchTimes
from braided.store.codec_names import ARROW_FIELDS
from braided.store.columnar.fields import evolve
from braided.store.durable.open_store import checkpoint_store
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.tasks.first_state import FirstState
from braided.tasks.spec import BatchSpec
from braided.tasks.stage import StageSetting

__all__ = ["ColumnStep", "continued_fields"]


@dataclass(frozen=True)
class ColumnStep:
    """A ColumnOperator, wherever it stands in a flow."""

    fires_at_start: ClassVar[bool] = False
    visits_all_slots: ClassVar[bool] = False
    gives_complete: ClassVar[bool] = False
    can_divert: ClassVar[bool] = False
    time_column: ClassVar[str] = ""
    goes_by_class: ClassVar[bool] = False
    can_be_pinned: ClassVar[bool] = True
    counts_pairs: ClassVar[bool] = False
    sides: ClassVar[tuple[StructType, ...]] = ()

    name: str
    operator: type[ColumnOperator]
    key_schema: StructType
    keys: GroupingKeys
    input: StructType
    output: StructType
    time_mode: str
    initial: DataFrame | None = None
    """The state that it starts with, where the checkpoint has none of it."""

    @property
    def label(self) -> str:
        return self.operator.__name__

    @property
    def arriving(self) -> StructType:
        return self.input

    @property
    def state(self) -> str:
        return column_codec(self.operator).describe()

    @property
    def codec(self) -> str:
        return ARROW_FIELDS

    @property
    def fires(self) -> bool:
        return hasattr(self.operator, "onDue")

    @property
    def drops_late_rows(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def late_output(self) -> Callable[[int], str] | None:
        return None

    @property
    def needs_watermark(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def minds_watermark(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def starts_with_state(self) -> bool:
        return self.initial is not None

    def continued(self, kept: OperatorMeta) -> OperatorMeta:
        return continued_fields(self.name, self.operator, kept)

    def imported(self, files: Store, meta: OperatorMeta) -> ImportedState | None:
        return None

    def write_first_state(
        self, meta: OperatorMeta, store: Store, batch: int, times: BatchTimes
    ) -> FirstState:
        if self.initial is None:
            return FirstState()
        return write_initial(
            self.initial, self.operator, self.name, self.key_schema, meta, store, batch
        )

    def fields_in(self, checkpoint: Path) -> FieldsByKey | None:
        return state_of(checkpoint_store(checkpoint), self.name, self.operator, self.key_schema)

    @property
    def merge_parts(self) -> MergeParts | None:
        """A time at which a key is due belongs to the whole key."""
        cls = self.operator
        can_merge = bool(cls._merges) or getattr(cls, "merge", None) is not None
        if not can_merge or hasattr(cls, "onDue"):
            return None
        program = self.program()

        def merge(
            meta: OperatorMeta,
            batch: BatchSpec,
            key: bytes,
            whole: bytes | None,
            parts: Sequence[bytes],
        ) -> bytes | None:
            return merge_parts(program, meta.history, batch, key, whole, parts)

        return merge

    def named(self, name: str) -> KeyedStep:
        return replace(self, name=name)

    def as_kept(self, kept: OperatorMeta) -> KeyedStep:
        return self

    def in_mode(self, mode: str, before_keyed: bool) -> KeyedStep:
        return self

    def check_feedback(self) -> None:
        """It takes rows from wherever they come."""

    def stage(self, setting: StageSetting) -> ColumnStage:
        return ColumnStage(self.program().pack(), self.keys, self.input, self.output, setting)

    def program(self) -> ColumnProgram:
        """What its tasks run."""
        return ColumnProgram(
            name=self.name,
            operator=self.operator,
            time_mode=self.time_mode,
            input=self.input,
            key=self.key_schema,
            key_positions=tuple(self.keys.positions(self.input.names)),
            output=self.output,
        )


def continued_fields(name: str, operator: type[ColumnOperator], kept: OperatorMeta) -> OperatorMeta:
    """What the checkpoint is to know of an operator whose fields it knows as `kept`."""
    *earlier, state = evolve(column_codec(operator), name, kept.history)
    return msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))

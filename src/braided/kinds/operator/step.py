"""An Operator as a keyed step of a flow."""

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
from braided.kinds.operator.contents import state_of
from braided.kinds.operator.first_state import write_initial
from braided.kinds.operator.merging import merge_parts
from braided.kinds.operator.program import Program
from braided.kinds.operator.stage import OperatorStage
from braided.operator.definition import Operator, state_codec
from braided.spark.offset_log import BatchTimes
from braided.store.codec_names import RECORDS
from braided.store.durable.open_store import checkpoint_store
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.store.records.old_records import evolve
from braided.tasks.first_state import FirstState
from braided.tasks.spec import BatchSpec
from braided.tasks.stage import StageSetting

__all__ = ["OperatorStep", "continued_fields"]


@dataclass(frozen=True)
class OperatorStep:
    """An Operator, wherever it stands in a flow."""

    fires_at_start: ClassVar[bool] = False
    visits_all_slots: ClassVar[bool] = False
    gives_complete: ClassVar[bool] = False
    can_divert: ClassVar[bool] = True
    time_column: ClassVar[str] = ""
    goes_by_class: ClassVar[bool] = False
    can_be_pinned: ClassVar[bool] = True
    counts_pairs: ClassVar[bool] = True

    name: str
    operator: type[Operator]
    key_schema: StructType
    keys: GroupingKeys
    input: StructType
    """The rows that reach its tasks; of two inputs, the columns of both."""
    output: StructType
    time_mode: str
    sides: tuple[StructType, ...] = ()
    """The rows of each input, where there are two."""
    initial: DataFrame | None = None
    """The state that it starts with, where the checkpoint has none of it."""

    @property
    def label(self) -> str:
        return self.operator.__name__

    @property
    def arriving(self) -> StructType:
        """The columns of the rows that its tasks get."""
        return self.input

    @property
    def state(self) -> str:
        """The fields of its state, as a checkpoint records them."""
        return state_codec(self.operator).describe()

    @property
    def codec(self) -> str:
        """The encoding of its state, as a checkpoint records it."""
        return RECORDS

    @property
    def fires(self) -> bool:
        """Whether timers of its state lead to work."""
        return hasattr(self.operator, "onTimer")

    @property
    def drops_late_rows(self) -> bool:
        """Whether rows behind the watermark are dropped before they reach it."""
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
        """Timers belong to a whole key, and rows of two inputs to each other."""
        cls = self.operator
        if getattr(cls, "merge", None) is None or hasattr(cls, "onTimer") or self.sides:
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
        """An Operator takes rows from wherever they come."""

    def stage(self, setting: StageSetting) -> OperatorStage:
        return OperatorStage(self.program().pack(), self.keys, self.input, self.output, setting)

    def program(self) -> Program:
        """What its tasks run."""
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


def continued_fields(name: str, operator: type[Operator], kept: OperatorMeta) -> OperatorMeta:
    """What the checkpoint is to know of an operator whose fields it knows as `kept`."""
    *earlier, state = evolve(state_codec(operator), name, kept.history)
    return msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))

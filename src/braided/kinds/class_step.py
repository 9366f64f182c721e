"""What steps that a user's class is behind have in common, whatever is called of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.flow.route import GroupingKeys
from braided.flow.step import FieldsByKey, ImportedState, MergeParts
from braided.kinds.class_first_state import FirstStateWriter, write_first_state
from braided.spark.offset_log import BatchTimes
from braided.store.durable.open_store import checkpoint_store
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.tasks.first_state import FirstState
from braided.tasks.spec import BatchSpec
from braided.tasks.stage import KeyedStage, StageSetting

__all__ = ["ClassStep", "with_fields"]


def with_fields(kept: OperatorMeta, history: tuple[str, ...]) -> OperatorMeta:
    """What the checkpoint is to know of an operator whose fields have been these, the last now."""
    *earlier, state = history
    return msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))


@dataclass(frozen=True)
class ClassStep(ABC):
    """A class of operators, wherever it stands in a flow."""

    codec: ClassVar[str]
    """The encoding of its state, as a checkpoint records it."""
    first_state_writer: ClassVar[type[FirstStateWriter]]
    """Writes the state that it is given to start with."""
    can_divert: ClassVar[bool]
    counts_pairs: ClassVar[bool]
    fires_at_start: ClassVar[bool] = False
    visits_all_slots: ClassVar[bool] = False
    gives_complete: ClassVar[bool] = False
    time_column: ClassVar[str] = ""
    goes_by_class: ClassVar[bool] = False
    can_be_pinned: ClassVar[bool] = True

    name: str
    operator: type[Any]
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

    # -- what differs from kind to kind ------------------------------------------------------

    @property
    @abstractmethod
    def state(self) -> str:
        """The fields of its state, as a checkpoint records them."""

    @property
    @abstractmethod
    def fires(self) -> bool:
        """Whether timers of its state lead to work."""

    @abstractmethod
    def evolved(self, history: tuple[str, ...]) -> tuple[str, ...]:
        """The fields that its state had, in all versions, and has."""

    @abstractmethod
    def stage(self, setting: StageSetting) -> KeyedStage:
        """It as a stage of the plans of a query."""

    @abstractmethod
    def program(self) -> Any:
        """What its tasks run."""

    @abstractmethod
    def check_initial(self, initial: DataFrame) -> None:
        """Refuses a state to start with that has not the grouping columns and fields only."""

    @abstractmethod
    def state_of(self, files: Store) -> FieldsByKey:
        """The fields that the newest batch has of it."""

    @property
    @abstractmethod
    def merges(self) -> Callable[..., bytes | None] | None:
        """What merges parts of a key, by its program; None where the rows of a key have to stay
        together.
        """

    # -- what does not -----------------------------------------------------------------------

    @property
    def label(self) -> str:
        return self.operator.__name__

    @property
    def arriving(self) -> StructType:
        """The columns of the rows that its tasks get."""
        return self.input

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
        return with_fields(kept, self.evolved(kept.history))

    def imported(self, files: Store, meta: OperatorMeta) -> ImportedState | None:
        return None

    def write_first_state(
        self, meta: OperatorMeta, store: Store, batch: int, times: BatchTimes
    ) -> FirstState:
        if self.initial is None:
            return FirstState()

        def writer(columns: tuple[str, ...]) -> FirstStateWriter:
            return self.first_state_writer(
                self.operator, self.name, self.key_schema, columns, store, batch
            )

        return write_first_state(self.initial, self.key_schema, meta.slots, writer)

    def fields_in(self, checkpoint: Path) -> FieldsByKey | None:
        return self.state_of(checkpoint_store(checkpoint))

    @property
    def merge_parts(self) -> MergeParts | None:
        merges = self.merges
        if merges is None:
            return None
        program = self.program()

        def merge(
            meta: OperatorMeta,
            batch: BatchSpec,
            key: bytes,
            whole: bytes | None,
            parts: Sequence[bytes],
        ) -> bytes | None:
            return merges(program, meta.history, batch, key, whole, parts)

        return merge

    def named(self, name: str) -> Self:
        return replace(self, name=name)

    def as_kept(self, kept: OperatorMeta) -> Self:
        return self

    def in_mode(self, mode: str, before_keyed: bool) -> Self:
        return self

    def check_feedback(self) -> None:  # noqa: B027 - there is nothing to refuse
        """It takes rows from wherever they come."""

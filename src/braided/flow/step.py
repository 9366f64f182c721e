"""What a keyed, stateful step is to the rest of Braided, whatever its kind.

A flow has steps, a batch's plan has their stages, and a checkpoint knows them by their metas. Each
kind of step is a folder of `kinds/` with a class that fulfils `KeyedStep`; nobody else asks of
which kind a step is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql.types import StructType

from braided.spark.offset_log import BatchTimes
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.tasks.first_state import FirstState
from braided.tasks.spec import BatchSpec
from braided.tasks.stage import KeyedStage, StageSetting

__all__ = ["FieldsByKey", "ImportedState", "KeyedStep", "MergeParts"]

FieldsByKey = dict[tuple[Any, ...], dict[str, Any]]

ImportedState = tuple[OperatorMeta, FirstState]
"""State that was brought in from elsewhere, and what the checkpoint is to know of it."""


class MergeParts(Protocol):
    """Makes one record of a key's state and what its shares came to in a batch."""

    def __call__(
        self,
        meta: OperatorMeta,
        batch: BatchSpec,
        key: bytes,
        whole: bytes | None,
        parts: Sequence[bytes],
    ) -> bytes | None: ...


class KeyedStep(Protocol):
    """One keyed, stateful step, wherever it stands in a flow."""

    @property
    def name(self) -> str:
        """What the checkpoint and the progress call it."""

    @property
    def label(self) -> str:
        """What it is called where it has been given no name."""

    @property
    def input(self) -> StructType:
        """The rows that it is given; of two inputs, the columns of both."""

    @property
    def arriving(self) -> StructType:
        """The columns of the rows that its tasks get."""

    @property
    def output(self) -> StructType: ...

    @property
    def key_schema(self) -> StructType: ...

    @property
    def sides(self) -> tuple[StructType, ...]:
        """The rows of each input, where there are two."""

    @property
    def time_mode(self) -> str: ...

    # -- its state -------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """What its state is made of, as a checkpoint records it."""

    @property
    def codec(self) -> str:
        """The encoding of its state, as a checkpoint records it."""

    @property
    def starts_with_state(self) -> bool:
        """Whether it was given state to start with, where the checkpoint has none of it."""

    def continued(self, kept: OperatorMeta) -> OperatorMeta:
        """What the checkpoint is to know from now on of a step that it knows as `kept`; refuses
        state that the step can't continue.
        """

    def imported(self, files: Store, meta: OperatorMeta) -> ImportedState | None:
        """State that was brought in from elsewhere for a step that is new to the checkpoint."""

    def write_first_state(
        self, meta: OperatorMeta, store: Store, batch: int, times: BatchTimes
    ) -> FirstState:
        """Writes the state that it starts with; nothing counts before a manifest names it."""

    def fields_in(self, checkpoint: Path) -> FieldsByKey | None:
        """The fields that a checkpoint's newest batch has of it; None where its state is not the
        fields of a class.
        """

    # -- time ------------------------------------------------------------------------------

    @property
    def fires(self) -> bool:
        """Whether timers of its state lead to work."""

    @property
    def fires_at_start(self) -> bool:
        """Whether timers of its first state may be due in its first batch."""

    @property
    def visits_all_slots(self) -> bool:
        """Whether every batch goes through all slots, whatever is due."""

    @property
    def drops_late_rows(self) -> bool:
        """Whether rows behind the watermark are dropped before they reach it."""

    @property
    def needs_watermark(self) -> bool:
        """Whether it can't run without a watermark on some input."""

    @property
    def minds_watermark(self) -> bool:
        """Whether something changes for it when the watermark moves."""

    @property
    def late_output(self) -> Callable[[int], str] | None:
        """SQL that keeps its output rows that are not late, given the watermark in ms; None where
        they have no event time.
        """

    @property
    def time_column(self) -> str:
        """The output column that has the event time of what comes after; "" where none has."""

    # -- what can be done with it ----------------------------------------------------------

    @property
    def gives_complete(self) -> bool:
        """Whether it has an answer to outputMode("complete")."""

    @property
    def can_divert(self) -> bool:
        """Whether a row whose hook raises can go to the dead letters."""

    @property
    def can_be_pinned(self) -> bool:
        """Whether a hot key of it can have another slot than that of its hash."""

    @property
    def counts_pairs(self) -> bool:
        """Whether its tasks can tell which key each row that they give out comes from, and so
        which keys occur together with those of the next step.
        """

    @property
    def merge_parts(self) -> MergeParts | None:
        """Merges what the shares of a split key came to into its state; None where the rows of a
        key have to stay together.
        """

    @property
    def goes_by_class(self) -> bool:
        """Whether nobody has named it, and Spark would know it by its position alone."""

    def named(self, name: str) -> KeyedStep: ...

    def as_kept(self, kept: OperatorMeta) -> KeyedStep:
        """The step as a checkpoint has it, where an earlier Braided did the same otherwise."""

    def in_mode(self, mode: str, before_keyed: bool) -> KeyedStep:
        """The step in Spark's output mode of the sinks that it leads to; refuses a mode in which
        it can't give results. `before_keyed` is whether another keyed step reads its output.
        """

    def check_feedback(self) -> None:
        """Refuses to be sent rows back, where that makes no sense."""

    def stage(self, setting: StageSetting) -> KeyedStage:
        """It as a stage of the plans of a query."""

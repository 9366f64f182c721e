"""An aggregation as a keyed step of a flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pyspark.sql.types import StructType

from braided.errors import CheckpointMismatchError, UnsupportedError, start_anew
from braided.flow.step import FieldsByKey, ImportedState, KeyedStep
from braided.kinds.aggregate.aggregation import Aggregation
from braided.kinds.aggregate.stage import AggregateStage
from braided.spark.offset_log import BatchTimes
from braided.store.codec_names import COLUMNS
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.tasks.first_state import FirstState
from braided.tasks.stage import StageSetting

__all__ = ["AggregateStep"]


@dataclass(frozen=True)
class AggregateStep:
    """A keyed aggregation, wherever it stands in a flow."""

    name: str
    aggregation: Aggregation
    input: StructType
    mode: str = "append"
    """Spark's output mode."""

    sides: ClassVar[tuple[StructType, ...]] = ()
    drops_late_rows: ClassVar[bool] = False
    """Never: what is late goes by the window and not by the row."""
    fires_at_start: ClassVar[bool] = False
    starts_with_state: ClassVar[bool] = False
    gives_complete: ClassVar[bool] = True
    can_divert: ClassVar[bool] = True
    time_column: ClassVar[str] = ""
    goes_by_class: ClassVar[bool] = False
    merge_parts: ClassVar[None] = None
    can_be_pinned: ClassVar[bool] = False
    counts_pairs: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return "agg"

    @property
    def arriving(self) -> StructType:
        fields = self.aggregation.columns.fields
        # A window is two columns as far as its width goes.
        inner = [f.dataType.fields if isinstance(f.dataType, StructType) else [f] for f in fields]
        return StructType([field for columns in inner for field in columns])

    @property
    def key_schema(self) -> StructType:
        return self.aggregation.key

    @property
    def output(self) -> StructType:
        return self.aggregation.output

    @property
    def time_mode(self) -> str:
        return "ProcessingTime" if self.aggregation.event_time is None else "EventTime"

    @property
    def state(self) -> str:
        aggregation = self.aggregation
        partials = aggregation.columns.fields[len(aggregation.groups) :]
        rules = [part.rule for part in aggregation.parts for _ in range(part.columns)]
        kept = zip(aggregation.labels, rules, partials, strict=True)
        return json.dumps([[label, rule, f.dataType.simpleString()] for label, rule, f in kept])

    @property
    def codec(self) -> str:
        return COLUMNS

    @property
    def fires(self) -> bool:
        return self.time_mode == "EventTime" and self.mode != "complete"

    @property
    def late_output(self) -> Callable[[int], str] | None:
        return None

    @property
    def visits_all_slots(self) -> bool:
        return self.mode == "complete"

    @property
    def needs_watermark(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def minds_watermark(self) -> bool:
        return self.time_mode == "EventTime" and self.fires

    def continued(self, kept: OperatorMeta) -> OperatorMeta:
        if kept.state != self.state:
            raise CheckpointMismatchError(
                f"the aggregates of {self.name!r} do not fit the state in this checkpoint: they "
                f"were {kept.state} and are now {self.state}. Change them back, "
                f"{start_anew(self.name)}"
            )
        return kept

    def imported(self, files: Store, meta: OperatorMeta) -> ImportedState | None:
        return None

    def write_first_state(
        self, meta: OperatorMeta, store: Store, batch: int, times: BatchTimes
    ) -> FirstState:
        return FirstState()

    def fields_in(self, checkpoint: Path) -> FieldsByKey | None:
        return None

    def named(self, name: str) -> KeyedStep:
        return replace(self, name=name)

    def as_kept(self, kept: OperatorMeta) -> KeyedStep:
        # The time that a processor declares was a group like any other once, and not for append.
        was_plain = self.aggregation.has_declared_time and kept.time_mode == "ProcessingTime"
        if was_plain and self.mode != "append":
            return replace(self, aggregation=self.aggregation.untimed())
        return self

    def in_mode(self, mode: str, before_keyed: bool) -> KeyedStep:
        if mode == "append" and self.aggregation.event_time is None:
            raise UnsupportedError(
                f"outputMode('append') gives out a result of {self.name!r} when it can't "
                "change any more, which only a watermark tells: use withWatermark and group "
                "by a window of that column, or outputMode('update')"
            )
        if mode == "complete" and before_keyed:
            raise UnsupportedError(
                f"outputMode('complete') with a keyed step after {self.name!r}: it would get "
                "all results anew in every batch. Use 'update'"
            )
        return replace(self, mode=mode)

    def check_feedback(self) -> None:
        raise UnsupportedError(
            f"feedback to the aggregation {self.name!r}: it would never end; feed an Operator"
        )

    def stage(self, setting: StageSetting) -> AggregateStage:
        return AggregateStage(self.name, self.mode, self.aggregation, setting)

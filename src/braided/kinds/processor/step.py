"""A StatefulProcessor as a keyed step of a flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from pyspark import Broadcast
from pyspark.sql.types import StructType

from braided.flow.route import GroupingKeys, late_filter
from braided.flow.step import FieldsByKey, ImportedState, KeyedStep
from braided.kinds.processor.first_state import InitialRows, write_first_state
from braided.kinds.processor.handle import Schemas
from braided.kinds.processor.native_import import imported_meta, read_import
from braided.kinds.processor.output import PandasSettings
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.stage import ProcessorStage
from braided.spark.offset_log import BatchTimes
from braided.spark.sql_text import quoted
from braided.store.codec_names import VARIABLES
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.store.variables.declared import Declared, evolved
from braided.tasks.first_state import FirstState
from braided.tasks.packing import PackedProgram, pack
from braided.tasks.stage import StageSetting

__all__ = ["ProcessorStep", "continued_variables"]


@dataclass(frozen=True)
class ProcessorStep:
    """A StatefulProcessor, wherever it stands in a flow."""

    fires_at_start: ClassVar[bool] = True  # as in Spark
    visits_all_slots: ClassVar[bool] = False
    needs_watermark: ClassVar[bool] = False
    """Spark runs a processor without a watermark, which is then 0 for ever."""
    gives_complete: ClassVar[bool] = False
    can_divert: ClassVar[bool] = False
    merge_parts: ClassVar[None] = None
    can_be_pinned: ClassVar[bool] = True
    counts_pairs: ClassVar[bool] = True

    name: str
    processor: bytes
    """Pickled."""
    label: str
    declared: Declared
    key_schema: StructType
    keys: GroupingKeys
    input: StructType
    output: StructType
    time_mode: str
    pandas: bool
    settings: PandasSettings
    schemas: Schemas
    broadcasts: tuple[Broadcast[Any], ...] = ()
    exact_frames: bool = False
    time_column: str = ""
    initial: InitialRows | None = None
    """What it starts with, where the checkpoint has no state of it."""
    sides: tuple[StructType, ...] = ()
    goes_by_class: bool = True

    @property
    def arriving(self) -> StructType:
        return self.input

    @property
    def state(self) -> str:
        return self.declared.numbered().describe()

    @property
    def codec(self) -> str:
        return VARIABLES

    @property
    def fires(self) -> bool:
        return self.time_mode != "None"

    @property
    def drops_late_rows(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def minds_watermark(self) -> bool:
        return self.time_mode == "EventTime"

    @property
    def late_output(self) -> Callable[[int], str] | None:
        return late_filter(quoted(self.time_column)) if self.time_column else None

    @property
    def starts_with_state(self) -> bool:
        return self.initial is not None

    def continued(self, kept: OperatorMeta) -> OperatorMeta:
        return continued_variables(self.name, self.declared, kept)

    def imported(self, files: Store, meta: OperatorMeta) -> ImportedState | None:
        found = read_import(files, self.name)
        if found is None:
            return None
        return imported_meta(found, self.name, meta, self.declared), found.content

    def write_first_state(
        self, meta: OperatorMeta, store: Store, batch: int, times: BatchTimes
    ) -> FirstState:
        if self.initial is None:
            return FirstState()
        return write_first_state(
            self.initial, self.program(), self.broadcasts, meta, store, batch, times
        )

    def fields_in(self, checkpoint: Path) -> FieldsByKey | None:
        return None

    def named(self, name: str) -> KeyedStep:
        return replace(self, name=name, goes_by_class=False)

    def as_kept(self, kept: OperatorMeta) -> KeyedStep:
        return self

    def in_mode(self, mode: str, before_keyed: bool) -> KeyedStep:
        return self

    def check_feedback(self) -> None:
        """A processor takes rows from wherever they come."""

    def stage(self, setting: StageSetting) -> ProcessorStage:
        return ProcessorStage(self.packed(), self.keys, self.input, self.output, setting)

    def packed(self) -> PackedProgram:
        return pack(self.program(), self.broadcasts)

    def program(self) -> ProcessorProgram:
        """What its tasks run."""
        names: list[Any] = self.output.names
        return ProcessorProgram(
            name=self.name,
            processor=self.processor,
            time_mode=self.time_mode,
            pandas=self.pandas,
            input=self.input,
            key=self.key_schema,
            key_positions=tuple(self.keys.positions(self.input.names)),
            output=self.output,
            schemas=dict(self.schemas),
            expires=any(variable.expires for variable in self.declared.variables),
            settings=self.settings,
            exact_frames=self.exact_frames,
            event_time=names.index(self.time_column) if self.time_column else None,
        )


def continued_variables(name: str, declared: Declared, kept: OperatorMeta) -> OperatorMeta:
    """What the checkpoint is to know of a processor whose variables it knows as `kept`."""
    *earlier, state = evolved(name, declared, kept.history)
    return msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))

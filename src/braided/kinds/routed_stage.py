"""A stage whose rows are sent to their channels and sorted there, and whose code is a user's."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.control.routing.table import RoutingTable
from braided.flow.route import GroupingKeys, Route
from braided.spark.sql_text import quoted
from braided.tasks.columns import PLACE, order_columns
from braided.tasks.packing import PackedProgram
from braided.tasks.spec import TaskSpec
from braided.tasks.stage import KeyedStage, StageInput, StageSetting
from braided.tasks.task import ChannelTask

__all__ = ["RoutedStage"]


class RoutedStage(KeyedStage):
    """What the stages of operators and processors have in common."""

    task: type[ChannelTask]
    """What runs in every partition."""
    task_orders_rows: ClassVar[bool] = False
    """Whether the task puts the rows of a place in order, which Spark then need not do."""

    def __init__(
        self,
        program: PackedProgram,
        keys: GroupingKeys,
        input: StructType,
        output: StructType,
        setting: StageSetting,
    ) -> None:
        super().__init__(setting, output)
        self._program = program
        self._keys = keys
        self._input = input
        self._route = Route(keys, setting.meta.slots, setting.order, self.task_orders_rows)

    def apply(self, rows: StageInput) -> DataFrame:
        return self._mapped(self._route.apply(rows), rows)

    @property
    def rows_are_counted(self) -> bool:
        return True

    def counted(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        return self._route.counted(frame, table)

    def _task(self, keep_order: bool) -> tuple[ChannelTask, list[str]]:
        setting = self.setting
        spec = TaskSpec(program=self._program, divert=setting.divert, **self._shared(keep_order))
        order = order_columns(self.order) if keep_order or self.task_orders_rows else []
        names = [*map(quoted, self._input.names), *self._keys.hidden_names()]
        return self.task(spec, setting.reports), [*order, *names, PLACE]

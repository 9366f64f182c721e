"""A stage whose rows are sent to their channels and sorted there, and whose code is a user's."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.control.routing.table import RoutingTable
from braided.flow.route import GroupingKeys, Route
from braided.spark.plan_top import PlanTop, PlanTops
from braided.spark.sql_text import quoted
from braided.tasks.columns import PLACE, order_columns
from braided.tasks.packing import PackedProgram
from braided.tasks.spec import TaskSpec
from braided.tasks.stage import KeyedStage, StageInput, StageSetting
from braided.tasks.task import ChannelTask

__all__ = ["RoutedStage"]

_Asked: TypeAlias = tuple[RoutingTable, tuple[str, ...], bool, bool]


class RoutedStage(KeyedStage):
    """What the stages of operators, columnar operators and processors have in common."""

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
        self._planned: _Asked | None = None
        """What the last plan was made for, but for the rows."""
        self._top: PlanTop | None = None
        """What it has put over them."""
        self._tops: PlanTops | None = None

    def apply(self, rows: StageInput) -> DataFrame:
        asked = (rows.table, tuple(rows.admitted), rows.aged, rows.tagged)
        again = self._planned == asked
        if again and self._top is not None:
            made = self._top.over(rows.frame)
            if made is not None:
                return made
        made = self._mapped(self._route.apply(rows), rows)
        # What comes twice will come again; a query of one batch has nothing compiled for it.
        self._top = self._top_of(made, rows) if again else None
        self._planned = asked
        return made

    def _top_of(self, made: DataFrame, rows: StageInput) -> PlanTop | None:
        """What the stage has put over its rows, if the next batch can have it as it is: what is
        placed on hosts is not planned by Spark, but made of the rows themselves.
        """
        if any(rows.table.hosts):
            return None
        if self._tops is None:
            self._tops = PlanTops(made.sparkSession)
        return self._tops.of(made, rows.frame)

    @property
    def takes_carry(self) -> bool:
        return True

    @property
    def rows_are_counted(self) -> bool:
        return True

    def counted(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        if self._planned is not None and self._planned[0].assigned != table.assigned:
            self._planned = None  # the route lets go of what the plan looks keys up in
        return self._route.counted(frame, table)

    def _task(self, keep_order: bool) -> tuple[ChannelTask, list[str]]:
        setting = self.setting
        spec = TaskSpec(program=self._program, divert=setting.divert, **self._shared(keep_order))
        order = order_columns(self.order) if keep_order or self.task_orders_rows else []
        names = [*map(quoted, self._input.names), *self._keys.hidden_names()]
        return self.task(spec, setting.reports), [*order, *names, PLACE]

"""An aggregation as a stage of a batch's plan.

    rows -> Spark's partial aggregates -> exchange by channel -> Spark's final aggregates
         -> merged with the state (`run.py`) -> Spark's last expressions

Spark would put an exchange of its own between its two halves, and a second one would have to bring
the results to their channels. Ours takes its place: what travels is one row per key and
input partition, however many rows a key has, and a task gets one row per key.

With sub-keys, Spark's own exchange stays: the partial results of a key go to several tasks that
merge them first, and one row of each goes on to the channel, where the task merges those.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from braided.control.routing.table import RoutingTable
from braided.flow.route import GroupingKeys, Route
from braided.kinds.aggregate.aggregation import Aggregation
from braided.kinds.aggregate.functions import ORDER
from braided.kinds.aggregate.program import AggregateProgram
from braided.kinds.aggregate.task import AggregateSpec, AggregateTask
from braided.spark.arrow_types import to_arrow_schema
from braided.tasks.columns import PLACE, order_columns
from braided.tasks.stage import KeyedStage, StageInput, StageSetting

__all__ = ["AggregateStage"]


class AggregateStage(KeyedStage):
    """An aggregation with all that does not change between batches."""

    def __init__(
        self, name: str, mode: str, aggregation: Aggregation, setting: StageSetting
    ) -> None:
        # A task merges whole chunks of keys, and tells nothing of where their rows go on to.
        super().__init__(replace(setting, pairs=None), aggregation.columns)
        self._name = name
        self._mode = mode
        self._aggregation = aggregation
        names = [aggregation.groups[i] for i in aggregation.key_order]
        self._route = Route(GroupingKeys(tuple(names)), setting.meta.slots, setting.order)

    def apply(self, rows: StageInput) -> DataFrame:
        aggregation, frame = self._aggregation, rows.frame
        if aggregation.ordered:
            ordered = frame.selectExpr(*rows.admitted, "*") if rows.admitted else frame
            columns = ", ".join(order_columns(self.order))
            frame = ordered.selectExpr(f"array({columns}) AS {ORDER}", "*")
        merged = self._mapped(self._routed(frame, rows.table), rows)
        return aggregation.results(merged, order_columns(self.order + 1) if rows.tagged else [])

    def late(self, frame: DataFrame, watermark_ms: int) -> DataFrame | None:
        if self._aggregation.event_time is None or self._mode == "complete":
            return None
        return self._aggregation.late(frame, watermark_ms)

    def _routed(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """Groups, partial results and the place of the key; one partition per channel."""
        return self._route.placed(self._aggregation.sent(frame, self._route, table))

    def _task(self, keep_order: bool) -> tuple[AggregateTask, list[str]]:
        aggregation = self._aggregation
        width = len(aggregation.groups)
        schema = to_arrow_schema(aggregation.columns)
        program = AggregateProgram(
            name=self._name,
            mode=self._mode,
            groups=_part(schema, range(width)),
            partials=_part(schema, range(width, len(schema))),
            key_order=aggregation.key_order,
            key_names=tuple(aggregation.key.names),
            timed=aggregation.event_time is not None,
            parts=aggregation.parts,
            sub_keys=aggregation.sub_keys,
        )
        spec = AggregateSpec(program=program, **self._shared(keep_order))
        return AggregateTask(spec, self.setting.reports), [*aggregation.columns.names, PLACE]


def _part(schema: pa.Schema, positions: range) -> pa.Schema:
    return pa.schema([schema.field(i) for i in positions])

"""An aggregation as a stage of a batch's plan.

    rows -> Spark's partial aggregates -> exchange by channel -> Spark's final aggregates
         -> merged with the state (`aggregate_task.py`) -> Spark's last expressions

Spark would put an exchange of its own between its two halves, and a second one would have to bring
the results to their channels. Ours takes its place: what travels is one row per key and
input partition, however many rows a key has, and a task gets one row per key.

With sub-keys, Spark's own exchange stays: the partial results of a key go to several tasks that
merge them first, and one row of each goes on to the channel, where the task merges those.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from braided.control.routing.table import RoutingTable
from braided.flow.graph import AggregateStep
from braided.flow.route import PLACE, Keys, Route, order_columns
from braided.kinds.aggregate.functions import ORDER
from braided.kinds.aggregate.program import AggregateProgram
from braided.kinds.aggregate.run import AggregateSpec, AggregateTask
from braided.store.history.manifest import OperatorMeta
from braided.tasks.stage import Mapped
from braided.tasks.state_location import Place

__all__ = ["AggregateStage"]


class AggregateStage(Mapped):
    """An aggregation."""

    def __init__(
        self,
        step: AggregateStep,
        meta: OperatorMeta,
        order: int,
        place: Place,
        reports: Accumulator[list[bytes]],
    ) -> None:
        super().__init__(meta, order, place, step.aggregation.columns)
        self.step = step
        self._aggregation = step.aggregation
        names = [step.aggregation.groups[i] for i in step.aggregation.key_order]
        self._route = Route(Keys(tuple(names)), meta.slots, order)
        self._reports = reports

    def apply(
        self,
        frame: DataFrame,
        table: RoutingTable,
        admitted: list[str],
        aged: bool,
        tagged: bool,
    ) -> DataFrame:
        """Rows in, as `Route.apply` takes them; results out, with order columns if tagged."""
        aggregation = self._aggregation
        if aggregation.ordered:
            ordered = frame.selectExpr(*admitted, "*") if admitted else frame
            columns = ", ".join(order_columns(self.order))
            frame = ordered.selectExpr(f"array({columns}) AS {ORDER}", "*")
        routed = self._routed(frame, table)
        merged = self._mapped(routed, tagged)
        return aggregation.results(merged, order_columns(self.order + 1) if tagged else [])

    def _routed(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """Groups, partial results and the place of the key; one partition per channel."""
        return self._route.placed(self._aggregation.sent(frame, self._route, table))

    def _task(self, keep_order: bool) -> tuple[AggregateTask, list[str]]:
        aggregation = self._aggregation
        width = len(aggregation.groups)
        schema = to_arrow_schema(aggregation.columns, timezone="UTC")
        program = AggregateProgram(
            name=self.step.name,
            mode=self.step.mode,
            groups=_part(schema, range(width)),
            partials=_part(schema, range(width, len(schema))),
            key_order=aggregation.key_order,
            key_names=tuple(aggregation.key.names),
            timed=aggregation.event_time is not None,
            parts=aggregation.parts,
            sub_keys=aggregation.sub_keys,
        )
        spec = AggregateSpec(program=program, **self._shared(keep_order))
        return AggregateTask(spec, self._reports), [*aggregation.columns.names, PLACE]


def _part(schema: pa.Schema, places: range) -> pa.Schema:
    return pa.schema([schema.field(i) for i in places])

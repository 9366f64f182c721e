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

from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from braided.control.table import RoutingTable
from braided.engine.aggregate_program import AggregateProgram
from braided.engine.aggregate_task import AggregateSpec, AggregateTask
from braided.engine.flow import AggregateStep
from braided.engine.functions import ORDER
from braided.engine.place import Place
from braided.engine.route import PLACE, Keys, Route, order_columns
from braided.state.manifest import OperatorMeta

__all__ = ["AggregateStage"]


class AggregateStage:
    """One aggregation with all that does not change between batches."""

    def __init__(
        self,
        step: AggregateStep,
        meta: OperatorMeta,
        order: int,
        place: Place,
        reports: Accumulator[list[bytes]],
    ) -> None:
        self.step = step
        self.meta = meta
        self.order = order
        """Order columns of its input; its output has one more."""
        self._aggregation = step.aggregation
        names = [step.aggregation.groups[i] for i in step.aggregation.key_order]
        self._route = Route(Keys(tuple(names)), meta.slots, order)
        self._place = place
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
        function = self.tagged if tagged else self.plain
        merged = DataFrame(routed._jdf.mapInArrow(function, False, None), frame.sparkSession)
        return aggregation.results(merged, order_columns(self.order + 1) if tagged else [])

    def _routed(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """Groups, partial results and the place of the key; one partition per channel."""
        return self._route.placed(self._aggregation.sent(frame, self._route, table))

    @cached_property
    def plain(self) -> Any:
        """The task as a JVM column; its output is the merged columns alone."""
        return self._function(self._aggregation.columns, False)

    @cached_property
    def tagged(self) -> Any:
        """The same with order columns in front of its output."""
        tags = [StructField(name, LongType()) for name in order_columns(self.order + 1)]
        return self._function(StructType([*tags, *self._aggregation.columns.fields]), True)

    def _function(self, output: StructType, keep_order: bool) -> Any:
        aggregation, place = self._aggregation, self._place
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
        spec = AggregateSpec(
            program=program,
            meta=self.meta,
            flow=place.flow,
            root=place.root,
            cache=place.cache,
            limits=place.limits,
            order=self.order,
            keep_order=keep_order,
        )
        function = pandas_udf(
            AggregateTask(spec, self._reports),
            returnType=output,
            functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,  # type: ignore[call-overload]
        )
        inputs = [*aggregation.columns.names, PLACE]
        return function(*map(F.col, inputs))._jc


def _part(schema: pa.Schema, places: range) -> pa.Schema:
    return pa.schema([schema.field(i) for i in places])

"""A flow's operators as one lazy DataFrame per batch.

A plan is made anew for every batch, so it is made from few calls into the JVM: what does not
change between batches (columns, the Python function, the parsed table) is made once and used
again. What does change travels with the job as one local property, `BATCH_PROPERTY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from braided.control.table import RoutingTable
from braided.engine.aggregate import AggregateStage
from braided.engine.carry import read_carry
from braided.engine.flow import AggregateStep, Flow, KeyedStep, OperatorStep
from braided.engine.place import Place
from braided.engine.program import PackedProgram, Program
from braided.engine.route import PLACE, Route, admission, order_columns, quoted
from braided.engine.task import BATCH_PROPERTY, BatchSpec, ChannelTask, TaskSpec
from braided.errors import OperatorDefinitionError
from braided.state.manifest import CarryFile, OperatorMeta

__all__ = ["FlowPlan", "Place"]


class _Stage:
    """One operator with all that does not change between batches."""

    def __init__(
        self,
        step: OperatorStep,
        meta: OperatorMeta,
        order: int,
        place: Place,
        reports: Accumulator[list[bytes]],
    ) -> None:
        self.step = step
        self.meta = meta
        self.order = order
        """Order columns of its input; its output has one more."""
        self.route = Route(step.keys, meta.slots, order)
        self._place = place
        self._reports = reports
        self._program = self._pack()

    @cached_property
    def plain(self) -> Any:
        """The operator as a JVM column; its output is the rows alone."""
        return self._function(self.step.output, False)

    @cached_property
    def tagged(self) -> Any:
        """The same with order columns in front of its output."""
        tags = [StructField(name, LongType()) for name in order_columns(self.order + 1)]
        return self._function(StructType([*tags, *self.step.output.fields]), True)

    def apply(
        self,
        frame: DataFrame,
        table: RoutingTable,
        admitted: list[str],
        aged: bool,
        tagged: bool,
    ) -> DataFrame:
        """Rows in, as `Route.apply` takes them; output rows out, with order columns if tagged."""
        routed = self.route.apply(frame, table, admitted, aged, tagged)
        function = self.tagged if tagged else self.plain
        return DataFrame(routed._jdf.mapInArrow(function, False, None), frame.sparkSession)

    def _function(self, output: StructType, keep_order: bool) -> Any:
        step, place = self.step, self._place
        names = step.input.names
        spec = TaskSpec(
            program=self._program,
            meta=self.meta,
            flow=place.flow,
            root=place.root,
            cache=place.cache,
            limits=place.limits,
            order=self.order,
            keep_order=keep_order,
        )
        order = order_columns(self.order) if keep_order else []
        inputs = [*order, *map(quoted, names), *step.keys.hidden_names(), PLACE]
        # What DataFrame.mapInArrow does, once and not once per batch.
        function = pandas_udf(
            ChannelTask(spec, self._reports),
            returnType=output,
            functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,  # type: ignore[call-overload]
        )
        return function(*map(F.col, inputs))._jc

    def _pack(self) -> PackedProgram:
        step = self.step
        program = Program(
            name=step.name,
            operator=step.operator,
            time_mode=step.time_mode,
            input=step.input,
            key=step.key_schema,
            key_positions=tuple(step.keys.positions(step.input.names)),
            output=step.output,
        )
        try:
            return program.pack()
        except Exception as error:
            raise OperatorDefinitionError(
                f"operator {step.name!r} can't be sent to the workers: {error}. It refers "
                "to something "
                "that belongs to this process alone; open such things inside the operator"
            ) from error


def _stage(
    step: KeyedStep,
    meta: OperatorMeta,
    order: int,
    place: Place,
    reports: Accumulator[list[bytes]],
) -> _Stage | AggregateStage:
    if isinstance(step, AggregateStep):
        return AggregateStage(step, meta, order, place, reports)
    return _Stage(step, meta, order, place, reports)


class FlowPlan:
    """Makes the plan of each batch of a flow."""

    def __init__(
        self,
        flow: Flow,
        metas: Mapping[str, OperatorMeta],
        sequence: list[str],
        ordered: bool,
        place: Place,
        reports: Accumulator[list[bytes]],
    ) -> None:
        self._sequence = sequence
        self._ordered = ordered
        self._place = place
        first = 1 + len(sequence)
        self._stages = [
            _stage(step, metas[step.name], first + number, place, reports)
            for number, step in enumerate(flow.steps)
        ]

    def frame(
        self,
        df: DataFrame,
        spec: BatchSpec,
        tables: Mapping[str, RoutingTable],
        carry: tuple[CarryFile, ...],
    ) -> DataFrame:
        """The whole batch: the output rows, when somebody asks for them."""
        spark = df.sparkSession
        spark.sparkContext.setLocalProperty(BATCH_PROPERTY, spec.encode())
        frame, admitted = df, admission(self._sequence)
        order = 0
        for stage in self._stages:
            name = stage.step.name
            carried = [file for file in carry if file.operator == name]
            if carried:
                if admitted:
                    frame, admitted = frame.selectExpr(*admitted, "*"), []
                rest = read_carry(spark, self._place.root, carried, frame.schema)
                # In this order: a task of the operator before knows its channel by its partition.
                frame = frame.union(rest)
            tagged = self._ordered or spec.cut is not None or stage is not self._stages[-1]
            frame = stage.apply(frame, tables[name], admitted, bool(carry), tagged)
            admitted = []
            order = stage.order + 1 if tagged else 0
            for step in stage.step.after:
                frame = step.apply_ordered(frame, order) if order else step.apply(frame)
        if self._ordered:
            frame = frame.repartition(1).sortWithinPartitions(*order_columns(order))
        return frame.drop(*order_columns(order)) if order else frame

"""A keyed operator as a stage of Spark's plan.

A plan is made anew for every batch, so it is made from few calls into the JVM: what does not
change between batches (columns, the Python function, the parsed table) is made once and used
again. What does change travels with the job as one local property, `BATCH_PROPERTY`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from braided.control.table import RoutingTable
from braided.engine.flow import OperatorStep, ProcessorStep
from braided.engine.place import Place
from braided.engine.program import PackedProgram, Program
from braided.engine.route import PLACE, Route, order_columns, quoted
from braided.engine.spec import TaskSpec
from braided.engine.task import ChannelTask
from braided.state.manifest import OperatorMeta

__all__ = ["Stage"]


class Stage:
    """One operator with all that does not change between batches."""

    runs_processor = False

    def __init__(
        self,
        step: OperatorStep | ProcessorStep,
        meta: OperatorMeta,
        order: int,
        place: Place,
        reports: Accumulator[list[bytes]],
        divert: bool,
    ) -> None:
        self.step: OperatorStep | ProcessorStep = step
        self.meta = meta
        self.order = order
        """Order columns of its input; its output has one more."""
        self.route = Route(step.keys, meta.slots, order)
        self._place = place
        self._reports = reports
        self._divert = divert
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
            divert=self._divert,
            processor=self.runs_processor,
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
        assert isinstance(step, OperatorStep)
        program = Program(
            name=step.name,
            operator=step.operator,
            time_mode=step.time_mode,
            input=step.input,
            key=step.key_schema,
            key_positions=tuple(step.keys.positions(step.input.names)),
            output=step.output,
            sides=step.sides,
        )
        return program.pack()

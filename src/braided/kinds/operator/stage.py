"""A keyed operator as a stage of Spark's plan.

A plan is made anew for every batch, so it is made from few calls into the JVM: what does not
change between batches (columns, the Python function, the parsed table) is made once and used
again. What does change travels with the job as one local property, `BATCH_PROPERTY`.
"""

from __future__ import annotations

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame

from braided.control.routing.table import RoutingTable
from braided.flow.graph import OperatorStep, ProcessorStep
from braided.flow.route import PLACE, Route, order_columns, quoted
from braided.kinds.operator.program import PackedProgram, Program
from braided.kinds.operator.run import ChannelTask
from braided.store.history.manifest import OperatorMeta
from braided.tasks.spec import TaskSpec
from braided.tasks.stage import Mapped
from braided.tasks.state_location import Place

__all__ = ["Stage"]


class Stage(Mapped):
    """An operator, or a processor."""

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
        super().__init__(meta, order, place, step.output)
        self.step: OperatorStep | ProcessorStep = step
        self.route = Route(step.keys, meta.slots, order)
        self._reports = reports
        self._divert = divert
        self._program = self._pack()

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
        return self._mapped(routed, tagged)

    def _task(self, keep_order: bool) -> tuple[ChannelTask, list[str]]:
        spec = TaskSpec(
            program=self._program,
            divert=self._divert,
            processor=self.runs_processor,
            **self._shared(keep_order),
        )
        order = order_columns(self.order) if keep_order else []
        names = [*map(quoted, self.step.input.names), *self.step.keys.hidden_names()]
        return ChannelTask(spec, self._reports), [*order, *names, PLACE]

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

"""`stream.groupBy(...)`: what can be done with rows by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.api.aggregates import AggregateMethods
from braided.api.grouping import Grouping
from braided.api.processors import ProcessorMethods
from braided.api.schemas import empty_frame
from braided.dict_functions.decorator import ManagedOperator
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.graph import Input, Keyed, Node, Side, flow_of
from braided.flow.step import KeyedStep
from braided.kinds.aggregate.aggregation import DECLARED_TIME
from braided.kinds.class_step import ClassStep
from braided.kinds.columnar.step import ColumnStep
from braided.kinds.operator.step import OperatorStep
from braided.operator.columns import ColumnOperator
from braided.operator.definition import Operator

__all__ = ["GroupedStream", "check_operator", "check_time_mode"]

_Stream = TypeVar("_Stream")

_TIME_MODES = ("ProcessingTime", "EventTime")


class GroupedStream(AggregateMethods[_Stream], ProcessorMethods[_Stream]):
    """Rows of a stream by key."""

    def __init__(
        self, node: Node, grouping: Grouping, stream_of: Callable[[Node, DataFrame], _Stream]
    ) -> None:
        """`stream_of` makes a stream of a node and of a DataFrame with the schema of its rows."""
        self._node = node
        self._grouping = grouping
        self._stream_of = stream_of

    def apply(
        self,
        operator: type[Operator] | type[ColumnOperator],
        schema: StructType | str,
        timeMode: str = "ProcessingTime",
        initialState: DataFrame | None = None,
    ) -> _Stream:
        """Runs an `Operator` class for every key, or a `ColumnOperator` class for many at a time;
        `schema` is of the rows it gives out.

        `initialState` has the grouping columns and a column for each field (those left out, and
        nulls, have their defaults). It counts from the first batch that the operator is in; a
        checkpoint that knows the operator has its state already.
        """
        grouping = self._grouping
        kind: type[ClassStep]
        if isinstance(operator, type) and issubclass(operator, ColumnOperator):
            kind = ColumnStep
        else:
            _check_one_input(operator, grouping)
            kind = OperatorStep
        operator.check_params()
        check_time_mode(timeMode)
        output = empty_frame(grouping.shape.sparkSession, schema, "the output schema").schema
        step = kind(
            name=operator.__name__,
            operator=operator,
            keys=grouping.keys,
            key_schema=grouping.key_schema,
            input=grouping.schema,
            output=output,
            time_mode=timeMode,
            initial=initialState,
        )
        if initialState is not None:
            step.check_initial(initialState)
        return self._then(step)

    def _then(self, step: KeyedStep) -> _Stream:
        shape = self._grouping.shape.sparkSession.createDataFrame([], step.output)
        if step.time_column and self._has_watermark():
            shape = shape.withMetadata(step.time_column, DECLARED_TIME)
        return self._stream_of(Keyed(step, (Side(self._node, self._grouping.keys),)), shape)

    def _has_watermark(self) -> bool:
        nodes = flow_of([self._node]).nodes
        return any(isinstance(node, Input) and node.late is not None for node in nodes)

    def _taken_names(self) -> set[str]:
        return {step.name for step in flow_of([self._node]).steps}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"groupBy(...).{name}() is not supported: use .agg(...) for aggregates, "
            ".transformWithState(...) for a StatefulProcessor and .apply(OperatorClass, schema) "
            "for everything else"
        )


def check_operator(operator: Any) -> None:
    """Refuses what is no Operator class."""
    if not (isinstance(operator, type) and issubclass(operator, Operator)):
        raise DefinitionError(
            "apply takes a class derived from braided.Operator or, for one input, from "
            f"braided.ColumnOperator, not {operator!r}"
        )


def _check_one_input(operator: Any, grouping: Grouping) -> None:
    """Refuses what can't go by this key, or by one input."""
    check_operator(operator)
    if issubclass(operator, ManagedOperator):
        operator.checkGrouping(grouping.keys.columns, grouping.key_schema)
    if hasattr(operator, "onLeft") or hasattr(operator, "onRight"):
        raise DefinitionError(
            f"{operator.__name__} has onLeft or onRight, so it takes two inputs: "
            "braided.connect(a.groupBy(...), b.groupBy(...)).apply(...)"
        )


def check_time_mode(mode: str) -> None:
    """Refuses what is no time mode of an Operator."""
    if mode not in _TIME_MODES:
        raise DefinitionError(f"timeMode is {mode!r}; it takes {' or '.join(_TIME_MODES)}")

"""Spark's plans as objects: taking an aggregation apart, and putting an exchange of ours into one.

Everything here depends on classes of Spark that PySpark does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from braided.spark.jvm import java_class, scala_object

__all__ = ["Aggregates", "Catalyst", "Exchange"]

_CATALYST = "org.apache.spark.sql.catalyst"
_EXECUTION = "org.apache.spark.sql.execution"
_AGGREGATES = ("HashAggregate", "ObjectHashAggregate", "SortAggregate")


@dataclass(frozen=True)
class Aggregates:
    """An analysed aggregation: what it groups by, computes, and makes of that."""

    groups: list[Any]
    functions: list[Any]
    results: list[Any]
    child: Any


@dataclass(frozen=True)
class Exchange:
    """All of an exchange but the plan whose rows it sends."""

    parts: list[Any]


class Catalyst:
    """A session's planner, as seen from Python."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        assert context._jvm is not None
        self._jvm: Any = context._jvm
        self._none = self._object("scala.None")
        self._nil = self._object("scala.collection.immutable.Nil")
        self._datasets = self._object("org.apache.spark.sql.classic.Dataset")
        self._physical = self._object(f"{_CATALYST}.planning.PhysicalAggregation")
        self._python = self._class("org.apache.spark.api.python.PythonUtils")
        self._expressions = self._class("org.apache.spark.sql.classic.ExpressionUtils")
        self._alias = self._class(f"{_CATALYST}.expressions.Alias")
        self._relation = self._class(f"{_CATALYST}.plans.logical.LocalRelation")
        self._exchange = self._class(f"{_EXECUTION}.exchange.ShuffleExchangeExec")
        self._names = self._object(f"{_CATALYST}.expressions.NamedExpression")
        self._stage = self._class(f"{_EXECUTION}.adaptive.LogicalQueryStage")

    def analyzed(self, df: DataFrame) -> Any:
        return df._jdf.queryExecution().analyzed()

    def aggregates(self, plan: Any) -> Aggregates | None:
        """The parts of an analysed aggregation; None if the plan is none."""
        found = self._physical.unapply(plan)
        if found.isEmpty():
            return None
        groups, functions, results, _ = (getattr(found.get(), f"_{i}")() for i in range(1, 5))
        return Aggregates(
            self.items(groups), self.items(functions), self.items(results), plan.child()
        )

    def replaced(self, function: Any) -> Any:
        """What Spark computes for a function that is a name for others, as bool_and is."""
        kind = f"{_CATALYST}.expressions.RuntimeReplaceable"
        while self._class("java.lang.Class").forName(kind).isInstance(function):
            function = function.replacement()
        return function

    def items(self, sequence: Any) -> list[Any]:
        return [sequence.apply(i) for i in range(sequence.size())]

    def sequence(self, items: Sequence[Any]) -> Any:
        return self._python.toSeq(list(items))

    def column(self, expression: Any) -> Column:
        return ClassicColumn(self._expressions.column(expression))

    def renamed(self, column: Column, name: str, expression_id: Any = None) -> Any:
        """The column under a name and an identity: one that other expressions refer to already,
        or a new one, which is then the same in every plan.
        """
        if expression_id is None:
            expression_id = self._names.newExprId()
        expression = self._expressions.expression(column._jc)
        alias = self._alias(expression, name, expression_id, self._nil, self._none, self._nil)
        return self._expressions.column(alias)

    def frame(self, spark: SparkSession, plan: Any) -> DataFrame:
        return DataFrame(self._datasets.ofRows(spark._jsparkSession, plan), spark)

    def on_top(self, nodes: Sequence[Any], plan: Any) -> Any:
        """The nodes, topmost first, over another plan than the one they were made for."""
        for node in reversed(nodes):
            plan = node.withNewChildren(self.sequence([plan]))
        return plan

    def path(self, top: Any, bottom: Any) -> list[Any] | None:
        """The nodes from one down to another, which is not among them; None if the way forks."""
        nodes: list[Any] = []
        node = top
        while not node.equals(bottom):
            nodes.append(node)
            children = node.children()
            if children.size() != 1:
                return None
            node = children.head()
        return nodes

    # -- an exchange of ours ---------------------------------------------------------------

    def halves(self, aggregated: DataFrame) -> tuple[Any, Any] | None:
        """The plans of an aggregation's first and second half.

        Between them Spark would put an exchange of its own. None if it planned something else.
        """
        final = aggregated._jdf.queryExecution().sparkPlan()
        if final.nodeName() not in _AGGREGATES or final.child().nodeName() != final.nodeName():
            return None
        return final.child(), final

    def exchange(self, exchanged: DataFrame) -> Exchange:
        """The exchange on top of a frame, for use over other plans with the same columns."""
        node = exchanged._jdf.queryExecution().sparkPlan()
        assert node.nodeName() == "Exchange"
        # How many there are depends on the version; the second is the plan.
        return Exchange([node.productElement(i) for i in range(node.productArity()) if i != 1])

    def joined(self, spark: SparkSession, first: Any, exchange: Exchange, final: Any) -> DataFrame:
        """Both halves of an aggregation with an exchange between them."""
        partitioning, *others = exchange.parts
        whole = final.copy(
            self._none,  # asks for no distribution: it has one that Spark does not know of
            final.isStreaming(),
            final.numShufflePartitions(),
            final.groupingExpressions(),
            final.aggregateExpressions(),
            final.aggregateAttributes(),
            final.initialInputBufferOffset(),
            final.resultExpressions(),
            self._exchange(partitioning, first, *others),
        )
        return self.planned(spark, whole)

    def planned(self, spark: SparkSession, physical: Any) -> DataFrame:
        """The rows of a physical plan, of which Spark's optimiser sees the columns only."""
        shape = self._relation(physical.output(), self._nil, False, self._none)
        return self.frame(spark, self._stage(shape, physical))

    def hidden(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame, of whose plan Spark's optimiser then sees the columns only."""
        return self.planned(frame.sparkSession, frame._jdf.queryExecution().sparkPlan())

    def _class(self, name: str) -> Any:
        return java_class(self._jvm, name)

    def _object(self, name: str) -> Any:
        return scala_object(self._jvm, name)

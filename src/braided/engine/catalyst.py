"""Spark's plans as objects: taking an aggregation apart, and putting an exchange of ours into one.

Everything here depends on classes of Spark 4.3 that PySpark does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

__all__ = ["Aggregates", "Catalyst"]

_CATALYST = "org.apache.spark.sql.catalyst"
_AGGREGATES = ("HashAggregate", "ObjectHashAggregate", "SortAggregate")


@dataclass(frozen=True)
class Aggregates:
    """An analysed aggregation: what it groups by, computes, and makes of that."""

    groups: list[Any]
    functions: list[Any]
    results: list[Any]
    child: Any


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
        self._python = self._jvm.org.apache.spark.api.python.PythonUtils
        sql = self._jvm.org.apache.spark.sql
        self._expressions = sql.classic.ExpressionUtils
        self._alias = sql.catalyst.expressions.Alias
        self._relation = sql.catalyst.plans.logical.LocalRelation
        self._stage = sql.execution.adaptive.LogicalQueryStage

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
        """What Spark computes in place of functions that are names for others, as bool_and."""
        kind = f"{_CATALYST}.expressions.RuntimeReplaceable"
        while self._jvm.java.lang.Class.forName(kind).isInstance(function):
            function = function.replacement()
        return function

    def items(self, sequence: Any) -> list[Any]:
        return [sequence.apply(i) for i in range(sequence.size())]

    def sequence(self, items: Sequence[Any]) -> Any:
        return self._python.toSeq(list(items))

    def column(self, expression: Any) -> Column:
        return ClassicColumn(self._expressions.column(expression))

    def renamed(self, column: Column, name: str, expression_id: Any) -> Any:
        """The column under a name and an identity that other expressions already refer to."""
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
        """The nodes from one down to another, which is not among them."""
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

    def halves(self, aggregated: DataFrame) -> tuple[Any, DataFrame] | None:
        """An aggregation's second half, and as a DataFrame what its first half gives.

        Between them Spark would put an exchange of its own. None if it planned something else.
        """
        final = aggregated._jdf.queryExecution().sparkPlan()
        if final.nodeName() not in _AGGREGATES or final.child().nodeName() != final.nodeName():
            return None
        return final, self._planned(aggregated.sparkSession, final.child())

    def finished(self, final: Any, exchanged: DataFrame) -> DataFrame:
        """The second half of an aggregation, on partial results that are where they belong."""
        whole = final.copy(
            self._none,  # asks for no distribution: it has one that Spark does not know of
            final.isStreaming(),
            final.numShufflePartitions(),
            final.groupingExpressions(),
            final.aggregateExpressions(),
            final.aggregateAttributes(),
            final.initialInputBufferOffset(),
            final.resultExpressions(),
            exchanged._jdf.queryExecution().sparkPlan(),
        )
        return self._planned(exchanged.sparkSession, whole)

    def hidden(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame, of whose plan Spark then sees the columns only."""
        return self._planned(frame.sparkSession, frame._jdf.queryExecution().sparkPlan())

    def _planned(self, spark: SparkSession, physical: Any) -> DataFrame:
        shape = self._relation(physical.output(), self._nil, False, self._none)
        return self.frame(spark, self._stage(shape, physical))

    def _object(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

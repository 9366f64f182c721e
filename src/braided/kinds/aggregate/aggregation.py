"""`groupBy(...).agg(...)` taken apart: what Spark computes per batch, what is kept, what comes out.

Spark's own analysis of the user's call, on the stream's schema, is the template: it knows names,
types, windows and which aggregates there are. For a batch, its plan is put over the batch's rows
and aggregates the partial results (`functions.py`); its last expressions are put over the merged
columns. Columns on the way:

    __braided_g0, ...   what the rows are grouped by
    __braided_a0, ...   arguments of the aggregates
    __braided_p0, ...   partial results, before and after they are merged with the state
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_string

from braided.control.routing.table import RoutingTable
from braided.errors import UnsupportedError
from braided.flow.route import Route
from braided.kinds.aggregate.functions import ORDER, Call, Recipe, recipe_of
from braided.spark.arrow_types import to_arrow_schema
from braided.spark.catalyst import Catalyst, Exchange
from braided.spark.sql_text import quoted
from braided.store.aggregates.merge import ColumnGroup, Merger
from braided.tasks.diverted import json_of

__all__ = ["DECLARED_TIME", "Aggregation"]

_SUB_KEY = "__braided_s"
_WATERMARK = "spark.watermarkDelayMs"
_DECLARED = "braided.declaredTime"
DECLARED_TIME = {_WATERMARK: 0, _DECLARED: True}
"""The metadata of a column that a processor declares to be the event time of its output: what Spark
has for one that is measured against the watermark, and a mark of ours."""
_SESSION = "spark.sessionWindow"


class Aggregation:
    """One call of `agg`, on the driver."""

    def __init__(
        self,
        shape: DataFrame,
        columns: Sequence[str | Column],
        aggregates: Sequence[Column],
        sub_keys: int = 1,
    ) -> None:
        self._catalyst = Catalyst(shape.sparkSession)
        self._ansi = str(shape.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        self._steps: dict[tuple[str, ...], list[Any]] = {}
        self._table: RoutingTable | None = None
        self._exchange: Exchange | None = None
        self.sub_keys = sub_keys
        self.has_declared_time = False
        """Whether it is a processor that says which group tells time."""
        self.output: StructType = shape.groupBy(*columns).agg(*aggregates).schema
        self._take_apart(shape, columns, aggregates)
        if self.ordered:
            if sub_keys > 1:
                raise UnsupportedError(
                    "agg(..., subKeys=...): first, last, max_by, min_by and collect_list go by the "
                    "order of rows, which is lost when a key is spread over sub-keys"
                )
            # Once more, with the order of rows among the columns.
            with_order = shape.selectExpr(f"array(bigint(0)) AS {ORDER}", "*")
            self._take_apart(with_order, columns, aggregates)
        # On rows from nowhere: Spark renames columns that come from ones of the same identity.
        blank = shape.sparkSession.createDataFrame([], self._template.schema)
        fields = [_nullable(field) for field in self.partial(blank).schema.fields]
        width = len(self.groups)
        self.columns = StructType(fields)
        """Groups and partial results, as they come from a batch and go back merged."""
        self._check_state(fields[width:])
        self._order_key()

    def _order_key(self) -> None:
        width = len(self.groups)
        names = [group.name() for group in self._parts.groups]
        types = [field.dataType for field in self.columns.fields[:width]]
        order = sorted(range(width), key=lambda i: i != self.event_time)
        self.key_order: tuple[int, ...] = tuple(order)
        """The groups as they are in keys: the one that tells time comes first."""
        self.key = StructType([StructField(names[i], types[i]) for i in order])

    def untimed(self) -> Aggregation:
        """The same without a group that tells time."""
        other = copy.copy(self)
        other.event_time, other._steps = None, {}
        other._order_key()
        return other

    # -- the template ----------------------------------------------------------------------

    def _take_apart(
        self, shape: DataFrame, columns: Sequence[str | Column], aggregates: Sequence[Column]
    ) -> None:
        catalyst = self._catalyst
        plan = catalyst.analyzed(shape.groupBy(*columns).agg(*aggregates))
        parts = catalyst.aggregates(plan) if plan.nodeName() == "Aggregate" else None
        leaf = catalyst.analyzed(shape)
        nodes = None if parts is None else catalyst.path(parts.child, leaf)
        if parts is None or nodes is None:
            raise UnsupportedError(
                "agg takes aggregates of the rows of a group; window functions and subqueries "
                "have no meaning there"
            )
        self._template = shape
        self._parts = parts
        self._nodes = nodes
        self._leaf = catalyst.sequence(
            [
                catalyst.renamed(F.col(quoted(a.name())), a.name(), a.exprId())
                for a in catalyst.items(leaf.output())
            ]
        )
        self.groups = [f"__braided_g{i}" for i in range(len(parts.groups))]
        self.event_time = self._event_time()
        """The group that tells time and leads to eviction, if there is one."""
        taken: list[Any] = []
        for group, name in zip(parts.groups, self.groups, strict=True):
            taken.append(catalyst.renamed(catalyst.column(group), name))
        self._recipes = [self._recipe(expression, taken) for expression in parts.functions]
        self.ordered = any(recipe.ordered for recipe, _ in self._recipes)
        if ORDER in shape.columns:
            taken.append(F.col(ORDER)._jc)
        if self.sub_keys > 1:
            taken.append(F.expr(f"pmod(spark_partition_id(), {self.sub_keys})").alias(_SUB_KEY)._jc)
        self._taken = catalyst.sequence(taken)
        spread = [_SUB_KEY] if self.sub_keys > 1 else []
        self._grouped = catalyst.sequence([F.col(name)._jc for name in [*self.groups, *spread]])
        self._name_partials()

    def _event_time(self) -> int | None:
        for i, group in enumerate(self._parts.groups):
            metadata = group.toAttribute().metadata()
            if metadata.contains(_SESSION):
                raise UnsupportedError(
                    "agg by session_window: a session grows and merges with its neighbours; "
                    "examples/sessions.py is one as an Operator"
                )
            if group.nodeName() == "Alias" and group.child().foldable():
                raise UnsupportedError(
                    f"groupBy({group.name()}): a constant puts all rows into one group; group by "
                    "a column"
                )
            if metadata.contains(_WATERMARK):
                self.has_declared_time = metadata.contains(_DECLARED)
                return i
        return None

    def _recipe(self, expression: Any, taken: list[Any]) -> tuple[Recipe, Any]:
        """A recipe and Spark's function; adds the arguments to what is taken from rows."""
        text = expression.sql()
        if expression.isDistinct():
            raise UnsupportedError(
                f"agg({text}): a distinct aggregate needs every value that a key ever had; "
                "approx_count_distinct keeps a sketch of them, collect_set the values themselves"
            )
        catalyst = self._catalyst
        function = catalyst.replaced(expression.aggregateFunction())
        children = catalyst.items(function.children())
        name = function.getClass().getSimpleName()
        if name == "ApproximatePercentile":
            children = children[:1]  # the others are constants
        names: list[str] = []
        for child in children:
            names.append(f"__braided_a{len(taken)}")
            taken.append(catalyst.renamed(catalyst.column(child), names[-1]))
        condition = None
        if expression.filter().isDefined():
            condition = f"__braided_a{len(taken)}"
            taken.append(catalyst.renamed(catalyst.column(expression.filter().get()), condition))
        types = [_type_of(child) for child in children]
        call = Call(function, text, tuple(names), tuple(types), condition, self._ansi)
        return recipe_of(call), function

    def _name_partials(self) -> None:
        partials: list[str] = []
        parts: list[ColumnGroup] = []
        labels: list[str] = []
        for (recipe, _), expression in zip(self._recipes, self._parts.functions, strict=True):
            partials += recipe.partials
            text = expression.sql()
            parts += [ColumnGroup(rule, columns, text) for rule, columns in recipe.rules]
            several = len(recipe.partials) > 1
            labels += [
                f"{text} {sql.partition('(')[0]}" if several else text for sql in recipe.partials
            ]
        self.parts = tuple(parts)
        self.labels = [
            f"{label} {labels[:i].count(label) + 1}" if labels.count(label) > 1 else label
            for i, label in enumerate(labels)
        ]
        """What each partial result is, for people who look at the state."""
        self.partials = [f"__braided_p{i}" for i in range(len(partials))]
        named = zip(partials, self.partials, strict=True)
        self._partial = [F.expr(sql).alias(name)._jc for sql, name in named]
        self._others = self._catalyst.sequence(self._partial[1:])

    def _check_state(self, partials: list[StructField]) -> None:
        if not partials:
            raise UnsupportedError("agg needs at least one aggregate")
        try:
            kinds = to_arrow_schema(StructType(partials)).types
        except TypeError as error:
            raise UnsupportedError(f"agg: {error}") from None
        Merger(self.parts, kinds)

    # -- a batch ---------------------------------------------------------------------------

    def _in_groups(self, frame: DataFrame) -> Any:
        """A batch's rows with all that groups are made of: one for each window that a row is in."""
        rows = frame._jdf.select(self._leaf)
        if not self._nodes:
            return rows
        plan = rows.queryExecution().analyzed()
        return self._catalyst.frame(
            frame.sparkSession, self._catalyst.on_top(self._nodes, plan)
        )._jdf

    def late(self, frame: DataFrame, watermark_ms: int) -> DataFrame:
        """The rows whose groups the watermark has passed, as `key` and `row`."""
        assert self.event_time is not None
        catalyst, count = self._catalyst, len(self.groups)
        names = [name for name in self._template.columns if name != ORDER]
        row = json_of(*(F.col(quoted(name)) for name in names)).alias("row")
        taken = [*catalyst.items(self._taken)[:count], row._jc]
        rows = DataFrame(
            self._in_groups(frame).select(catalyst.sequence(taken)), frame.sparkSession
        )
        time = self.groups[self.event_time]
        if isinstance(rows.schema[time].dataType, StructType):
            time = f"{time}.end"
        key = [
            F.col(self.groups[i]).alias(name)
            for i, name in zip(self.key_order, self.key.names, strict=True)
        ]
        over = F.expr(f"{time} <= timestamp_millis({watermark_ms})")
        return rows.filter(over).select(json_of(*key).alias("key"), "row")

    def partial(self, frame: DataFrame) -> DataFrame:
        """A batch's rows as groups and partial results: one row per key, or per sub-key of it."""
        spark = frame.sparkSession
        grouped = self._in_groups(frame).select(self._taken).groupBy(self._grouped)
        aggregated = DataFrame(grouped.agg(self._partial[0], self._others), spark)
        return aggregated.drop(_SUB_KEY) if self.sub_keys > 1 else aggregated

    def sent(self, frame: DataFrame, route: Route, table: RoutingTable) -> DataFrame:
        """A batch's partial results at their channels; one row per key unless it has sub-keys.

        The plan below is hidden from Spark: `results` gives columns the identities that the
        template's have, and Spark would give them new ones if it saw that the rows came from
        columns with these identities.
        """
        catalyst, spark = self._catalyst, frame.sparkSession
        partial = self.partial(frame)
        halves = None if self.sub_keys > 1 else catalyst.halves(partial)
        if halves is None:
            return catalyst.hidden(route.exchanged(partial, table))
        first, final = halves
        if self._table is not table or self._exchange is None:
            # Nothing but the exchange on top: buffers of Spark's are no columns to compute on.
            example = route.exchanged(catalyst.planned(spark, first), table)
            self._table, self._exchange = table, catalyst.exchange(example)
        return catalyst.joined(spark, first, self._exchange, final)

    def results(self, merged: DataFrame, hidden: Sequence[str]) -> DataFrame:
        """What the user asked for, from the merged columns; hidden columns come along."""
        frame = merged._jdf
        for columns in self._last_steps(tuple(hidden)):
            frame = frame.select(columns)
        return DataFrame(frame, merged.sparkSession)

    def _plain_results(self) -> list[Any] | None:
        """The results in one step, if each is a group or an aggregate under some name."""
        sources: list[tuple[Any, str]] = list(zip(self._parts.groups, self.groups, strict=True))
        left = iter(self.partials)
        for (recipe, _), expression in zip(self._recipes, self._parts.functions, strict=True):
            columns = [next(left) for _ in recipe.partials]
            if recipe.result is None:
                return None
            sources.append((expression.resultAttribute(), recipe.result.format(*columns)))
        found = []
        for result in self._parts.results:
            inner = result.child() if result.nodeName() == "Alias" else result
            if inner.nodeName() != "AttributeReference":
                return None
            sql = next((sql for source, sql in sources if _same(source, inner)), None)
            if sql is None:
                return None
            found.append(F.expr(sql).alias(result.name())._jc)
        return found

    def _last_steps(self, hidden: tuple[str, ...]) -> list[Any]:
        if hidden in self._steps:
            return self._steps[hidden]
        catalyst, parts = self._catalyst, self._parts
        kept = [F.col(name)._jc for name in hidden]
        plain = self._plain_results()
        if plain is not None:
            self._steps[hidden] = [catalyst.sequence([*kept, *plain])]
            return self._steps[hidden]
        groups = [catalyst.column(group.toAttribute())._jc for group in parts.groups]
        named: list[Any] = [
            catalyst.renamed(F.col(name), group.name(), group.exprId())
            for name, group in zip(self.groups, parts.groups, strict=True)
        ]
        computed: list[Any] = []
        left = iter(self.partials)
        own_steps = False
        for (recipe, function), expression in zip(self._recipes, parts.functions, strict=True):
            columns = [next(left) for _ in recipe.partials]
            result = expression.resultAttribute()
            if recipe.result is not None:
                made = F.expr(recipe.result.format(*columns))
                named.append(catalyst.renamed(made, result.name(), result.exprId()))
                computed.append(catalyst.column(result)._jc)
                continue
            own_steps = True
            buffers = catalyst.items(function.aggBufferAttributes())
            for name, buffer in zip(columns, buffers, strict=True):
                named.append(catalyst.renamed(F.col(name), buffer.name(), buffer.exprId()))
            last = catalyst.column(function.evaluateExpression())
            computed.append(catalyst.renamed(last, result.name(), result.exprId()))
        results = [catalyst.column(result)._jc for result in parts.results]
        steps = [[*kept, *named], [*kept, *groups, *computed], [*kept, *results]]
        if not own_steps:
            del steps[1]
        self._steps[hidden] = [catalyst.sequence(step) for step in steps]
        return self._steps[hidden]


def _same(a: Any, b: Any) -> bool:
    return bool(a.exprId().equals(b.exprId()))


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType)


def _type_of(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())

"""`braided.stream(df)`: a streaming DataFrame whose keyed state can move.

Before the first operator a `Stream` is the DataFrame itself and every method is Spark's own.
After one, a batch is all there is, so only methods that treat rows one by one have a meaning;
they are recorded, checked at once against an empty DataFrame of the schema, and applied to each
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from braided.api.grouped import GroupedStream
from braided.api.grouping import Grouping
from braided.api.static_frames import StaticStream
from braided.api.writer import StreamWriter
from braided.dict_functions.decorator import ManagedOperator
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.graph import Fed, Input, Mapped, Node, United, flow_of, renamed
from braided.flow.route import late_filter
from braided.flow.stateless import Stateless
from braided.operator.definition import Operator
from braided.spark.interpreter import preload_workers, use_driver_python
from braided.spark.jvm import Jvm, know_classes
from braided.spark.sql_text import quoted
from braided.spark.version import SPARK, warn_if_untested

__all__ = ["Stream", "stream"]

_STATELESS = frozenset(
    [
        "select",
        "selectExpr",
        "filter",
        "where",
        "withColumn",
        "withColumns",
        "withColumnRenamed",
        "withColumnsRenamed",
        "drop",
        "toDF",
        "fillna",
        "dropna",
        "replace",
        "join",
        "crossJoin",
        "hint",
        "mapInPandas",
        "mapInArrow",
    ]
)
_WHY_NOT = {
    "dropDuplicates": "it would need state of its own; write it as an Operator",
    "drop_duplicates": "it would need state of its own; write it as an Operator",
    "dropDuplicatesWithinWatermark": "it would need state of its own; write it as an Operator",
    "distinct": "it would need state of its own; write it as an Operator",
    "orderBy": "a stream has no end to sort at; braided.orderPreserving keeps the order of input",
    "sort": "a stream has no end to sort at; braided.orderPreserving keeps the order of input",
    "limit": "it would be a limit per batch; filter in the operator or in foreachBatch",
    "withWatermark": "put it before the first operator",
    "groupby": "call it groupBy",
    "agg": "it would aggregate one batch; group first: groupBy(...).agg(...)",
    "unionByName": "select the columns in one order and use union",
    "repartition": "Braided decides where rows go",
    "coalesce": "Braided decides where rows go",
}


def stream(df: DataFrame) -> Stream:
    """Takes any streaming DataFrame into Braided.

    One that is not streaming can be grouped for a StatefulProcessor, as in Spark (static_frames).
    """
    if is_remote() or type(df).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedError(
            "Spark Connect is not supported: Braided runs beside the driver and needs a classic "
            "SparkSession (SparkSession.builder.master(...), without .remote(...))"
        )
    if not isinstance(df, DataFrame):
        raise DefinitionError(f"braided.stream takes a DataFrame, not {type(df).__name__}")
    warn_if_untested(SPARK)
    use_driver_python(df.sparkSession)
    preload_workers(df.sparkSession, "braided.worker_daemon")
    know_classes(df.sparkSession.sparkContext)
    if not df.isStreaming:
        static: Any = StaticStream(df)
        return static  # type: ignore[no-any-return]
    return Stream(_input(df), df)


class Stream:
    """A stream of rows, before, between or after keyed operators."""

    def __init__(self, node: Node, shape: DataFrame) -> None:
        self._node = node
        self._shape = shape
        """A DataFrame with the schema of here: the source, or an empty one after an operator."""

    @property
    def _is_input(self) -> bool:
        """Whether this is before all operators."""
        return isinstance(self._node, Input)

    # -- what a DataFrame shows of itself --------------------------------------------------

    @property
    def schema(self) -> StructType:
        return self._shape.schema

    @property
    def columns(self) -> list[str]:
        return self._shape.columns

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return self._shape.dtypes

    @property
    def isStreaming(self) -> bool:
        return True

    def printSchema(self, level: int | None = None) -> None:
        self._shape.printSchema(level)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """The operators, then Spark's plan of the steps around them."""
        for step in flow_of([self._node]).steps:
            keys = ", ".join(step.key_schema.names)
            print(f"braided operator {step.name!r}: {step.label} by ({keys})")
        self._shape.explain(extended, mode)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {kind}" for name, kind in self.dtypes)
        return f"braided.Stream[{fields}]"

    # -- stateless steps -------------------------------------------------------------------

    def transform(self, func: Callable[..., Stream], *args: Any, **kwargs: Any) -> Stream:
        """`func(self, ...)`, as DataFrame.transform."""
        result = func(self, *args, **kwargs)
        if not isinstance(result, Stream):
            raise DefinitionError(f"transform: {func!r} gave {type(result).__name__}, not a Stream")
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(DataFrame, name):
            if not name.startswith("_") and name in self._shape.columns:
                return self[name]
            raise AttributeError(f"a Stream has no attribute {name!r}")
        if name in _STATELESS or self._is_input:
            return _Recorder(self, name)
        why = _WHY_NOT.get(name, "only methods that treat rows one by one have a meaning here")
        raise UnsupportedError(f"{name}() after a keyed operator: {why}")

    def __getitem__(self, item: str | int) -> Column:
        column = self._shape[item]
        # After an operator a column must not be tied to the empty DataFrame that stands for a
        # batch.
        if self._is_input:
            return column
        return F.col(quoted(self.columns[item] if isinstance(item, int) else item))

    def _step(self, step: Stateless) -> Stream:
        shape = step.apply(self._shape)
        if not isinstance(shape, DataFrame):
            raise UnsupportedError(
                f"{step.method}() on a stream: call it on the DataFrame before braided.stream"
            )
        step = dataclasses.replace(step, multiplies=_multiplies(shape))
        if isinstance(self._node, Input):
            return Stream(_input(shape, self._node, step), shape)
        other = step.kwargs.get("other", step.args[0] if step.args else None)
        if step.method in ("join", "crossJoin") and getattr(other, "isStreaming", False):
            raise UnsupportedError("join() after a keyed operator takes a static DataFrame")
        plan = shape._jdf.queryExecution().analyzed()
        beyond = _beyond_rows(plan)
        if beyond is not None:
            raise UnsupportedError(f"{step.method}() after a keyed operator: {beyond}")
        if not plan.deterministic():
            raise UnsupportedError(
                f"{step.method}() after a keyed operator with a function that is not "
                "deterministic: a batch that runs again must give the same rows. Compute it in the "
                "operator or before it"
            )
        return Stream(Mapped(self._node, step), shape)

    def union(self, other: Stream | DataFrame) -> Stream:
        """The rows of both, columns by position, as DataFrame.union."""
        if isinstance(other, DataFrame):
            other = stream(other)
        if not isinstance(other, Stream):
            raise DefinitionError(f"union takes a Stream, not {type(other).__name__}")
        if isinstance(self._node, Input) and isinstance(other._node, Input):
            return stream(self._node.source.union(other._node.source))
        shape = self._empty().union(other._empty())
        if shape.schema != self.schema or [f.dataType for f in other.schema] != [
            f.dataType for f in self.schema
        ]:
            raise DefinitionError(
                f"union: {self.schema.simpleString()} and {other.schema.simpleString()} are "
                "not of the same types; cast the columns of one"
            )
        return Stream(United((self._node, other._node)), shape)

    unionAll = union

    def feedback(self, condition: Column | str, to: str | None = None) -> Stream:
        """Sends rows for which `condition` holds back to an operator, for the next batch.

        They do not go on from here. The operator, the one before this point if `to` names no
        other, gets those of their columns that its own input has. Batches follow each other,
        also without new input, until no row goes back.
        """
        if self._is_input:
            raise DefinitionError("feedback() goes after an operator")
        column = F.expr(condition) if isinstance(condition, str) else condition
        self._empty().filter(column)  # Spark's own error, now, if the condition is none
        return Stream(Fed(self._node, column, self.schema, to), self._shape)

    def _empty(self) -> DataFrame:
        """A batch without rows of this schema."""
        if not self._is_input:
            return self._shape
        return self._shape.sparkSession.createDataFrame([], self.schema)

    # -- keyed operators -------------------------------------------------------------------

    def groupBy(self, *cols: str | Column | list[Any]) -> GroupedStream[Stream]:
        """Groups rows by one or several columns or expressions, with Spark's equality of keys."""
        return GroupedStream(self._node, Grouping.of(self._shape, cols), Stream)

    def apply(self, operator: type[Operator], schema: StructType | str) -> Stream:
        """Runs a function that was made an operator by `braided.managed`, by the key it has."""
        if not (isinstance(operator, type) and issubclass(operator, ManagedOperator)):
            raise DefinitionError(
                "apply() goes after groupBy(...); only what braided.managed gives knows its key"
            )
        return self.groupBy(*operator.keyColumns(self.columns)).apply(operator, schema)

    def name(self, name: str) -> Stream:
        """Names the operator before this point; its state is found by that name at a restart."""
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise DefinitionError(f"{name!r} can't name an operator: letters, digits, - _ . only")
        node = renamed(self._node, name)
        if node is None:
            raise DefinitionError(
                "name() goes after an operator: .groupBy(...).apply(...).name(...)"
            )
        return Stream(node, self._shape)

    @property
    def writeStream(self) -> StreamWriter:
        """Where the stream goes, as DataFrame.writeStream."""
        if self._is_input:
            raise DefinitionError(
                "this flow has no keyed operator; use the DataFrame's own writeStream"
            )
        return StreamWriter(self._node, self.schema)


def _input(source: DataFrame, base: Input | None = None, step: Stateless | None = None) -> Input:
    column = Jvm(source.sparkSession).event_time_column(source._jdf)
    late = None
    if column is not None:
        time = quoted(column)
        if isinstance(source.schema[column].dataType, StructType):
            time += ".end"  # a window of Spark's is late when its end is
        late = late_filter(time)
    return Input(source, base, step, late)


def _multiplies(shape: DataFrame) -> bool:
    """Whether the newest step may make several rows of one."""
    node = shape._jdf.queryExecution().analyzed()
    while node.nodeName() == "Project":
        node = node.children().head()
    return node.nodeName() in ("Generate", "Join")


def _beyond_rows(plan: Any) -> str | None:
    """Why a step does not treat rows one by one, if it does not.

    Looks at what the stream's own rows go through: what is joined to them may be anything.
    """
    node = plan
    while True:
        kind = node.nodeName()
        if kind in ("Aggregate", "Window"):
            what = "an aggregate" if kind == "Aggregate" else "a window function"
            return f"{what} would see the rows of one batch only; keep it in an Operator"
        if kind == "Join" and node.joinType().sql() in ("RIGHT OUTER", "FULL OUTER"):
            return "this join would give out the other side's unmatched rows in every batch"
        children = node.children()
        if children.isEmpty():
            return None
        node = children.head()


class _Recorder:
    """A DataFrame method on its way into a flow."""

    def __init__(self, stream: Stream, method: str) -> None:
        self._stream = stream
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Stream:
        return self._stream._step(Stateless(self._method, args, kwargs))

"""`braided.stream(df)`: a streaming DataFrame whose keyed state can move.

Before the first operator a `Stream` is the DataFrame itself and every method is Spark's own.
After one, a batch is all there is, so only methods that treat rows one by one have a meaning;
they are recorded, checked at once against an empty DataFrame of the schema, and applied to each
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import CalendarIntervalType, MapType, StringType, StructType, VariantType
from pyspark.sql.utils import is_remote

from braided.api.aggregates import Aggregating
from braided.api.processors import Processing
from braided.api.static_frames import Batch
from braided.dict_functions.decorator import ManagedOperator
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.graph import (
    Fed,
    Input,
    Keyed,
    Mapped,
    Node,
    Side,
    United,
    flow_of,
    renamed,
)
from braided.flow.route import Keys, late_filter
from braided.flow.stateless import Stateless
from braided.flow.step import KeyedStep
from braided.kinds.operator.first_state import check_initial
from braided.kinds.operator.step import OperatorStep
from braided.operator.definition import Operator
from braided.spark.interpreter import use_driver_python
from braided.spark.jvm import Jvm
from braided.spark.sql_text import quoted

if TYPE_CHECKING:
    from braided.api.writer import StreamWriter

__all__ = ["TIME_MODES", "GroupedStream", "Stream", "output_shape", "stream"]

TIME_MODES = ("ProcessingTime", "EventTime")

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
    use_driver_python(df.sparkSession)
    if not df.isStreaming:
        grouping: Any = Batch(df, _grouped)
        return grouping  # type: ignore[no-any-return]
    return Stream(_input(df), df)


def _grouped(stream: Any, *cols: str | Column | list[Any]) -> GroupedStream:
    return Stream.groupBy(stream, *cols)


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
                "deterministic: a batch "
                "that runs again must give the same rows. Compute it in the operator or before it"
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

    def groupBy(self, *cols: str | Column | list[Any]) -> GroupedStream:
        """Groups rows by one or several columns or expressions, with Spark's equality of keys."""
        flat = [c for col in cols for c in (col if isinstance(col, list | tuple) else [col])]
        if not flat:
            raise DefinitionError("groupBy needs at least one column")
        return GroupedStream(self, flat)

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
        from braided.api.writer import StreamWriter

        if self._is_input:
            raise DefinitionError(
                "this flow has no keyed operator; use the DataFrame's own writeStream"
            )
        return StreamWriter(self)


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


class GroupedStream(Aggregating, Processing):
    """Rows of a stream by key."""

    def __init__(self, stream: Stream, cols: list[str | Column]) -> None:
        self._stream = stream
        self._cols = cols
        shape = stream._shape
        self._key = StructType(shape.select(*cols).schema.fields)
        for field in self._key.fields:
            _check_key_type(field.name, field.dataType)
        # Spark's own analysis refuses whatever else can't be grouped.
        shape.groupBy(*cols).agg(F.count(F.lit(1)))
        exact = shape.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
        fold = str if exact else str.lower
        own = {fold(name): name for name in reversed(shape.columns)}
        columns: list[str | Column] = []
        for col in cols:
            text = col if isinstance(col, str) else str(col._jc)
            plain = own.get(fold(text))
            columns.append(
                plain if plain is not None else F.col(col) if isinstance(col, str) else col
            )
        self._keys = Keys(tuple(columns))

    def apply(
        self,
        operator: type[Operator],
        schema: StructType | str,
        timeMode: str = "ProcessingTime",
        initialState: DataFrame | None = None,
    ) -> Stream:
        """Runs an `Operator` class for every key; `schema` is of the rows it gives out.

        `initialState` has the grouping columns and a column for each field (those left out, and
        nulls, have their defaults). It counts from the first batch that the operator is in; a
        checkpoint that knows the operator has its state already.
        """
        if not (isinstance(operator, type) and issubclass(operator, Operator)):
            raise DefinitionError(
                f"apply takes a class derived from braided.Operator, not {operator!r}"
            )
        if issubclass(operator, ManagedOperator):
            operator.checkGrouping(self._keys.columns, self._key)
        operator.check_params()
        if timeMode not in TIME_MODES:
            raise DefinitionError(f"timeMode is {timeMode!r}; it takes {' or '.join(TIME_MODES)}")
        if hasattr(operator, "onLeft") or hasattr(operator, "onRight"):
            raise DefinitionError(
                f"{operator.__name__} has onLeft or onRight, so it takes two inputs: "
                "braided.connect(a.groupBy(...), b.groupBy(...)).apply(...)"
            )
        shape = output_shape(self._stream, schema)
        if initialState is not None:
            check_initial(initialState, operator, self._key)
        step = OperatorStep(
            name=operator.__name__,
            operator=operator,
            keys=self._keys,
            key_schema=self._key,
            input=self._stream.schema,
            output=shape.schema,
            time_mode=timeMode,
            initial=initialState,
        )
        return self._then(step)

    def _then(self, step: KeyedStep) -> Stream:
        """What a keyed step makes of these rows."""
        shape = self._stream._shape.sparkSession.createDataFrame([], step.output)
        return Stream(Keyed(step, (Side(self._stream._node, self._keys),)), shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"groupBy(...).{name}() is not supported: use .agg(...) for aggregates, "
            ".transformWithState(...) for a StatefulProcessor and .apply(OperatorClass, schema) "
            "for everything else"
        )


def output_shape(stream: Stream, schema: StructType | str) -> DataFrame:
    """An empty DataFrame of an operator's output schema."""
    try:
        shape = stream._shape.sparkSession.createDataFrame([], schema)
    except PySparkException as error:
        raise DefinitionError(f"the output schema {schema!r} is not understood: {error}") from None
    hidden = [name for name in shape.columns if name.startswith("__braided_")]
    if hidden:
        raise DefinitionError(f"column names like {hidden[0]!r} are taken")
    return shape


def _check_key_type(name: str, kind: Any) -> None:
    if isinstance(kind, MapType | VariantType | CalendarIntervalType):
        raise UnsupportedError(f"groupBy({name!r}): a key can't be of type {kind.simpleString()}")
    if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
        raise UnsupportedError(
            f"groupBy({name!r}): keys with collation {kind.collation} are not supported; group by "
            f"collation_key({name}) or lower({name})"
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_key_type(f"{name}.{field.name}", field.dataType)
    if hasattr(kind, "elementType"):
        _check_key_type(name, kind.elementType)

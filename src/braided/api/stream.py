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

from braided.api.aggregates import Aggregating, with_mode
from braided.api.operator import Operator
from braided.engine.flow import Flow, KeyedStep, OperatorStep, Stateless
from braided.engine.jvm import Jvm
from braided.engine.route import Keys, quoted
from braided.errors import DefinitionError, UnsupportedError

if TYPE_CHECKING:
    from braided.api.writer import StreamWriter

__all__ = ["GroupedStream", "Stream", "stream"]

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
    "union": "unite the streams before braided.stream",
    "unionByName": "unite the streams before braided.stream",
    "repartition": "Braided decides where rows go",
    "coalesce": "Braided decides where rows go",
}


def stream(df: DataFrame) -> Stream:
    """Takes any streaming DataFrame into Braided."""
    if is_remote() or type(df).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedError(
            "Spark Connect is not supported: Braided runs beside the driver and needs a classic "
            "SparkSession (SparkSession.builder.master(...), without .remote(...))"
        )
    if not isinstance(df, DataFrame):
        raise DefinitionError(f"braided.stream takes a DataFrame, not {type(df).__name__}")
    if not df.isStreaming:
        raise DefinitionError(
            "braided.stream takes a streaming DataFrame (spark.readStream...); this one "
            "is not streaming"
        )
    return Stream(df, df, ())


class Stream:
    """A stream of rows, before, between or after keyed operators."""

    def __init__(self, source: DataFrame, shape: DataFrame, steps: tuple[KeyedStep, ...]) -> None:
        self._source = source
        self._shape = shape
        """A DataFrame with the schema of here: the source, or an empty one after an operator."""
        self._steps = steps

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
        for step in self._steps:
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
        if name in _STATELESS or not self._steps:
            return _Recorder(self, name)
        why = _WHY_NOT.get(name, "only methods that treat rows one by one have a meaning here")
        raise UnsupportedError(f"{name}() after a keyed operator: {why}")

    def __getitem__(self, item: str | int) -> Column:
        column = self._shape[item]
        # After an operator a column must not be tied to the empty DataFrame that stands for a
        # batch.
        return (
            F.col(quoted(self.columns[item] if isinstance(item, int) else item))
            if self._steps
            else column
        )

    def _step(self, step: Stateless) -> Stream:
        shape = step.apply(self._shape)
        if not isinstance(shape, DataFrame):
            raise UnsupportedError(
                f"{step.method}() on a stream: call it on the DataFrame before braided.stream"
            )
        if not self._steps:
            return Stream(shape, shape, ())
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
        last = self._steps[-1]
        last = dataclasses.replace(last, after=(*last.after, step))
        return Stream(self._source, shape, (*self._steps[:-1], last))

    # -- keyed operators -------------------------------------------------------------------

    def groupBy(self, *cols: str | Column | list[Any]) -> GroupedStream:
        """Groups rows by one or several columns or expressions, with Spark's equality of keys."""
        flat = [c for col in cols for c in (col if isinstance(col, list | tuple) else [col])]
        if not flat:
            raise DefinitionError("groupBy needs at least one column")
        return GroupedStream(self, flat)

    def name(self, name: str) -> Stream:
        """Names the operator before this point; its state is found by that name at a restart."""
        if not self._steps:
            raise DefinitionError(
                "name() goes after an operator: .groupBy(...).apply(...).name(...)"
            )
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise DefinitionError(f"{name!r} can't name an operator: letters, digits, - _ . only")
        last = dataclasses.replace(self._steps[-1], name=name)
        return Stream(self._source, self._shape, (*self._steps[:-1], last))

    @property
    def writeStream(self) -> StreamWriter:
        """Where the stream goes, as DataFrame.writeStream."""
        from braided.api.writer import StreamWriter

        if not self._steps:
            raise DefinitionError(
                "this flow has no keyed operator; use the DataFrame's own writeStream"
            )
        return StreamWriter(self)

    def _then(self, step: KeyedStep) -> Stream:
        """This stream with one more keyed step."""
        shape = self._source.sparkSession.createDataFrame([], step.output)
        return Stream(self._source, shape, (*self._steps, step))

    def _flow(self, mode: str = "append") -> Flow:
        names = [step.name for step in self._steps]
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(
                    f"two operators are called {name!r}; tell them apart with .name(...)"
                )
        column = Jvm(self._source.sparkSession).event_time_column(self._source._jdf)
        late = None
        if column is not None:
            event_time = any(step.drops_late_rows for step in self._steps[:1])
            time = quoted(column)
            if isinstance(self._source.schema[column].dataType, StructType):
                time += ".end"  # a window of Spark's is late when its end is
            late = _late_filter(time) if event_time else lambda watermark_ms: "true"
        for step in self._steps:
            if step.time_mode == "EventTime" and column is None:
                raise DefinitionError(
                    f"operator {step.name!r} has timeMode='EventTime', which needs "
                    "withWatermark(...) on "
                    "the DataFrame before braided.stream"
                )
        return Flow(self._source, with_mode(self._steps, mode), late)


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


def _late_filter(time: str) -> Callable[[int], str]:
    def keep(watermark_ms: int) -> str:
        # Inside an array, at a place that Spark does not see is constant, the watermark is not
        # compiled into the generated code, which would then be compiled anew for every batch.
        place = f"pmod(hash({time}), 1) + 1"
        watermark = f"element_at(array(timestamp_millis({watermark_ms})), {place})"
        return f"NOT coalesce({time} <= {watermark}, false)"

    return keep


class _Recorder:
    """A DataFrame method on its way into a flow."""

    def __init__(self, stream: Stream, method: str) -> None:
        self._stream = stream
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Stream:
        return self._stream._step(Stateless(self._method, args, kwargs))


class GroupedStream(Aggregating):
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
    ) -> Stream:
        """Runs an `Operator` class for every key; `schema` is of the rows it gives out."""
        if not (isinstance(operator, type) and issubclass(operator, Operator)):
            raise DefinitionError(
                f"apply takes a class derived from braided.Operator, not {operator!r}"
            )
        if timeMode not in TIME_MODES:
            raise DefinitionError(f"timeMode is {timeMode!r}; it takes {' or '.join(TIME_MODES)}")
        spark = self._stream._source.sparkSession
        try:
            shape = spark.createDataFrame([], schema)
        except PySparkException as error:
            raise DefinitionError(
                f"the output schema {schema!r} is not understood: {error}"
            ) from None
        hidden = [name for name in shape.columns if name.startswith("__braided_")]
        if hidden:
            raise DefinitionError(f"column names like {hidden[0]!r} are taken")
        step = OperatorStep(
            name=operator.__name__,
            operator=operator,
            keys=self._keys,
            key_schema=self._key,
            input=self._stream.schema,
            output=shape.schema,
            time_mode=timeMode,
        )
        return self._stream._then(step)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"groupBy(...).{name}() is not supported: use .agg(...) for aggregates and "
            ".apply(OperatorClass, schema) for everything else"
        )


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

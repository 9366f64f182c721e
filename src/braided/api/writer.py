"""`stream.writeStream`: the same calls as Spark's DataStreamWriter."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from braided.api.destination import Target, sink_of
from braided.api.query import ElasticQuery, retire
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.graph import Fed, Flow, Keyed, Mapped, Node, flow_of
from braided.options import Options
from braided.query.opening import open_query
from braided.sinks.base import Sink
from braided.spark.interpreter import check_workers
from braided.spark.jvm import Jvm
from braided.spark.launch import launch
from braided.spark.query_handle import QueryHandle
from braided.spark.store_settings import session_store
from braided.spark.tick import with_tick
from braided.store.durable.location import Location
from braided.store.durable.store import Store

if TYPE_CHECKING:
    from pyspark.sql._typing import SupportsProcess

__all__ = ["StreamWriter", "start"]

_OFFSET_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


class StreamWriter:
    """Collects what a query is to be, then starts it."""

    def __init__(self, node: Node, schema: StructType) -> None:
        """`node` is the end of the flow that is written, and `schema` that of its rows."""
        self._node = node
        self._schema = schema
        self._format: str | None = None
        self._options: dict[str, Any] = {}
        self._mode = "append"
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._partition_by: list[str] = []
        self._function: Callable[..., Any] | None = None
        self._table: str | None = None

    def format(self, source: str) -> StreamWriter:
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        self._options[key] = value
        return self

    def options(self, **options: Any) -> StreamWriter:
        self._options.update(options)
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        mode = outputMode.lower()
        steps = flow_of([self._node]).steps
        if mode == "complete" and not any(step.gives_complete for step in steps):
            raise UnsupportedError(
                "outputMode('complete') would give out all state in every batch; operators give "
                "out rows as they choose: use 'append' or 'update'"
            )
        if mode not in ("append", "update", "complete"):
            raise DefinitionError(f"outputMode is {outputMode!r}; it takes 'append' or 'update'")
        self._mode = mode
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        if not queryName or not queryName.strip():
            raise DefinitionError("queryName must not be empty")
        self._name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
    ) -> StreamWriter:
        if continuous is not None:
            raise UnsupportedError("trigger(continuous=...): Braided runs in micro-batches")
        triggers = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        self._trigger = {name: value for name, value in triggers.items() if value is not None}
        if len(self._trigger) != 1:
            raise DefinitionError("trigger takes one of processingTime, availableNow and once")
        return self

    def partitionBy(self, *cols: str | list[str]) -> StreamWriter:
        self._partition_by = [c for col in cols for c in (col if isinstance(col, list) else [col])]
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> StreamWriter:
        if not callable(func):
            raise DefinitionError("foreachBatch takes a function of a DataFrame and a batch id")
        self._function = func
        self._format = "foreachBatch"
        return self

    def foreach(self, f: Callable[[Row], None] | SupportsProcess) -> StreamWriter:
        """Calls a function with each row, or an object's open, process and close, in tasks."""
        # Spark's own, with its errors for an object that lacks a method.
        function = DataStreamWriter._construct_foreach_function(f)
        _check_travels(function)
        self._function = function
        self._format = "foreach"
        return self

    def clusterBy(self, *cols: str) -> StreamWriter:
        raise UnsupportedError(
            "writeStream.clusterBy is not supported: files and tables of files have no clustering; "
            "use partitionBy, or cluster the table where its format knows how"
        )

    def table(self, tableName: str) -> StreamWriter:
        """Writes to a table, as `toTable` does, without starting: for `braided.start`."""
        self._table = tableName
        return self

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> ElasticQuery:
        """Starts the query with a table as its output, which is made if it is missing."""
        self.table(tableName)
        return self.start(
            format=format,
            outputMode=outputMode,
            partitionBy=partitionBy,
            queryName=queryName,
            **options,
        )

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> ElasticQuery:
        """Starts the query, as DataStreamWriter.start does."""
        self.options(**options)
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if queryName is not None:
            self.queryName(queryName)
        if path is not None:
            self.option("path", path)
        return start(self)

    def _target(self) -> Target:
        return Target(
            schema=self._schema,
            format=self._format,
            table=self._table,
            query_name=self._name,
            partition_by=self._partition_by,
            options={
                name: value
                for name, value in self._options.items()
                if name not in _query_options(self._options)
            },
            function=self._function,
            mode=self._mode,
            grouped_by=_grouped_by(self._node),
        )


def start(*writers: StreamWriter) -> ElasticQuery:
    """Starts several writers as one query.

    What is upstream of more than one of them is computed once per batch, and a batch is
    committed for all of them or for none. The options of the query itself (checkpointLocation,
    braided.*, trigger, queryName) may be given to any of the writers.
    """
    if not writers:
        raise DefinitionError("start takes one or more stream.writeStream...")
    for writer in writers:
        if not isinstance(writer, StreamWriter):
            raise DefinitionError(f"start takes stream.writeStream..., not {writer!r}")
    flow = flow_of([writer._node for writer in writers], [writer._mode for writer in writers])
    spark = flow.roots[0].source.sparkSession
    options = _merged("option", [_query_options(writer._options) for writer in writers])
    trigger = _merged("trigger", [writer._trigger for writer in writers])
    if len(trigger) > 1:
        raise DefinitionError("the writers have different triggers; one query has one")
    named = [writer._name for writer in writers if writer._name is not None]
    if len(set(named)) > 1 and len({w._format for w in writers} - {"memory"}):
        raise DefinitionError(f"the writers have different query names: {', '.join(named)}")
    settings = Options.parse(
        options, dict(spark.conf.getAll.items()), channels=spark.sparkContext.defaultParallelism
    )
    if str(spark.conf.get(_OFFSET_FORMAT, "1")) != "1":
        raise UnsupportedError(
            f"{_OFFSET_FORMAT} other than 1: Braided reads times and offsets of a batch from "
            "Spark's log, in that version. Unset it for this session"
        )
    if settings.on_error == "divert" and not all(s.can_divert for s in flow.steps):
        raise UnsupportedError(
            "braided.onError=divert with a StatefulProcessor or a ColumnOperator: it gets many "
            "rows as a whole, so that nobody knows which of them an error is due to, and none can "
            "be taken back. Catch errors in it, or leave the option out"
        )
    if settings.order_preserving:
        flow.check_order_survives()
    sinks = [sink_of(writer._target(), spark) for writer in writers]
    _check_apart(sinks)
    flow = replace(flow, newest_only=tuple(sink.newest_only for sink in sinks))
    name = named[0] if named else None
    given = _location(spark, options, name)
    if given is None and any(sink.keeps for sink in sinks):
        raise DefinitionError(
            "the query needs a checkpointLocation: .option('checkpointLocation', path)"
        )
    check_workers(spark)
    with _checkpoint(given) as location:
        checkpoint = session_store(spark, location, settings.store)
        retire(location.text)
        query = _launch(spark, flow, sinks, checkpoint, settings, trigger, name, given is None)
    for sink in sinks:
        sink.started()
    return query


@contextmanager
def _checkpoint(location: Location | None) -> Iterator[Location]:
    """Where a query keeps what it has; a place that nobody gave does not outlive a failed start."""
    if location is not None:
        yield location
        return
    temporary = tempfile.mkdtemp(prefix="braided-checkpoint-")
    try:
        yield Location.of(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _launch(
    spark: SparkSession,
    flow: Flow,
    sinks: list[Sink],
    checkpoint: Store,
    settings: Options,
    trigger: dict[str, Any],
    name: str | None,
    temporary: bool,
) -> ElasticQuery:
    handle = QueryHandle()
    every_s = _interval_s(spark, trigger)
    ends_itself = bool(trigger) and "processingTime" not in trigger
    opened = open_query(
        flow, sinks, checkpoint, settings, spark, handle, every_s, temporary, ends_itself
    )
    try:
        native = (
            with_tick(opened.source, opened.bell)
            .writeStream.foreachBatch(opened.call)
            .outputMode(_native_mode(flow))
            .option("checkpointLocation", checkpoint.location.text)
        )
        if name is not None:
            native = native.queryName(name)
        if trigger:
            native = native.trigger(**trigger)

        def wrap(started: StreamingQuery) -> ElasticQuery:
            handle.attach(started)
            return ElasticQuery(started, opened)

        return launch(spark, native, wrap, renames=checkpoint.location.local is not None)
    except BaseException:
        opened.close()
        raise


def _interval_s(spark: SparkSession, trigger: dict[str, Any]) -> float:
    """How often a batch is wanted; 0 for as often as possible."""
    every = trigger.get("processingTime")
    return 0.0 if every is None else Jvm(spark).interval_ms(str(every)) / 1000


def _native_mode(flow: Flow) -> str:
    """The output mode that Spark is told, which matters to stateful steps of its own upstream."""
    ours = any(step.gives_complete for step in flow.steps)
    return "append" if ours else flow.modes[0]


def _grouped_by(node: Node) -> tuple[str, ...]:
    """The key of the operator whose rows these are; nothing where they are of several, or none."""
    while isinstance(node, Mapped | Fed):
        node = node.parent
    return tuple(node.step.key_schema.names) if isinstance(node, Keyed) else ()


def _check_travels(function: Callable[..., Any]) -> None:
    dumps: Callable[[Any], bytes] = cloudpickle.dumps  # which has no types of its own
    dumps(function)


def _query_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that are the query's and not the sink's."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() == "checkpointlocation" or name.lower().startswith("braided.")
    }


def _merged(what: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings of all writers, which must not contradict each other."""
    merged: dict[str, Any] = {}
    for of_writer in settings:
        for name, value in of_writer.items():
            first = merged.setdefault(name, value)
            if first != value:
                secret = name.lower().startswith("braided.store.")
                values = "" if secret else f": {first!r} and {value!r}"
                raise DefinitionError(
                    f"the writers of one query give {what} {name} different values{values}"
                )
    return merged


def _check_apart(sinks: list[Sink]) -> None:
    paths = [sink.owned_path for sink in sinks if sink.owned_path is not None]
    for path in paths:
        if paths.count(path) > 1:
            raise DefinitionError(f"two writers write to {path}; give each a path of its own")


def _location(spark: SparkSession, options: dict[str, Any], name: str | None) -> Location | None:
    """Where the user wants the checkpoint, if anywhere."""
    location = {key.lower(): value for key, value in options.items()}.get("checkpointlocation")
    if location is None:
        base = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if base is not None:
            location = f"{base}/{name or uuid.uuid4()}"
    return None if location is None else Location.of(str(location))

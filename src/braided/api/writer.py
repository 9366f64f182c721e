"""`stream.writeStream`: the same calls as Spark's DataStreamWriter."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from braided.api.query import ElasticQuery, retire
from braided.engine.batch import Engine
from braided.engine.flow import AggregateStep
from braided.engine.jvm import Jvm
from braided.engine.sinks import (
    ConsoleSink,
    FileSink,
    ForeachBatchSink,
    MemorySink,
    NoopSink,
    Sink,
)
from braided.engine.tick import with_tick
from braided.errors import DefinitionError, UnsupportedError
from braided.options import Options

if TYPE_CHECKING:
    from braided.api.stream import Stream

__all__ = ["StreamWriter"]


class StreamWriter:
    """Collects what a query is to be, then starts it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._format: str | None = None
        self._options: dict[str, Any] = {}
        self._mode = "append"
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._partition_by: list[str] = []
        self._function: Callable[[DataFrame, int], Any] | None = None

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
        aggregates = any(isinstance(step, AggregateStep) for step in self._stream._steps)
        if mode == "complete" and not aggregates:
            raise UnsupportedError(
                "outputMode('complete') would give out all state in every batch; "
                "operators give out rows "
                "as they choose: use 'append' or 'update'"
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
        given = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        self._trigger = {name: value for name, value in given.items() if value is not None}
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

    def __getattr__(self, name: str) -> Any:
        if name in ("foreach", "toTable", "clusterBy"):
            raise UnsupportedError(f"writeStream.{name} is not supported; use foreachBatch")
        raise AttributeError(name)

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
        flow = self._stream._flow(self._mode)
        spark = flow.source.sparkSession
        settings = _settings(spark, self._options)
        if settings.order_preserving:
            flow.check_order_survives()
        sink = self._sink(spark)
        location = self._location(spark)
        retire(location)
        engine = Engine(flow, sink, location, settings, spark)
        try:
            writer = (
                with_tick(flow.source, engine.bell)
                .writeStream.foreachBatch(engine.run)
                .outputMode("append")  # the mode is ours to keep: Spark sees no aggregate
                .option("checkpointLocation", location)
            )
            if self._name is not None:
                writer = writer.queryName(self._name)
            if self._trigger:
                writer = writer.trigger(**self._trigger)
            query = ElasticQuery(writer.start(), engine)
        except BaseException:
            engine.close()
            raise
        if isinstance(sink, MemorySink):
            sink.show()
        return query

    def _sink(self, spark: SparkSession) -> Sink:
        kind = self._format or str(spark.conf.get("spark.sql.sources.default"))
        options = {name.lower(): value for name, value in self._options.items()}
        if self._partition_by and kind in ("memory", "console", "noop", "foreachBatch"):
            raise DefinitionError(f"partitionBy has no meaning for format {kind!r}")
        match kind:
            case "foreachBatch":
                assert self._function is not None
                return ForeachBatchSink(self._function)
            case "noop":
                return NoopSink()
            case "console":
                truncate = str(options.get("truncate", True)).lower() == "true"
                return ConsoleSink(int(options.get("numrows", 20)), truncate)
            case "memory":
                if self._name is None:
                    raise DefinitionError("format('memory') needs a queryName to name the table")
                whole = self._mode == "complete"
                return MemorySink(spark, self._name, self._stream.schema, replaced=whole)
        if Jvm(spark).file_format(kind) is None:
            raise UnsupportedError(
                f"format({kind!r}) is not supported; write to it in foreachBatch, where "
                "the batch id makes "
                "repeated rows recognisable"
            )
        if self._mode == "complete":
            raise UnsupportedError(
                f"outputMode('complete') with format({kind!r}): files are only ever added; write "
                "them in foreachBatch, over those of the batch before"
            )
        if "path" not in options:
            raise DefinitionError(
                f"format({kind!r}) needs a path: .start(path) or .option('path', ...)"
            )
        missing = [c for c in self._partition_by if c not in self._stream.columns]
        if missing:
            raise DefinitionError(f"partitionBy: there is no column {missing[0]!r} in the output")
        own = {
            name: _text(value)
            for name, value in self._options.items()
            if name.lower() not in ("path", "checkpointlocation")
            and not name.lower().startswith("braided.")
        }
        return FileSink(kind, _absolute(str(options["path"])), self._partition_by, own)

    def _location(self, spark: SparkSession) -> str:
        options = {name.lower(): value for name, value in self._options.items()}
        location = options.get("checkpointlocation")
        if location is None:
            base = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
            if base is not None:
                location = f"{base}/{self._name or uuid.uuid4()}"
        if location is None:
            if self._format in ("memory", "console", "noop", "foreachBatch"):
                location = tempfile.mkdtemp(prefix="braided-checkpoint-")
            else:
                raise DefinitionError(
                    "the query needs a checkpointLocation: .option('checkpointLocation', path)"
                )
        return _absolute(str(location))


def _settings(spark: SparkSession, options: dict[str, Any]) -> Options:
    session = {name: value for name, value in spark.conf.getAll.items()}
    return Options.parse(options, session, channels=spark.sparkContext.defaultParallelism)


def _absolute(location: str) -> str:
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    if "://" in location:
        raise UnsupportedError(
            f"{location}: checkpoints and file output are on a local or mounted file system for now"
        )
    return str(Path(location).absolute())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

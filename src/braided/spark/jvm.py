"""Spark's own classes that PySpark does not show, reached through py4j in one place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from py4j.java_gateway import JavaClass, java_import
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "RENAMED_LOGS",
    "Jvm",
    "int_array",
    "java_class",
    "jvm_pid",
    "know_classes",
    "live_heap_bytes",
    "plan_lines",
    "processor_s",
    "runs_python",
    "scala_object",
]

_STREAMING = "org.apache.spark.sql.execution.streaming"
RENAMED_LOGS = (
    "spark.sql.streaming.checkpointFileManagerClass",
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""The setting with which Spark writes the files of a log by renaming."""
_FILE_SOURCE = f"{_STREAMING}.runtime.FileStreamSource"
_SOURCES = "org.apache.spark.sql.execution.datasources"


def java_class(jvm: Any, name: str) -> Any:
    """A class by its whole name.

    Written as `jvm.java.lang.Class`, py4j asks the JVM for a class of each of the names `java`,
    `java.lang` and so on, and to find that there is none the JVM looks into all of Spark's jars.
    """
    return getattr(jvm, name)


def scala_object(jvm: Any, name: str) -> Any:
    """A Scala object by its whole name."""
    return java_class(jvm, "java.lang.Class").forName(f"{name}$").getField("MODULE$").get(None)


_BY_SIMPLE_NAME = ("PythonSQLUtils", "PythonUtils", "SimplePythonFunction", "functions")
"""What PySpark calls for columns and functions; `functions` for each column of each plan."""
_knowing: WeakSet[SparkContext] = WeakSet()


def know_classes(context: SparkContext) -> None:
    """Tells py4j which classes PySpark means by their simple names, those that it finds itself.

    Untold, it looks for such a class in one package after the other, each time it is called, and to
    find that it is not in one the JVM looks into all of Spark's jars: half a millisecond of CPU for
    every `col`.
    """
    if context in _knowing:
        return
    _knowing.add(context)
    jvm: Any = context._jvm
    for name in _BY_SIMPLE_NAME:
        found = getattr(jvm, name)
        if isinstance(found, JavaClass):
            java_import(jvm, found._fqn)


def int_array(context: SparkContext, values: npt.NDArray[np.int32]) -> Column:
    """Numbers as one literal.

    An `array(...)` of as many would be looked through by every rule of every plan, and a `lit` of a
    list takes a call for each number.
    """
    assert context._jvm is not None and context._gateway is not None
    jvm: Any = context._jvm
    made = context._gateway.new_array(jvm.int, len(values))
    # Bytes travel in one call; the JVM reads them highest first.
    data = values.astype(">i4").tobytes()
    java_class(jvm, "java.nio.ByteBuffer").wrap(data).asIntBuffer().get(made)
    return ClassicColumn(java_class(jvm, "org.apache.spark.sql.functions").lit(made))


def runs_python(df: DataFrame) -> bool:
    """Whether Python functions are called to compute a frame. What is kept already is not looked
    into.
    """
    context = df.sparkSession.sparkContext
    patterns = java_class(context._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    plan = df._jdf.queryExecution().optimizedPlan()
    return bool(plan.containsPattern(patterns.PYTHON_UDF()))


def plan_lines(df: DataFrame) -> int:
    """How long the plan is that Spark has made of a frame."""
    return len(str(df._jdf.queryExecution().optimizedPlan().toString()).splitlines())


def jvm_pid(context: SparkContext) -> int:
    """The process of the driver's JVM."""
    gateway: Any = context._gateway
    return int(gateway.proc.pid)


def processor_s(context: SparkContext) -> float:
    """The processor time that the JVM of the driver has taken, in all, as Linux tells it."""
    fields = Path(f"/proc/{jvm_pid(context)}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def live_heap_bytes(context: SparkContext) -> int:
    """What of the heap of the driver's JVM is in use when all garbage has been collected."""
    java_class(context._jvm, "java.lang.System").gc()
    factory = java_class(context._jvm, "java.lang.management.ManagementFactory")
    return int(factory.getMemoryMXBean().getHeapMemoryUsage().getUsed())


class Jvm:
    """A session's JVM. Everything that depends on Spark's internals is a method here."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = context = spark.sparkContext
        assert context._jvm is not None and context._gateway is not None
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self.session: Any = spark._jsparkSession
        self._python: Any = self._class("org.apache.spark.api.python.PythonUtils")
        self._none = self._object("scala.None")
        self._writer = self._object(f"{_SOURCES}.FileFormatWriter")
        self._last_of_write = self._default(self._writer, "write", 12)
        self._output_spec = self._class(f"{_SOURCES}.FileFormatWriter$OutputSpec")
        self._protocol = self._class(f"{_STREAMING}.ManifestFileCommitProtocol")
        self._tracker = self._class(f"{_SOURCES}.BasicWriteJobStatsTracker")
        self._settings = self._class("org.apache.spark.util.SerializableConfiguration")
        self._log = self._class(f"{_STREAMING}.sinks.FileStreamSinkLog")
        self._status = self._class(f"{_STREAMING}.sinks.SinkFileStatus")

    def hadoop_settings(self) -> Callable[[str], str | None]:
        """Looks up settings of Hadoop's as the session has them, secrets in key stores too."""
        settings = self.session.sessionState().newHadoopConf()

        def look(name: str) -> str | None:
            letters = settings.getPassword(name)
            return None if letters is None else "".join(letters)

        return look

    def file_format(self, name: str) -> Any:
        """Spark's FileFormat of that name, or None when the name is no file format."""
        cls = self._source(name)
        if cls is None:
            return None
        found = self._new(cls)
        if self._is(found, f"{_SOURCES}.v2.FileDataSourceV2"):
            return self._new(found.fallbackFileFormat())
        return found if self._is(found, f"{_SOURCES}.FileFormat") else None

    def interval_ms(self, every: str) -> int:
        """The interval of a processing-time trigger, read as Spark reads it."""
        trigger = self._class("org.apache.spark.sql.streaming.Trigger").ProcessingTime(every)
        return int(trigger.intervalMs())

    def bytes_of(self, size: Any) -> int:
        """The bytes that a setting such as 64m means, read as Spark reads it."""
        java_utils = self._class("org.apache.spark.network.util.JavaUtils")
        return int(java_utils.byteStringAsBytes(str(size)))

    def await_sources(self, query: StreamingQuery, timeout_ms: int) -> None:
        """Waits until a query that was started has opened its sources, or has failed."""
        with contextlib.suppress(PySparkException, Py4JJavaError):  # the query tells the user
            query._jsq.streamingQuery().awaitInitialization(timeout_ms)

    def rename_logs(self, query: StreamingQuery, tell: Callable[[Any], None]) -> None:
        """Has the logs of a query whose sources are open written by renaming from now on. `tell`
        is given the settings of Hadoop's that they are written with, which are theirs alone.

        They got their way to write when they were made, from the session in which other queries
        are started as well; so they are given another, and so is what the query's own session
        makes. Either way is atomic: a file that was written meanwhile is as good.
        """
        execution = query._jsq.streamingQuery()
        with contextlib.suppress(PySparkException, Py4JJavaError):  # the query tells the user
            sources = [execution.sources().apply(i) for i in range(execution.sources().size())]
            if not sources:
                return  # they are not open yet
            execution.sparkSessionForStream().conf().set(*RENAMED_LOGS)
            logs = [execution.offsetLog(), execution.commitLog()]
            of_source = self._field(_FILE_SOURCE, "metadataLog")
            logs += [of_source.get(s) for s in sources if self._is(s, _FILE_SOURCE)]
            manager = self._field(f"{_STREAMING}.checkpointing.HDFSMetadataLog", "fileManager")
            hadoop = self.session.sessionState().newHadoopConf()
            tell(hadoop)
            for log in logs:
                manager.set(log, self._class(RENAMED_LOGS[1])(log.metadataPath(), hadoop))

    def has_delta(self) -> bool:
        """Whether the session has Delta Lake's data source, and the extension that it asks for."""
        source = self._source("delta")
        if source is None:
            return False
        if not str(source.getName()).startswith("org.apache.spark.sql.delta."):
            return True  # another of that name, which knows best
        return "DeltaSparkSessionExtension" in str(
            self.session.conf().get("spark.sql.extensions", "")
        )

    def writes_batches(self, name: str, schema_json: str, options: dict[str, str]) -> bool | None:
        """Whether `df.write.format(name)` can append; None when there is nothing of that name."""
        cls = self._source(name)
        if cls is None:
            return None
        found = self._new(cls)
        if self._is(found, "org.apache.spark.sql.sources.CreatableRelationProvider"):
            return True
        if not self._is(found, "org.apache.spark.sql.connector.catalog.TableProvider"):
            return False
        if self._is(found, f"{_SOURCES}.v2.python.PythonDataSourceV2"):
            found.setShortName(name)
        given = self._class("org.apache.spark.sql.util.CaseInsensitiveStringMap")(options)
        schema = self._class("org.apache.spark.sql.types.DataType").fromJson(schema_json)
        try:
            takes_schema = bool(found.supportsExternalMetadata())
        except Py4JError:  # py4j does not see every method that an interface brings along
            takes_schema = False
        declared = self._class("scala.Option").apply(schema) if takes_schema else None
        table = self._object(f"{_SOURCES}.v2.DataSourceV2Utils").getTableFromProvider(
            found, given, declared or self._none
        )
        can = {str(capability) for capability in table.capabilities()}
        return bool(can & {"BATCH_WRITE", "V1_BATCH_WRITE"})

    def _source(self, name: str) -> Any:
        """The class behind a format's name, or None."""
        # Formats written in Python are looked up in the active session.
        SparkSession._get_j_spark_session_class(self._jvm).setActiveSession(self.session)
        try:
            return self._class(f"{_SOURCES}.DataSource").lookupDataSource(
                name, self.session.sessionState().conf()
            )
        except (PySparkException, Py4JJavaError) as error:
            # Spark gives hints of its own for some formats that it knows of but does not bring.
            if "DATA_SOURCE_NOT_" in str(error):
                return None
            raise

    def write_files(
        self,
        jdf: Any,
        file_format: Any,
        path: str,
        listing: Any,
        job: str,
        partition_by: list[str],
        options: dict[str, str],
        tell: Callable[[Any], None],
    ) -> int:
        """Runs a DataFrame into files below `path` and lists them in a sink log as batch 0; the
        number of its rows. `tell` is given the settings of Hadoop's for this job.

        The files have unique names and the log is not the one that readers of `path` look at.
        """
        execution = jdf.queryExecution()
        output = execution.analyzed().output()
        columns = [output.apply(i) for i in range(output.size())] if partition_by else []
        chosen = [next(c for c in columns if c.name() == name) for name in partition_by]
        committer = self._protocol(job, path)
        committer.setupManifestOptions(listing, 0)
        hadoop = self.session.sessionState().newHadoopConfWithOptions(
            self._python.toScalaMap(options)
        )
        tell(hadoop)
        figures = self._tracker.metrics()
        self._writer.write(
            self.session,
            execution.executedPlan(),
            file_format,
            committer,
            self._output_spec(path, self._python.toScalaMap({}), output),
            hadoop,
            self._python.toSeq(chosen),
            self._none,
            self._python.toSeq([self._tracker(self._settings(hadoop), figures)]),
            self._python.toScalaMap(options),
            0,
            *self._last_of_write,
        )
        return int(figures.apply("numOutputRows").value())

    def sink_log(self, path: str) -> Any:
        return self._log(1, self.session, path, self._none)

    def add_to_sink_log(self, log: Any, batch: int, statuses: list[dict[str, Any]]) -> bool:
        """Makes files visible as a batch of a file sink; False if the log has the batch already."""
        array = self._gateway.new_array(self._status, len(statuses))
        for i, s in enumerate(statuses):
            array[i] = self._status(
                s["path"],
                s["size"],
                s["isDir"],
                s["modificationTime"],
                s["blockReplication"],
                s["blockSize"],
                s["action"],
            )
        return bool(log.add(batch, array))

    def is_compacted(self, log: Any, batch: int) -> bool:
        """Whether the log's file for a batch lists the files of all batches before as well."""
        return (batch + 1) % int(log.compactInterval()) == 0

    def paths_in_sink_log(self, log: Any, batch: int) -> set[str]:
        """The files that the log has for a batch (and for those before, where it is compacted)."""
        found = log.get(batch)
        return {str(status.path()) for status in found.get()} if found.isDefined() else set()

    def latest_in_sink_log(self, log: Any) -> int | None:
        latest = log.getLatestBatchId()
        return int(latest.get()) if latest.isDefined() else None

    def memory_sink(self, schema_json: str) -> tuple[Any, Any]:
        """Spark's memory sink, and a Dataset of what is in it."""
        sources = f"{_STREAMING}.sources"
        sink = self._class(f"{sources}.MemorySink")()
        schema = self._class("org.apache.spark.sql.types.DataType").fromJson(schema_json)
        types = self._object("org.apache.spark.sql.catalyst.types.DataTypeUtils")
        plan = self._class(f"{sources}.MemoryPlan")(sink, types.toAttributes(schema))
        datasets = self._object("org.apache.spark.sql.classic.Dataset")
        return sink, datasets.ofRows(self.session, plan)

    def tick(self) -> tuple[Any, Callable[[int], None], str]:
        """A stream in the driver that never has rows, what moves it to an offset, and what Spark
        calls it.
        """
        runtime = f"{_STREAMING}.runtime"
        tasks, encoder = 0, self._class("org.apache.spark.sql.Encoders").LONG()
        stream = self._class(f"{runtime}.MemoryStream").apply(self.session, tasks, encoder)
        offset = self._class(f"{runtime}.LongOffset")

        def move(to: int) -> None:
            getattr(stream, "currentOffset_$eq")(offset(to))

        return stream.toDF(), move, str(stream.toString())

    def clone(self) -> SparkSession:
        """A session with the same settings, some of which can then be changed for it alone."""
        return SparkSession(self._context, self.session.cloneSession())

    # -- tables ----------------------------------------------------------------------------

    def name_parts(self, name: str) -> list[str]:
        """`catalog.database.table` taken apart, quotes and all."""
        parts = self.session.sessionState().sqlParser().parseMultipartIdentifier(name)
        return [str(parts.apply(i)) for i in range(parts.size())]

    def is_temp_view(self, parts: list[str]) -> bool:
        return bool(self.session.sessionState().catalog().isTempView(self._python.toSeq(parts)))

    def session_table(self, database: str, table: str) -> Any:
        """Spark's CatalogTable, or None."""
        name = self._table(database, table)
        catalog = self.session.sessionState().catalog()
        return catalog.getTableMetadata(name) if catalog.tableExists(name) else None

    def default_table_location(self, database: str, table: str) -> Any:
        catalog = self.session.sessionState().catalog()
        return catalog.defaultTablePath(self._table(database, table))

    def ddl(self, schema_json: str) -> str:
        """Columns as CREATE TABLE takes them, all nullable."""
        schema = self._class("org.apache.spark.sql.types.DataType").fromJson(schema_json)
        return str(schema.asNullable().toDDL())

    def _table(self, database: str, table: str) -> Any:
        identifier = self._class("org.apache.spark.sql.catalyst.TableIdentifier")
        return identifier(table, self._class("scala.Option").apply(database), self._none)

    # -- plans and classes -----------------------------------------------------------------

    def event_time_column(self, jdf: Any) -> str | None:
        """The column that `withWatermark` named, as it is called now."""
        output = jdf.queryExecution().analyzed().output()
        for i in range(output.size()):
            attribute = output.apply(i)
            if attribute.metadata().contains("spark.watermarkDelayMs"):
                return str(attribute.name())
        return None

    def _class(self, name: str) -> Any:
        return java_class(self._jvm, name)

    def _object(self, name: str) -> Any:
        return scala_object(self._jvm, name)

    def _default(self, owner: Any, method: str, position: int) -> list[Any]:
        """What a Scala method takes for a parameter that is left out; nothing, where it has none
        there, as in some versions.
        """
        try:
            return [getattr(owner, f"{method}$default${position}")()]
        except Py4JError:
            return []

    def _field(self, owner: str, name: str) -> Any:
        """A private field of a class, to be read and written."""
        field = self._jvm.java.lang.Class.forName(owner).getDeclaredField(name)
        field.setAccessible(True)
        return field

    def _is(self, thing: Any, name: str) -> bool:
        return bool(self._class("java.lang.Class").forName(name).isInstance(thing))

    def _new(self, cls: Any) -> Any:
        no_types = self._gateway.new_array(self._class("java.lang.Class"), 0)
        no_values = self._gateway.new_array(self._class("java.lang.Object"), 0)
        return cls.getDeclaredConstructor(no_types).newInstance(no_values)

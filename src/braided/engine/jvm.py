"""Spark's own classes that PySpark does not show, reached through py4j in one place."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["Jvm"]

_STREAMING = "org.apache.spark.sql.execution.streaming"


class Jvm:
    """A session's JVM. Everything that depends on Spark's internals is a method here."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        assert context._jvm is not None and context._gateway is not None
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self.session: Any = spark._jsparkSession
        self._python: Any = self._jvm.org.apache.spark.api.python.PythonUtils
        self._none = self._object("scala.None")
        self._writer = self._object("org.apache.spark.sql.execution.datasources.FileFormatWriter")
        self._nothing = getattr(self._writer, "write$default$12")()
        self._output_spec = self._class(
            "org.apache.spark.sql.execution.datasources.FileFormatWriter$OutputSpec"
        )
        self._protocol = self._class(f"{_STREAMING}.ManifestFileCommitProtocol")
        self._log = self._class(f"{_STREAMING}.sinks.FileStreamSinkLog")
        self._status = self._class(f"{_STREAMING}.sinks.SinkFileStatus")

    def file_format(self, name: str) -> Any:
        """Spark's FileFormat of that name, or None when the name is no file format."""
        sources = self._jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            found = self._new(sources.lookupDataSource(name, self.session.sessionState().conf()))
        except PySparkException:  # there is nothing of that name
            return None
        if hasattr(found, "fallbackFileFormat"):
            return self._new(found.fallbackFileFormat())
        kind = self._jvm.java.lang.Class.forName(
            "org.apache.spark.sql.execution.datasources.FileFormat"
        )
        return found if kind.isInstance(found) else None

    def write_files(
        self,
        jdf: Any,
        file_format: Any,
        path: str,
        staging: str,
        job: str,
        partition_by: list[str],
        options: dict[str, str],
    ) -> None:
        """Runs a DataFrame into files below `path` and lists them in a sink log at `staging`.

        The files have unique names and the log is not the one that readers of `path` look at.
        """
        execution = jdf.queryExecution()
        output = execution.analyzed().output()
        columns = [output.apply(i) for i in range(output.size())] if partition_by else []
        chosen = [next(c for c in columns if c.name() == name) for name in partition_by]
        committer = self._protocol(job, path)
        committer.setupManifestOptions(self._log(1, self.session, staging, self._none), 0)
        self._writer.write(
            self.session,
            execution.executedPlan(),
            file_format,
            committer,
            self._output_spec(path, self._python.toScalaMap({}), output),
            self.session.sessionState().newHadoopConfWithOptions(self._python.toScalaMap(options)),
            self._python.toSeq(chosen),
            self._none,
            self._python.toSeq([]),
            self._python.toScalaMap(options),
            0,
            self._nothing,
        )

    def sink_log(self, path: str) -> Any:
        return self._log(1, self.session, path, self._none)

    def add_to_sink_log(self, log: Any, batch: int, statuses: list[dict[str, Any]]) -> bool:
        """Makes files visible as batch `batch` of a file sink; False if the batch is there."""
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
        schema = self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema_json)
        types = self._object("org.apache.spark.sql.catalyst.types.DataTypeUtils")
        plan = self._class(f"{sources}.MemoryPlan")(sink, types.toAttributes(schema))
        datasets = self._object("org.apache.spark.sql.classic.Dataset")
        return sink, datasets.ofRows(self.session, plan)

    def event_time_column(self, jdf: Any) -> str | None:
        """The column that `withWatermark` named, as it is called now."""
        output = jdf.queryExecution().analyzed().output()
        for i in range(output.size()):
            attribute = output.apply(i)
            if attribute.metadata().contains("spark.watermarkDelayMs"):
                return str(attribute.name())
        return None

    def _class(self, name: str) -> Any:
        found = self._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def _object(self, name: str) -> Any:
        """A Scala object."""
        return self._jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    def _new(self, cls: Any) -> Any:
        no_types = self._gateway.new_array(self._jvm.java.lang.Class, 0)
        no_values = self._gateway.new_array(self._jvm.java.lang.Object, 0)
        return cls.getDeclaredConstructor(no_types).newInstance(no_values)

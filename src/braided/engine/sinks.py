"""Where output goes: prepared before the manifest, visible after it.

    prepare   runs the plan, leaves the output where no reader sees it, says what to publish
    publish   makes visible what the manifest names; may be called again for the same batch

A file sink's files are written where they will stay, under unique names, and become visible
through `_spark_metadata`, as with Spark's own. For other sinks the output waits as Parquet in the
checkpoint, so that a redelivered batch hands over identical rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braided import failpoints
from braided.engine.jvm import Jvm
from braided.errors import CheckpointMismatchError
from braided.state.files import Files

__all__ = ["ConsoleSink", "FileSink", "ForeachBatchSink", "MemorySink", "NoopSink", "Sink"]


class Sink(Protocol):
    def open(self, spark: SparkSession, files: Files, newest: int) -> None:
        """Called once before the first batch; `newest` has a manifest, -1 when no batch has."""

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        """Runs the plan; what it returns is kept in the manifest."""

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        """Makes the entries visible as the output of `batch`."""

    def discard(self, entries: tuple[str, ...]) -> None:
        """Nobody will publish these again."""


class NoopSink:
    """Runs the plan and drops the rows."""

    def open(self, spark: SparkSession, files: Files, newest: int) -> None:
        pass

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        df.write.format("noop").mode("overwrite").save()
        return ()

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        pass

    def discard(self, entries: tuple[str, ...]) -> None:
        pass


class _FilesOut:
    """Runs a plan into files and takes down their names."""

    def __init__(self, spark: SparkSession, files: Files, format: str) -> None:
        self.jvm = Jvm(spark)
        self.files = files
        self._format = self.jvm.file_format(format)

    def write(
        self,
        df: DataFrame,
        path: str,
        attempt: str,
        partition_by: list[str],
        options: dict[str, str],
    ) -> tuple[str, ...]:
        staging = f"out/{attempt}.list"
        self.jvm.write_files(
            df._jdf,
            self._format,
            path,
            f"{self.files.root}/{staging}",
            attempt,
            partition_by,
            options,
        )
        # Called 0, or 0.compact; Hadoop may put a checksum in a hidden file beside it.
        listing = next(name for name in self.files.list(staging) if "/." not in name)
        lines = self.files.read(listing).to_pybytes().decode().splitlines()
        assert self.files.local is not None
        shutil.rmtree(self.files.local / staging)
        entries = tuple(lines[1:])  # the first is the log's version
        _sync({Path(unquote(urlsplit(json.loads(entry)["path"]).path)) for entry in entries})
        return entries


def _sync(paths: set[Path]) -> None:
    """Makes files durable before a manifest names them: Spark's writers leave that to chance."""
    for path in paths | {path.parent for path in paths}:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FileSink:
    """Parquet, ORC, JSON, CSV, text and other file formats, exactly once."""

    def __init__(
        self, format: str, path: str, partition_by: list[str], options: dict[str, str]
    ) -> None:
        self._format = format
        self.path = path
        self._partition_by = partition_by
        self._options = options

    def open(self, spark: SparkSession, files: Files, newest: int) -> None:
        self._out = _FilesOut(spark, files, self._format)
        self._log = self._out.jvm.sink_log(f"{self.path}/_spark_metadata")
        latest = self._out.jvm.latest_in_sink_log(self._log)
        written = -1 if latest is None else latest
        if written not in (newest, newest - 1):
            raise CheckpointMismatchError(
                f"the log of the output path {self.path} (_spark_metadata) ends with batch "
                f"{written} and the checkpoint with batch {newest}: they are not of one query. "
                "Batches would be taken for written already, or be missing. Use the checkpoint "
                "that goes with the path, or another path and a new checkpoint"
            )

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        return self._out.write(df, self.path, attempt, self._partition_by, self._options)

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        failpoints.reach("publishing")
        jvm, statuses = self._out.jvm, [json.loads(entry) for entry in entries]
        if jvm.add_to_sink_log(self._log, batch, statuses):
            return
        if not {status["path"] for status in statuses} <= jvm.paths_in_sink_log(self._log, batch):
            raise CheckpointMismatchError(
                f"another query has written batch {batch} of the output path {self.path}: "
                "its files are in _spark_metadata, not the ones of this query"
            )

    def discard(self, entries: tuple[str, ...]) -> None:
        pass  # what was written is the output itself


class _Staged:
    """A sink that takes a batch as a DataFrame, after the manifest."""

    def open(self, spark: SparkSession, files: Files, newest: int) -> None:
        self._out = _FilesOut(spark, files, "parquet")

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        path = f"out/{attempt}"
        statuses = self._out.write(df, f"{self._out.files.root}/{path}", attempt, [], {})
        names = [Path(json.loads(status)["path"]).name for status in statuses]
        # What a later start needs to read the output of a batch it did not run.
        return (df.schema.json(), *[f"{path}/{name}" for name in names])

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        schema = StructType.fromJson(json.loads(entries[0]))
        paths = [f"{self._out.files.root}/{name}" for name in sorted(entries[1:])]
        if paths:
            rows = spark.read.schema(schema).parquet(*paths)
        else:
            rows = spark.createDataFrame([], schema)
        failpoints.reach("publishing")
        self.hand_over(spark, batch, rows)

    def discard(self, entries: tuple[str, ...]) -> None:
        directory = self._out.files.local
        assert directory is not None
        for parent in {(directory / name).parent for name in entries[1:]}:
            shutil.rmtree(parent, ignore_errors=True)

    def hand_over(self, spark: SparkSession, batch: int, rows: DataFrame) -> None:
        raise NotImplementedError


class ForeachBatchSink(_Staged):
    """The user's own function, at least once, with identical rows for the same batch id."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def hand_over(self, spark: SparkSession, batch: int, rows: DataFrame) -> None:
        self._function(rows, batch)


class ConsoleSink(_Staged):
    """Prints each batch, as Spark's console sink does."""

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def hand_over(self, spark: SparkSession, batch: int, rows: DataFrame) -> None:
        line = "-" * 43
        print(f"{line}\nBatch: {batch}\n{line}", flush=True)
        rows.show(self._rows, self._truncate)


class MemorySink(_Staged):
    """A table in the driver's memory, named as the query."""

    def __init__(
        self, spark: SparkSession, view: str, schema: StructType, replaced: bool = False
    ) -> None:
        self._view = view
        self._replaced = replaced
        """Whether each batch is all there is, as in complete mode."""
        self._sink, self._table = Jvm(spark).memory_sink(schema.json())

    def show(self) -> None:
        """Puts the table under its name; done late, as a query that can't start must not."""
        self._table.createOrReplaceTempView(self._view)

    def hand_over(self, spark: SparkSession, batch: int, rows: DataFrame) -> None:
        self._sink.write(batch, self._replaced, rows._jdf.collect())

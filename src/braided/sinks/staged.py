"""Sinks that are handed a batch as a DataFrame, after the manifest.

The rows wait as Parquet in the checkpoint until Spark has recorded the batch. A batch that is
redelivered after a crash is read from the same files: at least once, with identical rows. Whoever
takes them by batch id makes it exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from braided import failpoints
from braided.sinks.base import SinkSetting
from braided.sinks.files import FilesOut
from braided.sinks.paths import one_spelling
from braided.spark.jvm import Jvm
from braided.store.durable.store import Store

__all__ = [
    "ConsoleSink",
    "ForeachBatchSink",
    "ForeachSink",
    "FormatSink",
    "MemorySink",
    "Staged",
    "delete_staged",
    "staged_rows",
]

_NO_SPLIT = str(1 << 60)
_TARGETS = ("topic", "dbtable", "table")
"""Options, one of which says where in a system the rows go. Addresses of systems are not among
them: they have passwords in them, and change when a system moves.
"""


class Staged:
    """What all of them share."""

    kind: str
    earlier_name: str | None = None
    keeps = False
    newest_only = False
    owned_path = None

    @property
    def target(self) -> str | None:
        return None

    def open(self, setting: SinkSetting) -> None:
        self._out = FilesOut(setting.spark, setting.files, "parquet")

    def started(self) -> None:
        """There is nothing to do for most of them."""

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        path = f"out/{attempt}"
        statuses = self._out.write(df, self._out.files.path(path), attempt, [], {})
        names = [Path(json.loads(status)["path"]).name for status in statuses]
        # What a later start needs to read the output of a batch it did not run.
        return (df.schema.json(), *[f"{path}/{name}" for name in names])

    @property
    def rows_prepared(self) -> int | None:
        return self._out.rows

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        rows = staged_rows(self.session(spark), self._out.files, entries)
        failpoints.reach("publishing")
        self.hand_over(batch, rows)

    def discard(self, entries: tuple[str, ...]) -> None:
        delete_staged(self._out.files, entries)

    def session(self, spark: SparkSession) -> SparkSession:
        """The session to read the rows in."""
        return spark

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        raise NotImplementedError


def staged_rows(spark: SparkSession, files: Store, entries: tuple[str, ...]) -> DataFrame:
    """The rows that were prepared for a batch."""
    schema = StructType.fromJson(json.loads(entries[0]))
    paths = [files.path(name) for name in sorted(entries[1:])]
    if paths:
        return spark.read.schema(schema).parquet(*paths)
    return spark.createDataFrame([], schema)


def delete_staged(files: Store, entries: tuple[str, ...]) -> None:
    """Deletes them."""
    for directory in {name.rpartition("/")[0] for name in entries[1:]}:
        files.delete_directory(directory)


class ForeachBatchSink(Staged):
    """The user's own function, at least once, with identical rows for the same batch id."""

    kind = "foreachBatch"
    earlier_name = "ForeachBatchSink"

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        self._function(rows, batch)


class ForeachSink(Staged):
    """The user's own function or object for each row, run by tasks.

    A partition is a file that a task has written, whatever the session's settings and the
    machine's cores are, so that (partition, epoch) names the same rows whenever they come again.
    """

    kind = "foreach"
    earlier_name = "ForeachSink"

    def __init__(self, function: Callable[[int, Iterable[Row]], Iterable[Any]]) -> None:
        self._function = function
        self._session: SparkSession | None = None

    def session(self, spark: SparkSession) -> SparkSession:
        if self._session is None:
            self._session = Jvm(spark).clone()
            self._session.conf.set("spark.sql.files.maxPartitionBytes", _NO_SPLIT)
            self._session.conf.set("spark.sql.files.openCostInBytes", _NO_SPLIT)
        return self._session

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        rows.rdd.mapPartitionsWithIndex(self._function).count()


class ConsoleSink(Staged):
    """Prints each batch, as Spark's console sink does."""

    kind = "console"
    earlier_name = "ConsoleSink"

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        line = "-" * 43
        print(f"{line}\nBatch: {batch}\n{line}", flush=True)
        rows.show(self._rows, self._truncate)


class MemorySink(Staged):
    """A table in the driver's memory, named as the query."""

    kind = "memory"
    earlier_name = "MemorySink"

    def __init__(
        self, spark: SparkSession, view: str, schema: StructType, replaced: bool = False
    ) -> None:
        self._view = view
        self._replaced = replaced
        """Whether each batch is all there is, as in complete mode."""
        self._sink, self._table = Jvm(spark).memory_sink(schema.json())

    @property
    def target(self) -> str:
        return self._view

    def started(self) -> None:
        """Puts the table under its name."""
        self._table.createOrReplaceTempView(self._view)

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        self._sink.write(batch, self._replaced, rows._jdf.collect())


class FormatSink(Staged):
    """Whatever `df.write.format(...)` can append to: JDBC, Kafka, a data source in Python."""

    keeps = True
    earlier_name: str | None = "FormatSink"

    def __init__(self, format: str, partition_by: list[str], options: dict[str, str]) -> None:
        self.kind = format.lower()
        self._format = format
        self._partition_by = partition_by
        self._options = options

    @property
    def target(self) -> str | None:
        options = {name.lower(): value for name, value in self._options.items()}
        if "path" in options:
            return one_spelling(options["path"])
        return next((options[name] for name in _TARGETS if name in options), None)

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        writer = rows.write.format(self._format).mode("append")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.options(**self._options, **self.batch_options(batch)).save()

    def batch_options(self, batch: int) -> dict[str, str]:
        """Options that only this batch has."""
        return {}

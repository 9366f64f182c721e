"""Delta tables, exactly once: through the table's log, or through Delta Lake's own data source.

A batch's files are written below the table before the manifest, where the log does not name them,
and named after it, with the sink and the batch (`delta_log.py`). Where the session has Delta Lake's
data source, that writes the rows, and skips a batch that it has by the same two.

Both are one kind of sink to a checkpoint. A batch that was prepared by one way and is published by
the other is published all the same.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DataType, StructType, TimestampType

from braided import failpoints
from braided.errors import DefinitionError, OutputSchemaError, PublishError, UnsupportedError
from braided.sinks.base import SinkSetting
from braided.sinks.delta_lake import DeltaLakeTable
from braided.sinks.delta_log import AddedFile, DeltaLog
from braided.sinks.parquet_facts import FileFacts, read_facts
from braided.sinks.paths import one_spelling
from braided.sinks.staged import FormatSink, delete_staged, staged_rows
from braided.sinks.table_files import TableFilesSink, Unfit
from braided.sinks.table_log import FileEntry
from braided.spark.store_settings import client_settings, session_store
from braided.store.durable.location import Location
from braided.store.durable.store import Store

__all__ = ["DeltaLogSink", "DeltaSink"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_BAD_LETTERS = set(" ,;{}()\n\t=")
"""What names of columns must not have, as Delta says."""

_MARK = "deltaLog"
"""In the first entry of what is prepared for the log; what is staged begins with a schema."""


def is_for_log(entries: Sequence[str]) -> bool:
    """Whether a batch's files lie in the table, and not in the checkpoint."""
    return _MARK in json.loads(entries[0])


class DeltaLogSink(TableFilesSink):
    """A Delta table at a location, written without a class of Delta's in the JVM."""

    kind = "delta"
    mark = _MARK
    earlier_name = "DeltaSink"

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        schema: StructType,
        partition_by: list[str],
        keys: list[str],
        options: dict[str, str],
    ) -> None:
        self.location = Location.of(path)
        self.target = one_spelling(path)
        self._store = session_store(spark, self.location)
        log = DeltaLog(self.location, client_settings(spark, self.location))
        super().__init__(log, schema, partition_by, keys, options)

    def _refused(self) -> str | None:
        for name in self._schema.names:
            if _BAD_LETTERS & set(name):
                return f"column {name!r} has a letter in its name that Delta does not take"
        return super()._refused()

    def _refused_to_make(self) -> str | None:
        inside = self._store.directories("")
        names = [n for n in inside if n[0] not in "._" and not n.startswith("braided-")]
        if names or any("/" not in n and n[0] not in "._" for n in self._store.list("")):
            return "there are files, and they are no Delta table; write to a path of its own"
        return None

    def _asks_too_much(self, asked: str) -> str:
        return (
            f"it asks of its writers what only Delta Lake's own data source does ({asked}); "
            "start Spark with the package io.delta:delta-spark that is made for its version"
        )

    def _bad_partition(self, schema: StructType, columns: Sequence[str]) -> str | None:
        for name in columns:
            if isinstance(schema[name].dataType, BinaryType):
                return f"column {name!r} is binary: its partitions can't be named"
        return super()._bad_partition(schema, columns)

    def _root_and_store(self, spark: SparkSession) -> tuple[Location, Store]:
        return self.location, self._store

    def open(self, setting: SinkSetting) -> None:
        super().open(setting)
        self._staged_in = setting.files

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        if is_for_log(entries):
            super().publish(spark, batch, entries)
            return
        # Staged for Delta Lake's own data source.
        failpoints.reach("publishing")
        written = self._log.batch_of(self._application)
        if written is not None and written >= batch:
            return
        rows = staged_rows(spark, self._staged_in, entries)
        try:
            entries = self._written(rows, f"{batch}-{uuid.uuid4().hex[:12]}")
        except Unfit as problem:
            raise self._log.unpublished(batch, str(problem)) from None
        if self._add(batch, entries):
            self._delete_others(batch, entries)

    def discard(self, entries: tuple[str, ...]) -> None:
        if not is_for_log(entries):
            delete_staged(self._staged_in, entries)
            return
        header = json.loads(entries[0])
        if "keys" in header:  # the merge has written the rows to files of its own
            self._delete(header["attempt"])

    def _laid_out(self, rows: DataFrame) -> tuple[DataFrame, list[str]]:
        return (rows, []) if self._keys else super()._laid_out(rows)

    def _described(
        self, path: str, status: dict[str, Any], facts: FileFacts, directories: Sequence[str]
    ) -> FileEntry:
        stats = json.dumps(facts.stats())
        modified = int(status["modificationTime"])
        partition = _partition(path, directories, self._log.schema)
        return AddedFile(path, int(status["size"]), modified, partition, stats)._asdict()

    def _has_nulls(self, column: str, file: FileEntry, facts: FileFacts) -> bool:
        if column in file["partition"]:
            return file["partition"][column] is None
        return super()._has_nulls(column, file, facts)


def _partition(path: str, columns: Sequence[str], schema: StructType) -> dict[str, str | None]:
    """The values that a file's directories are named after, as the log has them."""
    if not columns:
        return {}
    values = {}
    for name in Path(path).parts[-1 - len(columns) : -1]:
        column, _, value = name.partition("=")
        kind = schema[unquote(column)].dataType
        values[unquote(column)] = None if value == _NULL else _logged(unquote(value), kind)
    return values


def _logged(value: str, kind: DataType) -> str:
    """A value in the words of Delta's log. A timestamp says that it is in UTC: Delta Lake takes one
    that does not for local time, of whoever reads the table.
    """
    if not isinstance(kind, TimestampType):
        return value
    moment, _, fraction = value.partition(".")
    return f"{moment.replace(' ', 'T')}.{fraction:0<6}Z"


class DeltaSink(FormatSink):
    """Through Delta Lake's own data source: the transaction's application and version make a batch
    that was written already one that is skipped.
    """

    earlier_name = "DeltaSink"

    def __init__(
        self,
        schema: StructType,
        partition_by: list[str],
        options: dict[str, str],
        table: DeltaLakeTable | None = None,
    ) -> None:
        """`table` is looked at before a batch is committed; where nobody can, Delta Lake alone says
        what it thinks of a batch.
        """
        super().__init__("delta", partition_by, options)
        self._table = table
        problem = None if table is None else table.problem(schema)
        if table is not None and problem:
            raise DefinitionError(f"format('delta'), {table.title}: {problem}")

    def open(self, setting: SinkSetting) -> None:
        super().open(setting)
        self._setting = setting
        if self._table is not None:
            self._table.check_age(setting.identity, setting.newest)

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        if self._table is None:
            return super().prepare(df, attempt)
        problem = self._table.problem(df.schema)
        if problem:
            raise OutputSchemaError(
                f"the {self._table.title} was changed while the query ran: {problem}. "
                "Nothing of the batch is committed"
            )
        entries = super().prepare(df, attempt)
        bare = {name.lower() for name in self._table.without_nulls}
        facts_of = read_facts(self._out.files, entries[1:]) if bare else []
        for column, nulls in ((c, n) for facts in facts_of for c, n in facts.nulls.items()):
            if nulls and column.lower() in bare:
                delete_staged(self._out.files, entries)
                raise OutputSchemaError(
                    f"column {column!r} of the {self._table.title} must not be null, and the "
                    "output has nulls in it. Nothing of the batch is committed"
                )
        return entries

    def batch_options(self, batch: int) -> dict[str, str]:
        return {"txnAppId": self._setting.identity, "txnVersion": str(batch)}

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        if not is_for_log(entries):
            super().publish(spark, batch, entries)
            return
        # Prepared when the session had no Delta Lake: the same log, by the same names.
        try:
            schema = StructType.fromJson(json.loads(entries[0])["schema"])
            other = DeltaLogSink(self._setting.spark, str(self.target), schema, [], [], {})
        except (UnsupportedError, DefinitionError) as error:
            raise PublishError(
                f"batch {batch} is committed and was prepared for the log of the Delta table "
                f"{self.target}: {error}"
            ) from None
        other.open(self._setting)
        other.publish(spark, batch, entries)

    def discard(self, entries: tuple[str, ...]) -> None:
        if not is_for_log(entries):
            super().discard(entries)

"""Tables to write to: found in the catalog, made if they are missing, and their sinks.

A table of files gets what Spark's own `toTable` gives it: files become visible, exactly once,
through `_spark_metadata` in the table's directory. Into any other table rows are inserted, at
least once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from braided.errors import DefinitionError, UnsupportedError
from braided.sinks.base import SinkSetting
from braided.sinks.files import FileSink
from braided.sinks.staged import Staged
from braided.spark.jvm import Jvm
from braided.store.durable.location import Location

__all__ = ["InsertSink", "Table", "TableSink", "check_fit", "find_table"]

_SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True)
class Table:
    """A table as a stream sees it."""

    name: str
    """Quoted, with catalog and database; in small letters where Spark takes no notice of case."""
    provider: str | None
    """None for a table of another catalog, which knows best."""
    location: str | None
    """Where its files are; None when Spark does not say."""
    schema: StructType
    partition_by: list[str]
    options: dict[str, str]
    missing: bool = False
    """Whether it is still to be made."""
    external: bool = False
    """Whether it is to be made at a place of its own."""


def find_table(
    spark: SparkSession,
    name: str,
    provider: str,
    schema: StructType,
    partition_by: list[str],
    options: dict[str, str],
    path: str | None,
) -> Table:
    """The table of that name, or the one that would be made for it."""
    jvm = Jvm(spark)
    try:
        parts = jvm.name_parts(name)
    except PySparkException:
        raise DefinitionError(f"toTable: {name!r} is not the name of a table") from None
    if jvm.is_temp_view(parts):
        raise DefinitionError(f"toTable: {name} is a temporary view; streams write to tables")
    quoted = ".".join(map(_quoted, parts))
    if len(parts) == 1:
        parts = [str(spark.catalog.currentDatabase()), *parts]
    if len(parts) == 2 and spark.catalog.currentCatalog() == _SESSION_CATALOG:
        parts = [_SESSION_CATALOG, *parts]
    if len(parts) != 3 or parts[0] != _SESSION_CATALOG:
        if not _exists(spark, quoted):
            raise UnsupportedError(
                f"toTable: there is no table {name} in its catalog; create it before the query "
                "starts. Tables are made only in Spark's own catalog"
            )
        return Table(quoted, None, None, spark.table(quoted).schema, [], {})
    if str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
        parts = [part.lower() for part in parts]  # as Spark's catalog has them
    quoted = ".".join(map(_quoted, parts))
    entry = jvm.session_table(*parts[1:])
    if entry is None:
        location = path or _path(jvm.default_table_location(*parts[1:]))
        external = path is not None
        return Table(quoted, provider, location, schema, partition_by, options, True, external)
    return _existing(name, quoted, entry)


def _exists(spark: SparkSession, quoted: str) -> bool:
    try:
        return spark.catalog.tableExists(quoted)
    except PySparkException:  # a catalog that has no such names
        return False


def _existing(name: str, quoted: str, entry: Any) -> Table:
    """A table as its entry in Spark's catalog describes it."""
    if entry.tableType().name() == "VIEW":
        raise DefinitionError(f"toTable: {name} is a view; streams write to tables")
    if entry.bucketSpec().isDefined():
        raise UnsupportedError(f"toTable: {name} has buckets, which files of a stream do not keep")
    columns, storage = entry.partitionColumnNames(), entry.storage()
    keys = storage.properties().keys().toSeq()
    options = {str(keys.apply(i)): "" for i in range(keys.size())}
    return Table(
        name=quoted,
        provider=str(entry.provider().get()) if entry.provider().isDefined() else None,
        location=_path(entry.location()) if storage.locationUri().isDefined() else None,
        schema=StructType.fromJson(json.loads(entry.schema().json())),
        partition_by=[str(columns.apply(i)) for i in range(columns.size())],
        options={key: str(storage.properties().apply(key)) for key in options if key != "path"},
    )


def fitted(table: Table, df: DataFrame) -> DataFrame:
    """The rows with the table's columns, by name, in its order and spelling."""
    columns = {name.lower(): name for name in df.columns}
    return df.select(
        *[F.col(_quoted(columns[name.lower()])).alias(name) for name in table.schema.names]
    )


def check_fit(table: Table, schema: StructType) -> None:
    """Refuses output that does not fit the table, before anything is started."""
    for field in schema.fields:
        if [name.lower() for name in schema.names].count(field.name.lower()) > 1:
            raise DefinitionError(f"toTable: the output has two columns called {field.name!r}")
    ours = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    theirs = {field.name.lower(): field.dataType.simpleString() for field in table.schema.fields}
    if ours != theirs:
        raise DefinitionError(
            f"toTable: the output does not fit the table {table.name}, by names and types: the "
            f"table has {table.schema.simpleString()}, the output is {schema.simpleString()}. "
            "Bring it into that form with select(...), or write to another table"
        )


class TableSink(FileSink):
    """A table of files, exactly once."""

    kind = "table"
    earlier_name = "TableSink"

    def __init__(self, table: Table, options: dict[str, str]) -> None:
        assert table.provider is not None and table.location is not None
        super().__init__(
            table.provider, table.location, table.partition_by, {**table.options, **options}
        )
        self._table = table

    @property
    def target(self) -> str:
        return self._table.name

    def open(self, setting: SinkSetting) -> None:
        self._spark = setting.spark
        self._refuse_rows_of_others()
        super().open(setting)

    def create_target(self) -> None:
        # Not before: a query that can't start leaves no table behind.
        if self._table.missing:
            self._spark.sql(_create(Jvm(self._spark), self._table))

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        return super().prepare(fitted(self._table, df), attempt)

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        super().publish(spark, batch, entries)
        # A session remembers which files a table had when it was read.
        for session in (spark, self._spark):
            session.catalog.refreshTable(self._table.name)

    def _refuse_rows_of_others(self) -> None:
        if self.strangers(self._spark):
            raise DefinitionError(
                f"toTable: {self._table.name} holds rows that were not written by a stream "
                f"(in {self.path}). Readers follow the log of the stream and would not see them "
                "any more. Write to a table of its own, or with foreachBatch and insertInto"
            )


class InsertSink(Staged):
    """A table that is not one of files, at least once."""

    kind = "insert"
    earlier_name = "InsertSink"
    keeps = True

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def target(self) -> str:
        return self._table.name

    def hand_over(self, batch: int, rows: DataFrame) -> None:
        fitted(self._table, rows).write.insertInto(self._table.name)


def _create(jvm: Jvm, table: Table) -> str:
    words = [f"CREATE TABLE {table.name} ({jvm.ddl(table.schema.json())}) USING {table.provider}"]
    if table.options:
        pairs = [f"{_text(key)} = {_text(value)}" for key, value in table.options.items()]
        words.append(f"OPTIONS ({', '.join(pairs)})")
    if table.partition_by:
        words.append(f"PARTITIONED BY ({', '.join(map(_quoted, table.partition_by))})")
    if table.external:
        assert table.location is not None
        words.append(f"LOCATION {_text(table.location)}")
    return " ".join(words)


def _path(location: Any) -> str:
    """Where a table is, as it is told to Spark: of a local one the path alone."""
    if (location.getScheme() or "file") == "file":
        return str(location.getPath()).rstrip("/")
    return Location.of(location.toString()).text


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Iceberg tables, exactly once: files are written before the manifest, the snapshot after it.

The files have the names of columns and no numbers, which the table's name mapping gives them, as
for all files that are added to an Iceberg table. Rows of different partitions are in different
files; a file has all columns, those of partitions as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    StringType,
    StructType,
    TimestampType,
)

from braided.sinks.iceberg_log import IcebergLog
from braided.sinks.iceberg_types import widened
from braided.sinks.parquet_facts import FileFacts
from braided.sinks.table_files import TableFilesSink
from braided.sinks.table_log import FileEntry
from braided.spark.sql_text import quoted
from braided.spark.store_settings import client_settings, session_store
from braided.store.durable.location import Location
from braided.store.durable.store import Store

__all__ = ["IcebergSink"]

_PREFIX = "catalog."
"""Before options that are properties of the catalog."""

_S3 = {
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_endpoint": "s3.endpoint",
    "aws_region": "s3.region",
}
_DAY_US = 86_400_000_000
_STEPS_US = {"hour": _DAY_US // 24, "day": _DAY_US, "month": _DAY_US, "year": _DAY_US}
_DIRECTORY = "_braided_partition_"


class IcebergSink(TableFilesSink):
    """A table of a catalog, written without a class of Iceberg's in the JVM."""

    kind = "iceberg"
    mark = "icebergSnapshot"

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        schema: StructType,
        partition_by: list[str],
        keys: list[str],
        options: dict[str, str],
    ) -> None:
        """`table` has the name of its catalog in front, if no option has it and it is of more than
        two parts.
        """
        named = {name.lower(): value for name, value in options.items()}
        catalog = named.get("catalog")
        if catalog is None and table.count(".") > 1:
            catalog, _, table = table.partition(".")
        given = {n[len(_PREFIX) :]: v for n, v in options.items() if n.lower().startswith(_PREFIX)}
        own = {n: v for n, v in options.items() if not n.lower().startswith("catalog")}
        where = Location.of(given.get("warehouse", "s3a://of-any-name"))
        # Where the session knows how to reach a store, the table's metadata is there as well.
        store = {_S3[n]: v for n, v in client_settings(spark, where).items() if n in _S3}
        self._table = IcebergLog(catalog, table, {**store, **given})
        self.target = self._table.name
        super().__init__(self._table, widened(schema), partition_by, keys, own)

    def _refused_to_make(self) -> str | None:
        if not self._table.has_namespace():
            return "there is no such namespace in the catalog; make it before the query starts"
        return None

    def _asks_too_much(self, asked: str) -> str:
        return (
            f"it asks of its writers what only an engine of Iceberg's does ({asked}); write to it "
            "in foreachBatch with such an engine, or to another table"
        )

    def _root_and_store(self, spark: SparkSession) -> tuple[Location, Store]:
        path = self._table.data_path
        # Hadoop reaches by s3a what others call s3.
        location = Location.of(f"s3a{path[2:]}" if path.startswith("s3:") else path)
        return location, session_store(spark, location)

    def _fitted(self, rows: DataFrame) -> DataFrame:
        wide = widened(rows.schema)
        return rows.select(
            *[F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in wide.fields]
        )

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        if df.schema != widened(df.schema):
            df = self._fitted(df)
        return super().prepare(df, attempt)

    def _laid_out(self, rows: DataFrame) -> tuple[DataFrame, list[str]]:
        apart = {}
        for number, field in enumerate(self._table.partition_fields):
            name = self._table.partition_by[number]
            value = _partition_directory(
                F.col(quoted(name)), rows.schema[name].dataType, str(field.transform)
            )
            apart[f"{_DIRECTORY}{number}"] = value
        return (rows.withColumns(apart), list(apart)) if apart else (rows, [])

    def _described(
        self, path: str, status: dict[str, Any], facts: FileFacts, directories: Sequence[str]
    ) -> FileEntry:
        return {"root": self._table.data_path, "path": path}

    def _misplaced(self, files: Sequence[FileEntry]) -> str | None:
        return self._table.misplaced(files)


def _partition_directory(column: Column, kind: DataType, transform: str) -> Column:
    """A value for the name of a directory that differs wherever partitions do."""
    if transform in _STEPS_US:
        return _period(column, kind, transform)
    if transform.startswith("truncate"):
        width = int(transform.partition("[")[2].rstrip("]"))
        if isinstance(kind, StringType | BinaryType):
            column = F.substring(column, 1, width)
        else:
            scale = kind.scale if isinstance(kind, DecimalType) else 0
            column = column - F.pmod(column, F.lit(Decimal(width).scaleb(-scale)))
    if isinstance(kind, StringType | BinaryType):
        # Of any length and with any letters; and an empty text is not null.
        return F.coalesce(F.md5(column), F.lit("null"))
    return F.unix_micros(column) if isinstance(kind, TimestampType) else column


def _period(column: Column, kind: DataType, unit: str) -> Column:
    """In UTC, whatever the session's zone is."""
    if isinstance(kind, TimestampType):
        micros = F.unix_micros(column)
        start = micros - F.pmod(micros, F.lit(_STEPS_US[unit]))
        if unit in ("hour", "day"):
            return start
        column = F.date_from_unix_date((start / _DAY_US).cast("int"))
    if unit == "hour":
        return F.concat_ws(" ", column.cast("date").cast("string"), F.hour(column).cast("string"))
    day = column.cast("date")
    return {"day": day, "month": F.trunc(day, "month"), "year": F.year(day)}[unit]

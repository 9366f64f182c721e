"""From what a writer was told to the sink that does it, or to the sentence that says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import AtomicType, StructType, VariantType

from braided.errors import DefinitionError, OptionError, UnsupportedError
from braided.sinks.base import NoopSink, Sink
from braided.sinks.catalog import InsertSink, TableSink, check_fit, find_table
from braided.sinks.delta import DeltaLogSink, DeltaSink
from braided.sinks.delta_lake import DeltaLakeTable
from braided.sinks.files import FileSink
from braided.sinks.iceberg import IcebergSink
from braided.sinks.kafka import EXACTLY_ONCE, KafkaSink
from braided.sinks.staged import (
    ConsoleSink,
    ForeachBatchSink,
    ForeachSink,
    FormatSink,
    MemorySink,
)
from braided.spark.jvm import Jvm
from braided.store.durable.location import Location

__all__ = ["Target", "sink_of"]

_WITHOUT_PARTITIONS = ("memory", "console", "noop", "foreachBatch", "foreach")


@dataclass(frozen=True)
class Target:
    """What the output is and where it is to go."""

    schema: StructType
    format: str | None
    table: str | None
    query_name: str | None
    partition_by: list[str]
    options: dict[str, Any]
    """Those of the sink; the query's own are not among them."""
    function: Callable[..., Any] | None
    mode: str
    """`complete`: each batch is all there is."""
    grouped_by: tuple[str, ...]
    """The columns that the last operator's rows are grouped by, if it is known which one it is."""

    @property
    def complete(self) -> bool:
        return self.mode == "complete"


def sink_of(target: Target, spark: SparkSession) -> Sink:
    """The sink for a target; DefinitionError when there can't be one."""
    kind = target.format or str(spark.conf.get("spark.sql.sources.default"))
    if target.partition_by and kind in _WITHOUT_PARTITIONS:
        raise DefinitionError(f"partitionBy has no meaning for format {kind!r}")
    if target.table is not None and not target.complete and kind.lower() != "iceberg":
        return _table(target, kind, spark)
    options = {name.lower(): value for name, value in target.options.items()}
    match kind:
        case "foreachBatch":
            assert target.function is not None
            return ForeachBatchSink(target.function)
        case "foreach":
            assert target.function is not None
            return ForeachSink(target.function)
        case "noop":
            return NoopSink()
        case "console":
            truncate = str(options.get("truncate", True)).lower() == "true"
            return ConsoleSink(int(options.get("numrows", 20)), truncate)
        case "memory":
            if target.query_name is None:
                raise DefinitionError("format('memory') needs a queryName to name the table")
            return MemorySink(spark, target.query_name, target.schema, target.complete)
    if target.complete:
        raise UnsupportedError(
            f"outputMode('complete') with format({kind!r}): what is written is only ever added to; "
            "write it in foreachBatch, over that of the batch before"
        )
    if Jvm(spark).file_format(kind) is None:
        return _other(target, kind, spark)
    _check_file_format(kind)
    if "path" not in options:
        raise DefinitionError(
            f"format({kind!r}) needs a path: .start(path) or .option('path', ...)"
        )
    columns = _partition_columns(target, spark)
    return FileSink(kind, Location.of(str(options["path"])).text, columns, _texts(target.options))


def _table(target: Target, kind: str, spark: SparkSession) -> Sink:
    if kind in _WITHOUT_PARTITIONS:
        raise DefinitionError(f"toTable writes to a table and format({kind!r}) does not; take one")
    columns, options = _partition_columns(target, spark), _texts(target.options)
    path = {name.lower(): value for name, value in target.options.items()}.get("path")
    table = find_table(
        spark,
        str(target.table),
        kind,
        target.schema,
        columns,
        options,
        None if path is None else Location.of(str(path)).text,
    )
    check_fit(table, target.schema)
    if table.provider is None:  # of another catalog, or Hive's
        return InsertSink(table)
    if (target.format or not table.missing) and table.provider.lower() != kind.lower():
        raise DefinitionError(
            f"toTable: the table {target.table} is of format {table.provider} and the query "
            f"writes {kind}: .format({table.provider!r})"
        )
    if columns and [c.lower() for c in columns] != [c.lower() for c in table.partition_by]:
        raise DefinitionError(
            f"toTable: the table {target.table} is partitioned by "
            f"({', '.join(table.partition_by)}), not by ({', '.join(columns)})"
        )
    if Jvm(spark).file_format(kind) is not None and table.location is not None:
        _check_file_format(kind)
        return TableSink(table, options)
    if table.missing:
        raise UnsupportedError(
            f"toTable: tables of format {kind!r} are not made by a stream; create "
            f"{target.table} before the query starts"
        )
    return InsertSink(table)


def _other(target: Target, kind: str, spark: SparkSession) -> Sink:
    """The sink for a format that is none of files."""
    options = _texts(target.options)
    path = {name.lower(): value for name, value in target.options.items()}.get("path")
    if path is not None:
        options["path"] = str(path)
    named = kind.lower()  # Spark finds these in any case
    if named == "delta":
        return _delta(target, options, spark)
    if named == "iceberg":
        return _iceberg(target, options, spark)
    if named == "kafka" and _is_exact(options):
        if target.partition_by:
            raise DefinitionError("partitionBy has no meaning for format 'kafka'")
        return KafkaSink(target.schema, options)
    try:
        writes = Jvm(spark).writes_batches(kind, target.schema.json(), options)
    except PySparkException as error:
        raise DefinitionError(f"format({kind!r}) can't be written to: {error}") from error
    if writes is None:
        raise UnsupportedError(
            f"format({kind!r}): Spark finds no data source of that name. Add its package "
            "(spark.jars.packages), or write to it in foreachBatch, where the batch id makes "
            "repeated rows recognisable"
        )
    if not writes:
        raise UnsupportedError(
            f"format({kind!r}) can be read but takes no rows in batches; use foreachBatch"
        )
    return FormatSink(kind, target.partition_by, options)


def _delta(target: Target, options: dict[str, str], spark: SparkSession) -> Sink:
    if "path" not in options:
        raise DefinitionError("format('delta') needs a path: .start(path) or .option('path', ...)")
    keys = _merge_keys(target, options)
    if Jvm(spark).has_delta() and not keys:
        table = DeltaLakeTable.of(spark, options["path"], target.partition_by, options)
        return DeltaSink(target.schema, target.partition_by, options, table)
    columns = _partition_columns(target, spark)
    return DeltaLogSink(spark, options.pop("path"), target.schema, columns, keys, options)


def _iceberg(target: Target, options: dict[str, str], spark: SparkSession) -> Sink:
    path = options.pop("path", None)
    table = target.table or path
    if table is None:
        raise DefinitionError(
            "format('iceberg') needs the name of a table: .toTable('namespace.table')"
        )
    keys = _merge_keys(target, options)
    columns = _partition_columns(target, spark)
    return IcebergSink(spark, table, target.schema, columns, keys, options)


def _merge_keys(target: Target, options: dict[str, str]) -> list[str]:
    """The columns by which rows replace those that a table has; none where they are added. Takes
    the option that names them from the others.
    """
    asked = [name for name in options if name.lower() == "mergekeys"]
    told = [key.strip() for name in asked for key in options.pop(name).split(",")]
    if target.mode != "update":
        if told:
            raise DefinitionError("mergeKeys: rows replace others with outputMode('update') only")
        return []
    keys = told or list(target.grouped_by)
    if not keys:
        raise DefinitionError(
            f"outputMode('update') with format({target.format!r}) has rows replace those of the "
            "same key, and there is no one operator whose key that could be: name columns with "
            ".option('mergeKeys', 'a,b'), or use outputMode('append')"
        )
    fields = {field.name.lower(): field for field in target.schema.fields}
    for key in keys:
        field = fields.get(key.lower())
        if field is None:
            raise DefinitionError(
                f"outputMode('update') with format({target.format!r}) has rows replace those of "
                f"the same key ({', '.join(keys)}), and the output has no column {key!r}: give it "
                "out as well, or name other columns with .option('mergeKeys', 'a,b'), or use "
                "outputMode('append')"
            )
        if not isinstance(field.dataType, AtomicType) or isinstance(field.dataType, VariantType):
            raise DefinitionError(
                f"outputMode('update') with format({target.format!r}): column {key!r} is "
                f"{field.dataType.simpleString()}, by which rows can't be found; name plain "
                "columns with .option('mergeKeys', 'a,b')"
            )
    return [fields[key.lower()].name for key in keys]


def _is_exact(options: dict[str, str]) -> bool:
    """Whether Kafka is to be written by transactions."""
    asked = [value for name, value in options.items() if name.lower() == EXACTLY_ONCE]
    if asked and asked[-1].lower() not in ("true", "false"):
        raise OptionError(f"the option exactlyOnce is true or false, not {asked[-1]!r}")
    return bool(asked) and asked[-1].lower() == "true"


def _check_file_format(kind: str) -> None:
    if kind.lower() == "hive":
        raise UnsupportedError("format('hive'): Hive's own files are written through a table only")


def _partition_columns(target: Target, spark: SparkSession) -> list[str]:
    """The columns that partitionBy names, as the output spells them."""
    exact = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    columns: list[str] = []
    for asked in target.partition_by:
        same = [
            field
            for field in target.schema.fields
            if field.name == asked or (not exact and field.name.lower() == asked.lower())
        ]
        if not same:
            raise DefinitionError(f"partitionBy: there is no column {asked!r} in the output")
        if len(same) > 1:
            raise DefinitionError(f"partitionBy: several columns are called {asked!r}")
        kind = same[0].dataType
        if not isinstance(kind, AtomicType) or isinstance(kind, VariantType):
            raise DefinitionError(
                f"partitionBy: column {asked!r} is {kind.simpleString()}, which can't "
                "be the name of a directory"
            )
        if same[0].name in columns:
            raise DefinitionError(f"partitionBy names column {asked!r} twice")
        columns.append(same[0].name)
    if columns and len(columns) == len(target.schema.fields):
        raise DefinitionError("partitionBy names all columns; none is left to write into the files")
    return columns


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if name.lower() != "path"
    }

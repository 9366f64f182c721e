"""`braided plan`: which host each key should be on, by rows of the past.

What is computed is that of `plan_routing.py`; here rows are read, and tables written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braided.cli.report import as_json, as_text
from braided.errors import BraidedError
from braided.plan_routing import plan_parts
from braided.spark.quiet import command_spark
from braided.store.durable.location import Location

__all__ = ["PlanError", "main"]

_FORMATS = (".parquet", ".json", ".csv", ".orc")


class PlanError(BraidedError):
    """A table that can't be planned; says what is wrong with what was asked for."""


def main(arguments: argparse.Namespace) -> int:
    """Plans a table and says what it will bring; the exit status."""
    keys = [tuple(group.split("+")) for group in arguments.keys.split(",")]
    names = arguments.names.split(",") if arguments.names else ["_".join(key) for key in keys]
    if len(keys) < 2:
        raise PlanError("--keys takes the keys of two operators at least, such as location,tag")
    if len(names) != len(keys) or len(set(names)) < len(names):
        raise PlanError(f"{len(keys)} keys need as many names, all different, not {names}")
    if arguments.hosts < 2:
        raise PlanError("with fewer than two hosts everything is on one anyway")
    directory = None if arguments.out is None else _local(arguments.out)
    with command_spark("braided plan") as spark:
        rows = _read(spark, arguments.source)
        missing = {column for key in keys for column in key} - set(rows.columns)
        if missing:
            raise PlanError(
                f"there is no column {', '.join(sorted(missing))}; there are "
                f"{', '.join(rows.columns)}"
            )
        tables, told = plan_parts(
            rows, keys, names, arguments.hosts, arguments.imbalance, arguments.pairs
        )
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            pq.write_table(table, directory / f"{name}.parquet")
        told["out"] = str(directory)
    print(as_json(told) if arguments.json else as_text(told), flush=True)
    return 0


def _local(out: str) -> Path:
    directory = Location.of(out).local
    if directory is None:
        raise PlanError(
            f"--out is {out}; tables are written to a local directory, of which a query is told by "
            "braided.routing"
        )
    return directory


def _read(spark: SparkSession, source: str) -> DataFrame:
    suffix = Path(source.rstrip("/")).suffix.lower()
    try:
        if suffix in _FORMATS:
            reader = spark.read.options(header="true", inferSchema="true")
            return reader.format(suffix[1:]).load(source)
        if "/" in source or Path(source).exists():
            return spark.read.parquet(source)
        return spark.table(source)
    except PySparkException as error:
        raise PlanError(f"{source} can't be read: {str(error).splitlines()[0]}") from None

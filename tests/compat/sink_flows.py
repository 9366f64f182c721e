"""Flows with sinks of every kind, and with a policy that remembers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

import braided
from compat import operators as op
from compat.case import Batches, Expected, Row, all_of, by_batch, files, in_files, in_json
from support.sqlite_source import DeltaRule, Sqlite, rows_in

__all__ = [
    "Remembers",
    "delta",
    "expected_delta",
    "expected_sinks",
    "expected_steered",
    "from_delta",
    "from_sinks",
    "sinks",
    "steered",
]

SINKS = ("first", "second", "batches", "each", "sqlite", "table", "memory")


class EachRow:
    """A foreach sink: a file for each partition of a batch."""

    def __init__(self, home: Path) -> None:
        self._directory = str(home / "each")

    def open(self, partition: int, epoch: int) -> bool:
        os.makedirs(self._directory, exist_ok=True)
        self._path = os.path.join(self._directory, f"{epoch}-{partition}.json")
        self._rows: list[Any] = []
        return True

    def process(self, row: Any) -> None:
        self._rows.append(list(row))

    def close(self, error: Exception | None) -> None:
        Path(self._path).write_text(json.dumps(self._rows))


def turns(source: DataFrame) -> Any:
    applied = braided.stream(source).groupBy("k").apply(op.Turns, "k string, c int, seq bigint")
    return applied.selectExpr("k", "c", "CAST(c AS LONG) AS v", "seq")


def sinks(source: DataFrame, home: Path) -> list[Any]:
    """Sinks of all kinds; which rows are whose goes by their number."""
    spark = source.sparkSession
    spark.dataSource.register(Sqlite)
    every = turns(source)
    mine = {name: every.filter(f"seq % 3 = {i % 3}") for i, name in enumerate(SINKS)}
    return [
        files(mine["first"], home, "first"),
        files(mine["second"], home, "second").partitionBy("c"),
        by_batch(mine["batches"], home, "batches"),
        mine["each"].writeStream.foreach(EachRow(home)),
        mine["sqlite"].writeStream.format("sqlite_rows").option("path", str(home / "rows.db")),
        files(mine["table"], home, "table").table("compat_table"),
        mine["memory"].writeStream.format("memory").queryName("compat_memory"),
        every.writeStream.format("noop"),
        every.writeStream.format("console"),
    ]


def from_sinks(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    second = spark.read.parquet(str(home / "second")).select("k", "c", "v", "seq").collect()
    return {
        "first": in_files(spark, home / "first"),
        "second": [tuple(row) for row in second],
        "batches": in_json(home / "batches"),
        "each": in_json(home / "each"),
        "sqlite": rows_in(str(home / "rows.db")),
        "table": [tuple(row) for row in spark.table("compat_table").collect()],
        "memory": [tuple(row) for row in spark.table("compat_memory").collect()],
    }


def expected_sinks(batches: Batches) -> Expected:
    rows, state = _turns(batches)
    output = {name: [row for row in rows if row[3] % 3 == i % 3] for i, name in enumerate(SINKS)}
    # A table in memory begins with the process: it has the batch that is delivered again.
    output["memory"] = [row for row in output["memory"] if row[3] >= len(batches[0])]
    return Expected(output, state)


def _turns(batches: Batches) -> tuple[list[Row], dict[str, dict[Row, dict[str, Any]]]]:
    found, state = [], {}
    for row in all_of(batches):
        count = state.get((row.k,), {"turns": 0})["turns"] + 1
        state[(row.k,)] = {"turns": count}
        found.append((row.k, count, count, row.seq))
    return found, {"Turns": state}


def delta(source: DataFrame, home: Path) -> list[Any]:
    source.sparkSession.dataSource.register(DeltaRule)
    return [turns(source).writeStream.format("delta").option("path", str(home / "rows.db"))]


def from_delta(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    return {"delta": rows_in(str(home / "rows.db"))}


def expected_delta(batches: Batches) -> Expected:
    rows, state = _turns(batches)
    return Expected({"delta": rows}, state)


# -- what the controller keeps ---------------------------------------------------------------------


class Remembers:
    """A scale policy that wishes for nothing and counts the batches that it has seen."""

    before: ClassVar[list[int]] = []
    """What it remembered each time it was asked."""

    def scale(self, flow: Any, limits: Any, memory: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.before.append(memory.get("seen", 0))
        return {}, {"seen": memory.get("seen", 0) + 1}


def steered(source: DataFrame, home: Path) -> list[Any]:
    return [files(turns(source), home)]


def expected_steered(batches: Batches) -> Expected:
    rows, state = _turns(batches)
    return Expected({"out": rows}, state)

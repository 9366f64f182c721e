"""Flows of Spark's own stateful functions, of functions over dicts and of aggregates."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import braided
from compat import operators as op
from compat.case import DELAY_S, Batches, Expected, Row, all_of, by_batch, files, in_files, in_json
from compat.source import InputRow

__all__ = [
    "aggregates",
    "expected_aggregates",
    "expected_processors",
    "from_aggregates",
    "from_processors",
    "processors",
]


def processors(source: DataFrame, home: Path) -> list[Any]:
    by_key = braided.stream(source).groupBy("k")
    rows = by_key.transformWithState(
        statefulProcessor=op.Remembering(),
        outputStructType="k string, said string, seq bigint",
        outputMode="Append",
        timeMode="ProcessingTime",
    )
    frames = by_key.transformWithStateInPandas(
        statefulProcessor=op.PandasTotals(),
        outputStructType="k string, n bigint, total double",
        outputMode="Append",
        timeMode="None",
    )
    groups = by_key.applyInPandasWithState(
        op.last_values,
        "k string, n bigint, highest bigint",
        "n bigint, highest bigint",
        "Append",
        GroupStateTimeout.NoTimeout,
    )
    managed = braided.stream(source).apply(op.counted(), "k string, n int, last bigint, seq bigint")
    return [
        files(rows, home, "rows"),
        files(frames, home, "frames"),
        files(groups.name("groups"), home, "groups"),
        files(managed, home, "managed"),
    ]


def from_processors(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    return {name: in_files(spark, home / name) for name in ("rows", "frames", "groups", "managed")}


def expected_processors(batches: Batches) -> Expected:
    rows = all_of(batches)
    found = Expected({"rows": [], "frames": [], "groups": [], "managed": []})
    for row in rows:
        mine = [before for before in rows[: row.seq] if before.k == row.k]
        last = mine[-1] if mine else None
        remembered = (
            None if last is None else (Decimal(last.v).scaleb(-2) * 25, bytes([last.c]), last.k),
            0 if last is None else 600 + last.c,
            [(before.v,) for before in mine],
            [(before.seq,) for before in mine],
            sorted({(b.v % 4, "s"): (b.c,) for b in mine}.items()),
            sorted({(b.c,): (b.seq,) for b in mine}.items()),
            sorted({op.FAR_MS + b.c for b in mine}),
        )
        found.output["rows"].append((row.k, repr(remembered), row.seq))
        found.output["managed"].append(
            (row.k, len(mine) + 1, 0 if last is None else last.v, row.seq)
        )
    so_far: list[InputRow] = []
    for batch in batches:
        so_far += batch
        for key in {row.k for row in batch}:
            mine = [row for row in so_far if row.k == key]
            total = sum(row.x for row in mine)
            found.output["frames"].append((key, len(mine), total))
            found.output["groups"].append((key, len(mine), mine[-1].seq))
    found.state["counting"] = {
        (key,): {
            "last": _text(key, [row.v for row in rows if row.k == key][-1]),
            "counts": _text(key, len([row for row in rows if row.k == key])),
        }
        for key in {row.k for row in rows}
    }
    return found


def _text(key: str | None, value: int) -> str:
    """How a dict is shown whose keys may be None."""
    return json.dumps([[key, value]] if key is None else {key: value})


# -- aggregates ------------------------------------------------------------------------------------

WINDOW_S = 60


def aggregates(source: DataFrame, home: Path) -> list[Any]:
    rows = braided.stream(source)
    plain = rows.groupBy("k").agg(
        F.count("*").alias("n"),
        F.sum("v").alias("total"),
        F.avg("x").alias("mean"),
        F.min("seq").alias("first"),
        F.max("at").cast("long").alias("latest"),
        F.sum(F.expr("CAST(x AS DECIMAL(12, 2))")).cast("double").alias("money"),
        F.array_sort(F.collect_set("c")).alias("kinds"),
        F.approx_count_distinct("v").alias("distinct"),
        F.percentile_approx("v", 0.5).alias("middle"),
        F.max_by("c", "seq").alias("newest"),
    )
    windows = (
        rows.groupBy(F.window("at", f"{WINDOW_S} seconds"), "c")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        .selectExpr("CAST(window.start AS LONG) AS start", "c", "n", "total")
    )
    return [
        by_batch(plain.name("plain"), home, "updates").outputMode("update"),
        files(windows.name("windows"), home),
    ]


def from_aggregates(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    updates = [(*row[:7], tuple(row[7]), *row[8:]) for row in in_json(home / "updates")]
    return {"updates": updates, "out": in_files(spark, home / "out")}


def expected_aggregates(batches: Batches) -> Expected:
    found = Expected({"updates": [], "out": []})
    so_far: list[InputRow] = []
    for batch in batches:
        so_far += batch
        for key in {row.k for row in batch}:
            mine = [row for row in so_far if row.k == key]
            values = sorted(row.v for row in mine)
            found.output["updates"].append(
                (
                    key,
                    len(mine),
                    sum(values),
                    sum(row.x for row in mine) / len(mine),
                    mine[0].seq,
                    int(mine[-1].at.timestamp()),
                    sum(row.x for row in mine),
                    tuple(sorted({row.c for row in mine})),
                    len(set(values)),
                    values[(len(values) + 1) // 2 - 1],
                    mine[-1].c,
                )
            )
    watermark_s = int(so_far[-1].at.timestamp()) - DELAY_S
    windows: dict[tuple[int, int], list[int]] = {}
    for row in so_far:
        start = int(row.at.timestamp()) // WINDOW_S * WINDOW_S
        if start + WINDOW_S <= watermark_s:
            windows.setdefault((start, row.c), []).append(row.v)
    found.output["out"] = [(*key, len(values), sum(values)) for key, values in windows.items()]
    return found

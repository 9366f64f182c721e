"""The queries of the compatibility suite, and what each should have made of its input.

A case is one query: its flow, the sizes of its batches, those that old code ran and those that
are left for the code of now, and a model of it in plain Python. Only Braided's public API is used
here, so that the very same flow runs with the code of any commit.

Checkpoints refer to all this by names: of cases, operators, fields, sinks and their order. A case
that has checkpoints is not changed any more; something new to keep is a new case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from sqlite_source import DeltaRule, Sqlite, rows_in

import braided
from compat import operators as op
from compat.source import InputRow, frame

__all__ = ["CASES", "Case", "Expected", "Remembers", "started"]

DELAY_S = 30
"""Of the watermark."""

Row = tuple[Any, ...]
Batches = Sequence[Sequence[InputRow]]
Writers = Callable[[DataFrame, Path], list[Any]]


@dataclass
class Expected:
    """What a query has made of its input."""

    output: dict[str, list[Row]] = field(default_factory=dict)
    """By sink; order means nothing."""
    state: dict[str, dict[Row, dict[str, Any]]] = field(default_factory=dict)
    """By operator and key, as `braided.state` shows it."""
    timers: dict[str, dict[Row, list[int]]] = field(default_factory=dict)
    """In milliseconds; by operator, where it sets any."""
    dead: list[Row] = field(default_factory=list)
    """Operator, key and row of the rows that were diverted."""


@dataclass(frozen=True)
class Case:
    """One query."""

    writers: Writers
    """What is started, given the input and the directory of the query."""
    expected: Callable[[Batches], Expected]
    output: Callable[[SparkSession, Path], dict[str, list[Row]]]
    """What the sinks hold."""
    old: Sequence[int] = (12, 8)
    """The sizes of the batches in the checkpoint."""
    new: Sequence[int] = (9, 6)
    """The sizes of the batches that come then."""
    options: Mapping[str, Any] = field(default_factory=dict)
    crashed: bool = False
    """Whether the last old batch is to be delivered again."""

    @property
    def batches(self) -> list[int]:
        return [*self.old, *self.new]


def started(
    case: Case, spark: SparkSession, home: Path, until: int, writers: Writers | None = None
) -> Any:
    """The query on the directories of `home`, with so many rows of input."""
    source = frame(spark, case.batches, until).withWatermark("at", f"{DELAY_S} seconds")
    made = (writers or case.writers)(source, home)
    made[0].option("checkpointLocation", str(home / "checkpoint"))
    made[0].option("braided.cache.dir", str(home / "cache"))
    for name, value in {"slots": 8, "channels": 2, **case.options}.items():
        made[0].option(f"braided.{name}", value)
    return braided.start(*made)


# -- sinks -----------------------------------------------------------------------------------------


def files(stream: Any, home: Path, name: str = "out") -> Any:
    return stream.writeStream.format("parquet").option("path", str(home / name))


def by_batch(stream: Any, home: Path, name: str) -> Any:
    """A file for each batch; once more is no harm."""

    def write(rows: DataFrame, batch: int) -> None:
        (home / name).mkdir(exist_ok=True)
        text = json.dumps([list(row) for row in rows.collect()])
        (home / name / f"{batch}.json").write_text(text)

    return stream.writeStream.foreachBatch(write)


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


def in_files(spark: SparkSession, path: Path) -> list[Row]:
    """What a reader of a file sink sees."""
    return [tuple(row) for row in spark.read.parquet(str(path)).collect()]


def in_json(path: Path) -> list[Row]:
    found = [row for file in sorted(path.glob("*.json")) for row in json.loads(file.read_text())]
    return [tuple(row) for row in found]


def only_files(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    return {"out": in_files(spark, home / "out")}


# -- operators -------------------------------------------------------------------------------------


def all_of(batches: Batches) -> list[InputRow]:
    return [row for batch in batches for row in batch]


def operator(source: DataFrame, home: Path) -> list[Any]:
    kept = braided.stream(source).groupBy("k").apply(
        op.Kept, "k string, count int, total double, seq bigint"
    )
    return [files(kept, home)]


def expected_operator(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Kept": {}}, {"Kept": {}})
    for row in all_of(batches):
        name = str(row.c)
        before = found.state["Kept"].get((row.k,), {})
        per = dict(before.get("per", {}))
        per[name] = per.get(name, 0) + row.v
        span = before.get("span", {"low": 0, "high": 0})
        now = {
            "count": before.get("count", 0) + 1,
            "total": before.get("total", 0.0) + row.x,
            "odd": not before.get("odd", False),
            "name": name,
            "raw": bytes(before.get("raw", b"")) + bytes([row.seq]),
            "recent": [*before.get("recent", []), row.v][-3:],
            "seen": sorted({*before.get("seen", []), row.c}),
            "per": per,
            "day": date(2024, 3, 1 + row.c),
            "waited": before.get("waited", timedelta()) + timedelta(seconds=row.seq),
            "amount": str(Decimal(before.get("amount", 0)) + Decimal(row.v) / 8),
            "id": str(UUID(int=row.seq)),
            "mood": "wild" if row.v > 40 else "calm",
            "point": {"x": row.x, "tags": [name, "p"]},
            "span": {"low": min(span["low"], row.v), "high": max(span["high"], row.v)},
        }
        found.state["Kept"][(row.k,)] = now
        timers = found.timers["Kept"].setdefault((row.k,), [])
        timers[:] = [*timers, op.FAR_MS + row.seq][-2:]
        found.output["out"].append((row.k, now["count"], now["total"], row.seq))
    return found


def event_time(source: DataFrame, home: Path) -> list[Any]:
    """Timers that were set by the code of then and come due with the code of now."""
    rows = braided.stream(source).selectExpr("seq DIV 10 AS decade", "at")
    decades = rows.groupBy("decade").apply(
        op.Decades, "decade bigint, rows int", timeMode="EventTime"
    )
    return [files(decades, home)]


def expected_event_time(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Decades": {}}, {"Decades": {}})
    rows = all_of(batches)
    for decade in range(len(rows) // 10 + 1):
        mine = [row for row in rows if row.seq // 10 == decade]
        due = mine[-1].at + timedelta(seconds=65)
        if due <= rows[-1].at - timedelta(seconds=DELAY_S):
            found.output["out"].append((decade, len(mine)))
        else:
            found.state["Decades"][(decade,)] = {"rows": len(mine)}
            found.timers["Decades"][(decade,)] = [int(due.timestamp() * 1000)]
    return found


def totals_then(source: DataFrame, home: Path) -> list[Any]:
    """The flow before the fields of its first operator changed."""
    return _totals(source, home, op.TotalsThen)


def totals_now(source: DataFrame, home: Path) -> list[Any]:
    return _totals(source, home, op.TotalsNow)


def _totals(source: DataFrame, home: Path, version: type[braided.Operator]) -> list[Any]:
    totals = braided.stream(source).groupBy("k").apply(version, op.TOTALS).name("totals")
    schema = "c int, rows int, total bigint, seq bigint"
    by_category = totals.groupBy("c").apply(op.Averages, schema, timeMode="EventTime")
    return [files(by_category, home)]


def expected_totals(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"totals": {}, "Averages": {}})
    found.timers["Averages"] = {(c,): [op.FAR_MS] for c in range(3)}
    totals, averages = found.state["totals"], found.state["Averages"]
    for number, batch in enumerate(batches):
        for row in batch:
            before = totals.get((row.k,), {"total": 0.0, "last": [-1], "count": 0})
            # The first batch was processed by the operator as it was then.
            last = [*before["last"], row.seq][-2:] if number else [-1]
            total = before["total"] + row.v
            totals[(row.k,)] = {"total": total, "last": last, "count": before["count"] + 1}
            behind = averages.setdefault((row.c,), {"rows": 0, "total": 0})
            behind["rows"] += 1
            behind["total"] += int(total)
            found.output["out"].append((row.c, behind["rows"], behind["total"], row.seq))
    return found


def connected(source: DataFrame, home: Path) -> list[Any]:
    rows = braided.stream(source)
    left = rows.filter("seq % 2 = 0").select("k", "c", "v", "seq")
    right = rows.filter("seq % 2 = 1").selectExpr("k AS key", "c AS d", "v AS w", "seq")
    schema = "k string, c int, other int, seq bigint"
    both = braided.connect(left.groupBy("k"), right.groupBy("key")).apply(op.Match, schema)
    return [files(both, home)]


def expected_connected(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Match": {}})
    for row in all_of(batches):
        is_left = row.seq % 2 == 0
        if row.v % (7 if is_left else 5) == 0:
            names = ("k", "c", "v", "seq") if is_left else ("key", "d", "w", "seq")
            side = dict(zip(names, (row.k, row.c, row.v, row.seq), strict=True))
            found.dead.append(("Match", {"k": row.k}, side))
            continue
        state = found.state["Match"].setdefault((row.k,), {"left": {}, "right": {}})
        own, other = ("left", "right") if is_left else ("right", "left")
        state[own][row.c] = state[own].get(row.c, 0) + 1
        count = state[other].get(row.c, 0)
        found.output["out"].append((row.k, row.c, count if is_left else -count, row.seq))
    return found


# -- rows that wait --------------------------------------------------------------------------------


def log(source: DataFrame, home: Path) -> list[Any]:
    """Rows by key, then all in one."""
    first = braided.stream(source).groupBy("k").apply(op.Log, "k string, seq bigint, n int")
    both = first.name("first").groupBy(F.lit(1)).apply(op.Log, "k string, seq bigint, n int")
    return [files(both.name("second"), home)]


def from_log(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    """The rows of each key in the order in which they came to the second operator."""
    found = sorted(in_files(spark, home / "out"), key=lambda row: row[2])
    orders: dict[str | None, list[int]] = {}
    for key, seq, _ in found:
        orders.setdefault(key, []).append(seq)
    return {"numbers": [(n,) for _, _, n in found], "orders": list(orders.items())}


def expected_log(batches: Batches) -> Expected:
    """In the order of the input, whatever batch a row was left for."""
    found = Expected({}, {"first": {}})
    for row in all_of(batches):
        found.state["first"].setdefault((row.k,), {"seen": []})["seen"].append(row.seq)
    found.output["numbers"] = [(n + 1,) for n in range(len(all_of(batches)))]
    found.output["orders"] = [(k, s["seen"]) for (k,), s in found.state["first"].items()]
    return found


def loop(source: DataFrame, home: Path) -> list[Any]:
    rows = braided.stream(source).selectExpr("k", "seq", "CAST(NULL AS INT) AS again")
    passed = rows.groupBy("k").apply(op.Passed, "k string, seq bigint, again int")
    return [files(passed.feedback("again < 3"), home)]


def expected_loop(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Passed": {}})
    for row in all_of(batches):
        found.state["Passed"].setdefault((row.k,), {"rounds": {}})["rounds"][row.seq] = 3
        found.output["out"].append((row.k, row.seq, 3))
    return found


# -- Spark's own stateful functions, and functions over dicts --------------------------------------


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


# -- sinks that wait for a batch to be delivered again ---------------------------------------------

SINKS = ("first", "second", "batches", "each", "sqlite", "table", "memory")


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
    output = {
        name: [row for row in rows if row[3] % 3 == i % 3] for i, name in enumerate(SINKS)
    }
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


CASES: dict[str, Case] = {
    "operator": Case(
        operator,
        expected_operator,
        only_files,
        old=(12, 8, 4),
        options={"snapshot.minBytes": 1, "snapshot.factor": 0.5, "fullManifestEvery": 3},
    ),
    "event-time": Case(event_time, expected_event_time, only_files),
    # Three rows in the second batch: two keys still have a record of the first version.
    "evolved": Case(totals_now, expected_totals, only_files, old=(12, 3)),
    "connected": Case(
        connected, expected_connected, only_files, options={"onError": "divert"}, crashed=True
    ),
    "carry": Case(log, expected_log, from_log, old=(5, 15)),
    "loop": Case(loop, expected_loop, only_files, old=(10,)),
    "processors": Case(processors, expected_processors, from_processors),
    "aggregates": Case(aggregates, expected_aggregates, from_aggregates),
    "sinks": Case(sinks, expected_sinks, from_sinks, crashed=True),
    "delta": Case(
        delta,
        expected_delta,
        lambda spark, home: {"delta": rows_in(str(home / "rows.db"))},
        crashed=True,
    ),
    "steered": Case(
        steered,
        expected_steered,
        only_files,
        # A policy is asked from the fourth batch of a process on.
        old=(12, 8, *[5] * 7),
        new=[5] * 6,
        options={"scale": Remembers()},
    ),
}

"""The cases: the flows of operators, and the list of all.

Checkpoints refer to flows by names: of cases, operators, fields, sinks and their order. A case that
has checkpoints is not changed any more; something new to keep is a new case.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import braided
from compat import columns, sink_flows, spark_flows
from compat import operators as op
from compat.case import DELAY_S, Batches, Case, Expected, Row, all_of, files, in_files, only_files

__all__ = ["CASES", "more_then", "totals_then"]


def operator(source: DataFrame, home: Path) -> list[Any]:
    kept = (
        braided.stream(source)
        .groupBy("k")
        .apply(op.Kept, "k string, count int, total double, seq bigint")
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


# -- what only newer formats say -------------------------------------------------------------------


def split(source: DataFrame, home: Path) -> list[Any]:
    """Rows of a key go to several slots, and what they come to is merged by the driver."""
    merged = braided.stream(source).groupBy("k").apply(op.Merged, "k string, v bigint, seq bigint")
    return [files(merged, home)]


def expected_split(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Merged": {}})
    for row in all_of(batches):
        state = found.state["Merged"].setdefault((row.k,), {"count": 0, "total": 0})
        state["count"] += 1
        state["total"] += row.v
        found.output["out"].append((row.k, row.v, row.seq))
    return found


def assigned(source: DataFrame, home: Path) -> list[Any]:
    """Keys are in slots that somebody has chosen for them."""
    return [files(sink_flows.turns(source), home)]


def fewer(source: DataFrame, home: Path) -> list[Any]:
    """An operator of the flow before is there no more."""
    return [files(_turns(source), home).option("braided.dropOperators", "gone")]


def more_then(source: DataFrame, home: Path) -> list[Any]:
    """The flow before an operator left it, which gave out what it took in."""
    gone = _turns(source).groupBy("c").apply(op.Through, "k string, c int, seq bigint")
    return [files(gone.name("gone"), home)]


def _turns(source: DataFrame) -> Any:
    return braided.stream(source).groupBy("k").apply(op.Turns, "k string, c int, seq bigint")


def expected_fewer(batches: Batches) -> Expected:
    found = sink_flows.expected_steered(batches)
    found.output["out"] = [(k, c, seq) for k, c, _, seq in found.output["out"]]
    return found


CASES: dict[str, Case] = {
    "operator": Case(
        operator,
        expected_operator,
        only_files,
        old=(12, 8, 4),
        options={"snapshot.minBytes": 1, "snapshot.factor": 0.5, "fullManifestEvery": 3},
    ),
    "columns": Case(
        columns.columns,
        columns.expected_columns,
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
    "processors": Case(
        spark_flows.processors,
        spark_flows.expected_processors,
        spark_flows.from_processors,
    ),
    "aggregates": Case(
        spark_flows.aggregates,
        spark_flows.expected_aggregates,
        spark_flows.from_aggregates,
    ),
    "sinks": Case(
        sink_flows.sinks,
        sink_flows.expected_sinks,
        sink_flows.from_sinks,
        crashed=True,
    ),
    "delta": Case(
        sink_flows.delta,
        sink_flows.expected_delta,
        sink_flows.from_delta,
        crashed=True,
    ),
    "steered": Case(
        sink_flows.steered,
        sink_flows.expected_steered,
        only_files,
        # A policy is asked from the fourth batch of a process on.
        old=(12, 8, *[5] * 7),
        new=[5] * 6,
        options={"scale": sink_flows.Remembers()},
    ),
    "split": Case(split, expected_split, only_files, options={"balance": "static"}),
    "assigned": Case(
        assigned, sink_flows.expected_steered, only_files, options={"balance": "static"}
    ),
    "dropped": Case(fewer, expected_fewer, only_files),
}

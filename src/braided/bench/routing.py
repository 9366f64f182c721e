"""Time to route rows with 100,000 keys assigned to slots, against none assigned.

The same rows, in memory, go the way to an operator: place, shuffle and sort, in the JVM, and are
dropped there. Sides take turns. `ratio` is processor time of the JVM with assigned keys over that
without, the median of pairs: time by the clock says what else the machine does. `plan_lines_added`
shows that the plan does not grow, `send_ms` what it takes once for an epoch, and `right` that every
key that was assigned came to its slot, and every other to that of its hash.

Goals, of which `missed` names those that a run did not reach:

- `ratio`: at most 1.1, so that assigned keys take no more than a tenth of routing time;
- `plan_lines_added`: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from braided.bench.session import Arena, Progress, arena, median
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.pins import hash_slot
from braided.control.routing.table import RoutingTable
from braided.flow.route import GroupingKeys, Route, first_order, pin_hashes, slot_of_place
from braided.spark.jvm import plan_lines, processor_s
from braided.tasks.stage import StageInput

__all__ = ["RoutingSize", "missed", "routing_cost", "run"]

_SLOTS, _CHANNELS = 256, 4
_AT_MOST = {"ratio": 1.1, "plan_lines_added": 0}


@dataclass(frozen=True)
class RoutingSize:
    """Half of the keys that rows have are assigned."""

    keys: int = 100_000
    rows: int = 2_000_000
    pairs: int = 12
    warm: int = 3


_QUICK = RoutingSize(rows=500_000, pairs=5, warm=5)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    with arena("routing") as place:
        return routing_cost(place, _QUICK if quick else RoutingSize(), progress)


def routing_cost(place: Arena, size: RoutingSize, progress: Progress) -> dict[str, Any]:
    """What assigned keys cost where rows are routed."""
    spark = place.spark
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    # As in queries of Braided's; it would join small partitions.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    rows = spark.range(size.rows).selectExpr(
        f"concat('key ', pmod(xxhash64(id), {2 * size.keys})) AS k", "id AS v", "string(id) AS w"
    )
    rows = rows.persist()
    try:
        rows.count()
        return _measured(spark, rows, size, progress)
    finally:
        rows.unpersist()
        spark.conf.set("spark.sql.adaptive.enabled", str(adaptive))


def _measured(
    spark: SparkSession, rows: DataFrame, size: RoutingSize, progress: Progress
) -> dict[str, Any]:
    assigned = _assigned(spark, size.keys)
    plain = RoutingTable.initial(_SLOTS, _CHANNELS)
    tables = {"plain": plain, "assigned": replace(plain, assigned=assigned)}
    routes = {side: Route(GroupingKeys(("k",)), _SLOTS, 2) for side in tables}
    order = first_order(["monotonically_increasing_id()"])

    def routed(side: str) -> DataFrame:
        return routes[side].apply(StageInput(rows, tables[side], order, False, False))

    begun = perf_counter()
    routed("assigned")
    send_ms = 1000 * (perf_counter() - begun)
    context = spark.sparkContext
    took: dict[str, list[float]] = {side: [] for side in tables}
    for number in range(size.warm + size.pairs):
        for side in list(tables)[:: 1 if number % 2 else -1]:
            frame, begun = routed(side), processor_s(context)
            frame.write.format("noop").mode("overwrite").save()
            took[side].append(processor_s(context) - begun)
    measured = {side: times[size.warm :] for side, times in took.items()}
    ratios = [b / a for a, b in zip(measured["plain"], measured["assigned"], strict=True)]
    lines = {side: plan_lines(routed(side)) for side in tables}
    result = {
        "keys": size.keys,
        "rows": size.rows,
        "plain_s": round(median(measured["plain"]), 3),
        "assigned_s": round(median(measured["assigned"]), 3),
        "ratio": round(median(ratios), 3),
        "send_ms": round(send_ms, 1),
        "plan_lines_added": lines["assigned"] - lines["plain"],
        "right": _is_right(routed("assigned"), assigned),
    }
    progress(
        f"{size.keys:,} keys assigned: {result['ratio']:.2f} of the processor time of routing by "
        f"hash alone, {result['send_ms']:.0f} ms once for each new table"
    )
    return {**result, "missed": missed(result)}


def missed(found: Mapping[str, Any]) -> list[str]:
    """The goals that what was found does not reach."""
    return [name for name, most in _AT_MOST.items() if found[name] > most]


def _assigned(spark: SparkSession, count: int) -> KeyAssignment:
    hashes = [f"{sql} AS {name}" for sql, name in zip(pin_hashes(["k"]), "ab", strict=True)]
    frame = spark.range(count).selectExpr("concat('key ', 2 * id) AS k")
    found = frame.selectExpr("k", *hashes).toArrow()
    slots = np.random.default_rng(1).integers(0, _SLOTS, count)
    keys = [key.encode() for key in found.column("k").to_pylist()]
    a, b = (found.column(name).to_numpy() for name in "ab")
    return KeyAssignment.of(keys, a, b, slots)


def _is_right(routed: DataFrame, assigned: KeyAssignment) -> bool:
    hashes = [f"{sql} AS {name}" for sql, name in zip(pin_hashes(["k"]), "ab", strict=True)]
    found = routed.selectExpr(*hashes, f"{slot_of_place()} AS slot").toArrow()
    a, b, slot = (found.column(name).to_numpy() for name in ("a", "b", "slot"))
    at = assigned.positions(a, b)
    expected = np.where(at >= 0, assigned.slots[at], hash_slot(a, _SLOTS))
    return bool((at >= 0).any() and (at < 0).any() and np.array_equal(slot, expected))

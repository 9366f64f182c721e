"""Rows per second of count, sum and windowed sum: `.agg` against native streaming aggregation.

Both sides read the same files in one session and give every result that changed (update mode) to a
sink that drops it. Rows per second come from the median `triggerExecution` of the batches after the
warm-up. Then both are started again where they stopped, with one more batch and a sink that keeps
its rows: what they give out holds all that was aggregated before, and is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided
from braided.bench.session import Arena, InputFiles, Progress, Query, arena, median, run_all

__all__ = ["AggCase", "AggSize", "measure", "run"]

_FILES = 2
"""Files a batch, one for each core."""
_FIRST_ROWS = 1_000
_HOT = 7


@dataclass(frozen=True)
class AggCase:
    """What is aggregated, over how many keys, and whether one of them has half the rows."""

    aggregate: str
    keys: int
    hot: bool


@dataclass(frozen=True)
class AggSize:
    """How large the batches are, how many each side runs, and how often."""

    rows: int
    warm: int
    """Batches that do not count: the first is small, for compilation and Python workers."""
    counted: int
    rounds: int


# Batches over few keys are short, and both sides need a dozen of them to be compiled.
_FULL = {
    100: AggSize(rows=1_000_000, warm=6, counted=6, rounds=2),
    100_000: AggSize(rows=1_000_000, warm=4, counted=4, rounds=2),
}
_QUICK = {
    100: AggSize(rows=1_000_000, warm=6, counted=3, rounds=1),
    100_000: AggSize(rows=1_000_000, warm=3, counted=2, rounds=1),
}
_ALL = [
    AggCase(aggregate, keys, hot)
    for aggregate in ("count", "sum", "window")
    for keys in (100, 100_000)
    for hot in (False, True)
]
_FEW = [AggCase("sum", 100, False), AggCase("window", 100_000, True)]


Start = Callable[[Arena, InputFiles, AggCase, str, str | None], Query]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    with arena("agg") as place:
        sizes = _QUICK if quick else _FULL
        cases = [
            measure(place, case, sizes[case.keys], progress) for case in (_FEW if quick else _ALL)
        ]
    return {"cases": cases, "quick": quick}


def measure(place: Arena, case: AggCase, size: AggSize, progress: Progress) -> dict[str, Any]:
    """Runs one case on both sides and compares what they end with."""
    name = f"{case.aggregate}-{case.keys}-{'hot' if case.hot else 'uniform'}"
    inputs = _inputs(place, name, case, size)
    rates: dict[str, list[float]] = {"native": [], "braided": []}
    ends: dict[str, DataFrame] = {}
    for turn in range(size.rounds):
        sides: list[tuple[str, Start]] = [("native", _native), ("braided", _braided)]
        for side, start in sides if turn % 2 == 0 else sides[::-1]:
            checkpoint = place.fresh(f"checkpoint-{side}-{name}-{turn}")
            rows = _first(place, inputs, f"{name}-{side}-{turn}")
            batches = run_all(start(place, rows, case, checkpoint, None))[size.warm :]
            found = [
                1000 * b["numInputRows"] / b["durationMs"]["triggerExecution"] for b in batches
            ]
            rates[side] += found
            progress(f"{name}: {side:<8}{median(found):>12,.0f} rows/s")
            if turn == 0:
                ends[side] = _end(place, rows, inputs, case, checkpoint, start, f"{name}-{side}")
    identical = _same(*ends.values())
    native, ours = median(rates["native"]), median(rates["braided"])
    progress(f"{name}: ratio {ours / native:.2f}, identical: {identical}")
    return {
        "aggregate": case.aggregate,
        "keys": case.keys,
        "hot": case.hot,
        "native_rows_per_s": round(native),
        "braided_rows_per_s": round(ours),
        "ratio": round(ours / native, 2),
        "identical": identical,
        "batches": len(rates["native"]),
    }


# --- input ------------------------------------------------------------------------------------


def _inputs(place: Arena, name: str, case: AggCase, size: AggSize) -> InputFiles:
    """Batches of rows, and a last one for the comparison."""
    inputs = InputFiles(place.work / f"in-{name}")
    random = np.random.default_rng(11)
    for batch in range(size.warm + size.counted + 1):
        rows = min(_FIRST_ROWS, size.rows) if batch == 0 else size.rows
        keys = random.integers(0, case.keys, rows)
        if case.hot:
            keys[random.random(rows) < 0.5] = _HOT
        inputs.add(keys, _FILES)
    return inputs


def _first(place: Arena, inputs: InputFiles, name: str) -> InputFiles:
    """All batches but the last."""
    shown = InputFiles(place.work / f"in-{name}")
    shown.show(inputs.files[:-_FILES])
    return shown


def _aggregated(case: AggCase, rows: Any) -> Any:
    """The job, on a DataFrame or a Stream: they take the same calls."""
    match case.aggregate:
        case "count":
            return rows.groupBy("k").count()
        case "sum":
            return rows.groupBy("k").agg(F.sum("v").alias("s"))
    # Two windows, to which every batch adds.
    return rows.groupBy(F.window("t", "32 seconds"), "k").agg(F.sum("v").alias("s"))


def _timed(case: AggCase, rows: DataFrame) -> DataFrame:
    if case.aggregate != "window":
        return rows
    time = F.timestamp_seconds(F.lit(1_700_000_000) + (F.col("v") * 8) % 64)
    return rows.withColumn("t", time).withWatermark("t", "1 hour")


# --- the two sides ----------------------------------------------------------------------------


def _native(
    place: Arena, rows: InputFiles, case: AggCase, checkpoint: str, kept: str | None
) -> Query:
    totals = _aggregated(case, _timed(case, rows.stream(place.spark, _FILES)))
    return _started(totals.writeStream, checkpoint, kept)


def _braided(
    place: Arena, rows: InputFiles, case: AggCase, checkpoint: str, kept: str | None
) -> Query:
    stream = braided.stream(_timed(case, rows.stream(place.spark, _FILES)))
    return _started(_aggregated(case, stream).writeStream, checkpoint, kept)


def _started(writer: Any, checkpoint: str, kept: str | None) -> Query:
    writer = writer.outputMode("update").option("checkpointLocation", checkpoint)
    if kept is None:
        query: Query = writer.format("noop").start()
        return query

    def keep(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{kept}/{batch}")

    started: Query = writer.foreachBatch(keep).start()
    return started


def _end(
    place: Arena,
    rows: InputFiles,
    inputs: InputFiles,
    case: AggCase,
    checkpoint: str,
    start: Start,
    name: str,
) -> DataFrame:
    """What a side gives out for one more batch."""
    rows.show(inputs.files[-_FILES:])
    kept = place.fresh(f"kept-{name}")
    run_all(start(place, rows, case, checkpoint, kept))
    return place.spark.read.parquet(*[str(path) for path in Path(kept).iterdir()])


def _same(first: DataFrame, second: DataFrame) -> bool:
    """Whether both have the same rows, at least one, whatever their order."""
    rows = [sorted(map(repr, frame.toArrow().to_pylist())) for frame in (first, second)]
    return bool(rows[0]) and rows[0] == rows[1]

"""Time of a batch of 1,000 rows: Braided, native aggregation, a foreachBatch that only writes.

The same files and the same sink for all. `native_ms` is `groupBy().count()` in the JVM
with RocksDB, `empty_ms` a `foreachBatch` that only writes its rows to the sink, `braided_ms` a
counting Operator; all are medians of `triggerExecution` after the warm-up. `steps_ms` shows where
a batch of Braided's spends its time, `spark_ms` what Spark itself measures around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import braided
from braided.bench.session import Arena, InputFiles, Progress, Query, arena, median, run_all

__all__ = ["FloorSize", "measure", "run"]

_COUNTS = "k long, count long"


@dataclass(frozen=True)
class FloorSize:
    """How much is run. Rounds go through the sides in alternating order."""

    rows: int = 1_000
    keys: int = 500
    warm: int = 15
    batches: int = 40
    rounds: int = 2


_FULL = FloorSize()
_QUICK = FloorSize(warm=5, batches=8, rounds=1)


class Count(braided.Operator):
    count: int = 0

    def onBatch(self, rows: pa.Table) -> Iterator[tuple[int, int]]:
        self.count += rows.num_rows
        yield self.key.k, self.count


@dataclass
class _FloorSide:
    name: str
    start: Callable[[Arena, DataFrame, str, str], Query]
    batches: list[Any] = field(default_factory=list)

    def ms(self) -> float:
        return median([batch["durationMs"]["triggerExecution"] for batch in self.batches])


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = _QUICK if quick else _FULL
    with arena("floor") as place:
        result = measure(place, size, "noop", progress)
        result["parquet"] = measure(place, size, "parquet", progress)
    result["quick"] = quick
    return result


def measure(place: Arena, size: FloorSize, sink: str, progress: Progress) -> dict[str, Any]:
    """All three sides into one kind of sink."""
    inputs = InputFiles(place.work / f"in-{sink}")
    for _ in range(size.warm + size.batches):
        inputs.add(inputs.random_keys(size.rows, size.keys))
    sides = [
        _FloorSide("native", _native),
        _FloorSide("empty", _empty),
        _FloorSide("braided", _braided),
    ]
    for turn in range(size.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            rows = inputs.stream(place.spark)
            out = place.fresh(f"out-{sink}-{side.name}-{turn}")
            query = side.start(place, rows, sink, out)
            side.batches += run_all(query)[size.warm :]
            progress(f"{sink:<8}{side.name:<8}{side.ms():>8.0f} ms a batch")
    native, empty, ours = sides
    return {
        "sink": sink,
        "rows": size.rows,
        "native_ms": native.ms(),
        "empty_ms": empty.ms(),
        "braided_ms": ours.ms(),
        "braided_to_native": round(ours.ms() / native.ms(), 3),
        "braided_to_empty": round(ours.ms() / empty.ms(), 3),
        "batches": len(ours.batches),
        "steps_ms": _medians([batch["braided"]["stepsMs"] for batch in ours.batches]),
        "spark_ms": _medians([batch["durationMs"] for batch in ours.batches]),
        "empty_spark_ms": _medians([batch["durationMs"] for batch in empty.batches]),
        "native_spark_ms": _medians([batch["durationMs"] for batch in native.batches]),
    }


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: median([sample.get(name, 0.0) for sample in samples]) for name in names}


def _native(place: Arena, rows: DataFrame, sink: str, out: str) -> Query:
    counts = rows.groupBy("k").count()
    checkpoint = place.fresh("checkpoint")
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    if sink == "noop":
        return writer.format("noop").start()
    # Spark's file sink takes no updates; this is how one writes them to files.
    return writer.foreachBatch(_write_to(sink, out)).start()


def _empty(place: Arena, rows: DataFrame, sink: str, out: str) -> Query:
    checkpoint = place.fresh("checkpoint")
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    return writer.foreachBatch(_write_to(sink, out)).start()


def _braided(place: Arena, rows: DataFrame, sink: str, out: str) -> Query:
    counts = braided.stream(rows).groupBy("k").apply(Count, _COUNTS)
    checkpoint = place.fresh("checkpoint")
    writer = counts.writeStream.format(sink).option("checkpointLocation", checkpoint)
    return writer.start(None if sink == "noop" else out)


def _write_to(sink: str, out: str) -> Callable[[DataFrame, int], None]:
    def write(df: DataFrame, batch: int) -> None:
        if sink == "noop":
            df.write.format("noop").mode("overwrite").save()
        else:
            df.write.format(sink).mode("append").save(out)

    return write

"""Time without output from 4 to 8 channels: rescale() against stop, repartition, start.

Input goes on at a steady rate: one file a trigger, for both sides. Both write Parquet files, and
the time of an output is when its rows can be read: Braided's through its file sink, native updates,
which Spark's file sink does not take, through foreachBatch. A pause is the longest time between two
outputs less the median one. The native side is a JVM aggregation with RocksDB that is stopped,
repartitioned by Spark's own offline tool and started again; the control is Braided without a
rescale: a run of its own, or with --quick, which has the larger size only, the batches before the
rescale. State is loaded before the clock counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, arena, median, with_data
from braided.bench.totals import Totals, last_per_key, same_rows

__all__ = ["RescaleSize", "measure", "pause_s", "run"]

_CHANNELS, _MORE = 4, 8
_LEAST_PAUSE_S = 0.001
"""What a pause counts in the ratio when no gap is longer than usual."""
_NEAR = 5
"""Batches before and after the rescale that are looked at for a long one."""
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class RescaleSize:
    """Keys of state, rows a batch, batches before and after the rescale, seconds between them."""

    keys: int
    rows: int
    before: int
    after: int
    interval_s: float
    load_rows: int = 250_000
    control: bool = True
    """Whether the control is a run of its own."""


def _sizes(quick: bool) -> tuple[RescaleSize, ...]:
    if quick:
        return (RescaleSize(1_000_000, 2_000, 5, 3, 0.5, load_rows=1_000_000, control=False),)
    return tuple(RescaleSize(keys, 10_000, 15, 20, 1.0) for keys in (10_000, 1_000_000))


@dataclass
class _Observed:
    """What a run showed: when each batch's rows were there, and how long each batch took."""

    out: str
    at_s: dict[int, float] = field(default_factory=dict)
    batch_s: dict[int, float] = field(default_factory=dict)

    def take(self, df: DataFrame, batch: int) -> None:
        df.write.parquet(f"{self.out}/batch={batch}", mode="overwrite")
        self.at_s[batch] = time.time()

    def see(self, batch: int) -> bool:
        """Whether a batch is in the log of the file sink; notes since when."""
        if batch not in self.at_s:
            try:
                self.at_s[batch] = Path(self.out, "_spark_metadata", str(batch)).stat().st_mtime
            except FileNotFoundError:
                return False
        return True

    def durations(self, query: Any) -> None:
        for batch in with_data(query.recentProgress):
            self.batch_s[batch["batchId"]] = batch["durationMs"]["triggerExecution"] / 1000

    def gaps_s(self, first: int) -> list[float]:
        """The times between outputs, from batch `first` on."""
        times = [at for batch, at in sorted(self.at_s.items()) if batch >= first]
        return [later - earlier for earlier, later in pairwise(times)]

    def until(self, batch: int) -> _Observed:
        """What the batches before one showed."""
        return replace(
            self,
            at_s={number: at for number, at in self.at_s.items() if number < batch},
            batch_s={number: s for number, s in self.batch_s.items() if number < batch},
        )

    def rows(self, place: Arena) -> DataFrame:
        read = place.spark.read.schema(f"{TOTALS}, batch int").parquet(self.out)
        return last_per_key(read.select("k", "n", "s"))


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    # The tool that repartitions a checkpoint needs this format of it.
    conf = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
    with arena("rescale", conf) as place:
        _warm(place, batches=8 if quick else 60)
        sizes = [
            measure(place, size, progress, native_first=number % 2 == 1)
            for number, size in enumerate(_sizes(quick))
        ]
    return {"sizes": sizes, "quick": quick}


def _warm(place: Arena, batches: int) -> None:
    """A run that nobody looks at, so that the first one that counts finds a warm JVM: a query that
    is rescaled has run for a while.
    """
    size = RescaleSize(keys=1_000, rows=10_000, before=batches, after=batches, interval_s=0.1)
    inputs, first = _inputs(place, size)
    seen = _Observed(place.fresh("out-warm"))
    _braided(place, inputs, size, seen, first + size.before, to=_MORE)


def measure(
    place: Arena, size: RescaleSize, progress: Progress, native_first: bool = False
) -> dict[str, Any]:
    """The control, Braided and native over the same input."""
    inputs, first = _inputs(place, size)
    change = first + size.before
    sides: dict[str, Callable[[_Observed], None]] = {
        "control": lambda seen: _braided(place, inputs, size, seen, change, to=None),
        "braided": lambda seen: _braided(place, inputs, size, seen, change, to=_MORE),
        "native": lambda seen: _native(place, inputs, size, seen, change),
    }
    observed = {}
    if not size.control:
        del sides["control"]
    for name in sorted(sides, reverse=native_first, key=list(sides).index):
        observed[name] = _Observed(place.fresh(f"out-{size.keys}-{name}"))
        sides[name](observed[name])
        progress(f"{size.keys:,} keys: {name}: {_shown(observed[name], first)}")
    ours, native = observed["braided"], observed["native"]
    control = observed["control"] if size.control else ours.until(change)
    frames = [inputs.totals(place.spark), *(side.rows(place) for side in observed.values())]
    identical = same_rows(frames)
    progress(f"{size.keys:,} keys: identical: {identical}")
    native_pause_s, pause = pause_s(native.gaps_s(first)), pause_s(ours.gaps_s(first))
    longest_s = max(s for batch, s in control.batch_s.items() if batch >= first)
    near = range(max(first, change - _NEAR), change + _NEAR + 1)
    around_s = max(ours.batch_s[batch] for batch in near if batch in ours.batch_s)
    return {
        "keys": size.keys,
        "native_pause_s": round(native_pause_s, 3),
        "braided_pause_s": round(pause, 3),
        "ratio": round(native_pause_s / max(pause, _LEAST_PAUSE_S), 1),
        "identical": identical,
        "control_pause_s": round(pause_s(control.gaps_s(first)), 3),
        "control_longest_batch_s": round(longest_s, 3),
        "longest_batch_around_rescale_s": round(around_s, 3),
        "longest_batch_ratio": round(around_s / longest_s, 3),
        "median_gap_s": round(median(ours.gaps_s(first)), 3),
        "note": (
            f"no gap was longer than usual: the ratio takes {_LEAST_PAUSE_S} s"
            if pause < _LEAST_PAUSE_S
            else ""
        ),
    }


def pause_s(gaps_s: list[float]) -> float:
    """The longest time without output, over what is usual."""
    return max(gaps_s) - median(gaps_s)


def _inputs(place: Arena, size: RescaleSize) -> tuple[InputFiles, int]:
    """Files that load every key once, then one for each steady batch; the first of those."""
    inputs = InputFiles(place.work / f"in-{size.keys}")
    every = np.arange(size.keys)
    loads = max(1, -(-size.keys // size.load_rows))
    for part in np.array_split(every, loads):
        inputs.add(part)
    # The first steady batch only gets the time of loading out of the gaps.
    for _ in range(1 + size.before + size.after):
        inputs.add(inputs.random_keys(size.rows, size.keys))
    return inputs, loads + 1


def _braided(
    place: Arena,
    inputs: InputFiles,
    size: RescaleSize,
    seen: _Observed,
    change: int,
    to: int | None,
) -> None:
    rows = braided.stream(inputs.stream(place.spark))
    writer = rows.groupBy("k").apply(Totals, TOTALS).writeStream.format("parquet")
    query = (
        writer.option("checkpointLocation", place.fresh("checkpoint"))
        .option("braided.channels", _CHANNELS)
        .trigger(processingTime=f"{size.interval_s} seconds")
        .start(seen.out)
    )
    try:
        _wait(query, lambda: seen.see(change - 1))
        if to is not None:
            query.rescale(to)
        query.processAllAvailable()
        seen.durations(query)
        for batch in seen.batch_s:
            seen.see(batch)
        if to is not None and query.routing()["Totals"].channels != to:
            raise RuntimeError(f"the query runs on {query.routing()['Totals'].channels} channels")
    finally:
        query.stop()


def _native(
    place: Arena, inputs: InputFiles, size: RescaleSize, seen: _Observed, change: int
) -> None:
    checkpoint = place.fresh("checkpoint")
    shown = InputFiles(place.work / f"in-{size.keys}-native")
    # A batch that was interrupted could not be repartitioned. This way none begins before the stop.
    shown.show(inputs.files[:change])

    def start() -> Any:
        totals = (
            shown.stream(place.spark)
            .groupBy("k")
            .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        )
        writer = totals.writeStream.outputMode("update").foreachBatch(seen.take)
        return (
            writer.option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{size.interval_s} seconds")
            .start()
        )

    place.spark.conf.set("spark.sql.shuffle.partitions", _CHANNELS)
    query = start()
    try:
        _wait(query, lambda: _finished(query) >= change - 1)
        seen.durations(query)
        query.stop()
        shown.show(inputs.files[change:])
        place.spark._streamingCheckpointManager.repartition(checkpoint, _MORE)
        query = start()
        query.processAllAvailable()
        seen.durations(query)
    finally:
        query.stop()
        place.spark.conf.set("spark.sql.shuffle.partitions", 2)


def _finished(query: Any) -> int:
    progress = query.lastProgress
    if progress is None:
        return -1
    # A progress without a batch has the number of the next one.
    return int(progress["batchId"]) - ("addBatch" not in progress["durationMs"])


def _wait(query: Any, reached: Callable[[], bool]) -> None:
    """Until a query has got somewhere; its own error if it ends before, or an error in the end."""
    deadline = time.monotonic() + _PATIENCE_S
    while not reached():
        if not query.isActive:
            error: StreamingQueryException | None = query.exception()
            raise error or RuntimeError("the query ended too early")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query did not get there in {_PATIENCE_S:.0f} s")
        time.sleep(0.005)


def _shown(seen: _Observed, first: int) -> str:
    gaps_s = seen.gaps_s(first)
    return (
        f"longest time without output {max(gaps_s):.2f} s, usual {median(gaps_s):.2f} s, "
        f"longest batch {max(s for b, s in seen.batch_s.items() if b >= first):.2f} s"
    )

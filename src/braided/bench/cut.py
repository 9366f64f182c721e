"""A slot that is suddenly hot: what the keys of others wait, with and without ending batches early.

Rows arrive steadily over ten slots on five channels. From one moment to the next one of the slots
has 60 % of them, for a while. A row costs a millisecond of waiting. `p99_ratio` is the time from
arrival to output of the rows of all other slots, from then until the slot has cooled, without
`braided.cut` over with it. `balanced_s` is when the hot slot had a channel to itself. `idle_cost`
is what `braided.cut` adds to a batch in which nothing is cut: the same batches with and without it,
in turns.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

import braided
from braided.bench.arrivals import FILE_S, arrive
from braided.bench.session import (
    INPUT,
    Arena,
    InputFiles,
    KeyNumbers,
    Progress,
    arena,
    median,
    with_data,
)
from braided.bench.waiting import ROW_S, wait
from braided.flow.route import slot_sql

__all__ = ["CutSize", "measure", "run"]

_NAME = "work"
_SLOTS = 10
_CHANNELS = 5
_HOT_SHARE = 0.6
_HOT_SLOT = 3
_FIRST_BATCHES = 5


class CutWork(braided.Operator):
    """A row out for each row in, with its time of arrival, after `ROW_S` of waiting."""

    n: int = 0

    def onOpen(self) -> list[float]:
        return [time.perf_counter()]

    def onRow(self, row: Any) -> Iterator[tuple[int, float]]:
        self.n += 1
        self.opened[0] = wait(self.opened[0], 1)
        yield row.k, row.v


@dataclass(frozen=True)
class CutSize:
    """Rows per second, and seconds before the slot is hot, while it is, and after."""

    rows_per_s: int = 2000
    before_s: float = 6.0
    hot_s: float = 24.0
    after_s: float = 10.0
    keys_per_slot: int = 40
    idle_rounds: int = 6
    idle_batches: int = 12

    @property
    def files(self) -> int:
        return round((self.before_s + self.hot_s + self.after_s) / FILE_S)

    def is_hot(self, at_s: float) -> bool:
        return self.before_s <= at_s < self.before_s + self.hot_s


_QUICK = CutSize(before_s=2, hot_s=10, after_s=2, idle_rounds=2, idle_batches=6)


@dataclass
class _CutFigures:
    """What a run showed."""

    begun_s: float | None = None
    rows: Counter[tuple[int, float]] = field(default_factory=Counter)
    alone_from: int | None = None
    """The batch from which on the hot slot had a channel to itself."""
    latencies: list[tuple[Any, Any, Any]] = field(default_factory=list)
    """Keys, times of arrival and seconds until output, batch by batch."""
    batches: list[Any] = field(default_factory=list)

    def take(self, df: DataFrame, batch: int) -> None:
        table = df.toArrow()
        keys, arrived = table["k"].to_numpy(), table["v"].to_numpy()
        self.rows.update(zip(keys.tolist(), arrived.tolist(), strict=True))
        self.latencies.append((keys, arrived, time.time() - arrived))


class _SlotKeys:
    """Keys by the slot that they are in."""

    def __init__(self, place: Arena, size: CutSize) -> None:
        numbers = place.spark.range(20 * _SLOTS * size.keys_per_slot)
        slots = numbers.selectExpr("id", f"{slot_sql(['id'], _SLOTS)} AS slot").toArrow()
        ids, of_slot = slots["id"].to_numpy(), slots["slot"].to_numpy()
        self.by_slot = [ids[of_slot == slot][: size.keys_per_slot] for slot in range(_SLOTS)]
        self._chance = np.random.default_rng(5)

    def draw(self, rows: int, is_hot: bool) -> KeyNumbers:
        """Keys of rows, evenly over slots, or with one that is hot."""
        slots = self._chance.integers(0, _SLOTS, rows)
        if is_hot:
            slots[self._chance.random(rows) < _HOT_SHARE] = _HOT_SLOT
        numbers = self._chance.integers(0, len(self.by_slot[0]), rows)
        keys: KeyNumbers = np.array(self.by_slot)[slots, numbers]
        return keys


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = _QUICK if quick else CutSize()
    with arena("cut", cores=_CHANNELS + 1) as place:
        return {**measure(place, size, progress), "quick": quick}


def measure(place: Arena, size: CutSize, progress: Progress) -> dict[str, Any]:
    """Both ways through the same schedule, and both through batches that nothing is cut in."""
    keys = _SlotKeys(place, size)
    hot = set(keys.by_slot[_HOT_SLOT].tolist())
    sides: dict[str, dict[str, Any]] = {}
    for name in ("whole", "cut"):
        seen, schedule = _run(place, size, _SlotKeys(place, size), is_cut=name == "cut")
        sides[name] = side = _side(seen, schedule, hot, size)
        progress(
            f"{name:<6} other keys p50 {side['p50_s']:5.2f} s, p99 {side['p99_s']:5.2f} s, hot "
            f"p99 {side['hot_p99_s']:5.2f} s, balanced after {side['balanced_s']} s, "
            f"{side['cuts']} cuts in {side['batches']} batches"
        )
    idle_ms = _idle(place, size, keys, progress)
    return {
        "p99_ratio": round(sides["whole"]["p99_s"] / sides["cut"]["p99_s"], 2),
        "p50_ratio": round(sides["whole"]["p50_s"] / sides["cut"]["p50_s"], 2),
        "idle_cost": round(idle_ms["cut"] / idle_ms["whole"] - 1, 4),
        "idle_ms": {name: round(ms, 1) for name, ms in idle_ms.items()},
        "identical": all(side["identical"] for side in sides.values()),
        "row_s": ROW_S,
        "sides": sides,
    }


def _run(
    place: Arena, size: CutSize, keys: _SlotKeys, is_cut: bool
) -> tuple[_CutFigures, Counter[tuple[int, float]]]:
    directory = Path(place.fresh("in-cut"))
    directory.mkdir(parents=True)
    seen, scheduled = _CutFigures(), Counter[tuple[int, float]]()
    query = _start(place, str(directory), seen, is_cut)

    def keys_of(number: int) -> KeyNumbers:
        return keys.draw(round(size.rows_per_s * FILE_S), size.is_hot(number * FILE_S))

    def begin(at_s: float) -> None:
        seen.begun_s = at_s

    def is_begun() -> bool:
        return len(with_data(query.recentProgress)) >= _FIRST_BATCHES

    def is_running() -> bool:
        return query.isActive

    try:
        of_feed = (directory, size.files, keys_of, is_begun, begin, is_running)
        feeder = threading.Thread(target=arrive, args=of_feed, daemon=True)
        feeder.start()
        feeder.join()
        query.processAllAvailable()
        seen.batches = with_data(query.recentProgress)
        seen.alone_from = _alone_from(query)
    finally:
        query.stop()
    files = place.spark.read.schema(INPUT).parquet(str(directory)).toArrow()
    scheduled.update(zip(files["k"].to_pylist(), files["v"].to_pylist(), strict=True))
    return seen, scheduled


def _start(place: Arena, directory: str, seen: _CutFigures, is_cut: bool) -> braided.ElasticQuery:
    rows = place.spark.readStream.schema(INPUT).parquet(directory)
    work = braided.stream(rows).groupBy("k").apply(CutWork, INPUT).name(_NAME)
    return (
        work.writeStream.foreachBatch(seen.take)
        .option("checkpointLocation", place.fresh("checkpoint"))
        .option("braided.slots", _SLOTS)
        .option("braided.channels", _CHANNELS)
        .option("braided.cut", is_cut)
        .start()
    )


def _side(
    seen: _CutFigures, scheduled: Counter[tuple[int, float]], hot: set[int], size: CutSize
) -> dict[str, Any]:
    keys, arrived, waited = (np.concatenate(column) for column in zip(*seen.latencies, strict=True))
    from_s = (seen.begun_s or 0.0) + size.before_s
    counted = (arrived > from_s) & (arrived <= from_s + size.hot_s)
    is_hot = np.isin(keys, list(hot))
    others, own = waited[counted & ~is_hot], waited[counted & is_hot]
    return {
        "p50_s": round(float(np.quantile(others, 0.5)), 3),
        "p99_s": round(float(np.quantile(others, 0.99)), 3),
        "hot_p50_s": round(float(np.quantile(own, 0.5)), 3),
        "hot_p99_s": round(float(np.quantile(own, 0.99)), 3),
        "balanced_s": _balanced_s(seen, from_s),
        "cuts": sum("cut" in batch["braided"] for batch in seen.batches),
        "batches": len(seen.batches),
        "identical": seen.rows == scheduled,
    }


def _alone_from(query: braided.ElasticQuery) -> int | None:
    for entry in query.routing().history:
        slots = entry.tables[_NAME].slots
        if np.count_nonzero(slots == slots[_HOT_SLOT]) == 1:
            return entry.batch
    return None


def _balanced_s(seen: _CutFigures, from_s: float) -> float | None:
    """How long after the slot became hot it had a channel to itself."""
    for batch in seen.batches:
        if batch["batchId"] == seen.alone_from:
            return round(_time_s(batch["timestamp"]) - from_s, 2)
    return None


def _idle(place: Arena, size: CutSize, keys: _SlotKeys, progress: Progress) -> dict[str, float]:
    """What a batch takes whose channels are even, in turns."""
    times_ms: dict[str, list[float]] = {"whole": [], "cut": []}
    for number in range(size.idle_rounds):
        for name in ("whole", "cut") if number % 2 else ("cut", "whole"):
            inputs = InputFiles(Path(place.fresh("in-idle")))
            for _ in range(size.idle_batches):
                inputs.add(keys.draw(size.rows_per_s // 2, is_hot=False))
            rows = inputs.stream(place.spark)
            work = braided.stream(rows).groupBy("k").apply(CutWork, INPUT).name(_NAME)
            query = (
                work.writeStream.format("noop")
                .option("checkpointLocation", place.fresh("checkpoint"))
                .option("braided.slots", _SLOTS)
                .option("braided.channels", _CHANNELS)
                .option("braided.balance", "static")
                .option("braided.cut", name == "cut")
                .start()
            )
            try:
                query.processAllAvailable()
                batches = with_data(query.recentProgress)
            finally:
                query.stop()
            took = [batch["durationMs"]["triggerExecution"] for batch in batches[2:]]
            times_ms[name] += took
    found = {name: median(each) for name, each in times_ms.items()}
    progress(f"idle   {found['whole']:.0f} ms a batch, {found['cut']:.0f} ms with braided.cut")
    return found


def _time_s(timestamp: str) -> float:
    return float(np.datetime64(timestamp.rstrip("Z")).astype("datetime64[ms]").astype(int)) / 1000

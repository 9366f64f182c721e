"""Rows per second with skewed keys: native and static hashing against the default, and the bound.

16 channels, a millisecond of waiting a row (`bench/waiting.py`), 10,000 keys whose frequencies
follow a zipf law and are dealt out anew ω times a minute, where a batch stands for as long as 16
channels need for it when nobody waits for anybody. All sides do the same work on the same
rows. No assignment is done before max(rows/16, rows of the hottest key) milliseconds: the bound.

Where keys are shuffled every few seconds a batch stands for a second, elsewhere for longer: then
less of its time is what any batch takes, whatever it does. The first batches of a query, which are
small, are not counted.

`bound_ratio` is the median, from the second batch after each shuffle on, of the busiest channel's
busy time over the bound; `wall_ratio` is the same for the whole batch, with all that it does
besides. `same_batch_bound_ratio` is that of batches whose hot set has just been flipped
(`bench/flipped.py`).

`split_ratio` is about one key with more than half of the rows (`bench/split_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import braided
from braided.bench.flipped import FlipSize, measure_flips
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, Query, arena, median, run_all
from braided.bench.split_keys import SplitSize, measure_split
from braided.bench.totals import last_per_key, need_native, published, same_rows
from braided.bench.waiting import ROW_S, NativeWaitingTotals, WaitingTotals, ZipfKeys

__all__ = ["SkewCase", "SkewSize", "measure", "measure_flipped", "run"]

CHANNELS = 16
KEYS = 10_000
_NAME = "totals"


@dataclass(frozen=True)
class SkewSize:
    """Rows a batch, batches that each side is measured with, and those before, which have
    `warm_rows`.
    """

    rows: int
    braided: int
    static: int
    native: int
    warm: int = 2
    warm_braided: int = 5  # the controller begins with the fourth batch
    warm_rows: int = 4_000
    keys: int = KEYS
    channels: int = CHANNELS

    @property
    def batch_s(self) -> float:
        """What a batch stands for."""
        return self.rows * ROW_S / self.channels


@dataclass(frozen=True)
class SkewCase:
    skew: float
    shuffles_per_minute: int


_FULL = [SkewCase(skew, omega) for skew in (0.5, 0.8, 1.0) for omega in (0, 2, 16)]
_QUICK = [SkewCase(0.8, 16)]
_RESTLESS = 10
"""Shuffles a minute from which on a batch has to be short to see the keys twice."""


@dataclass(frozen=True)
class _SkewedInput:
    """The rows, and of each batch the bound, and whether it is the first after a shuffle."""

    inputs: InputFiles
    bound_s: Sequence[float]
    is_first: Sequence[bool]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    need_native()
    # To start a worker for each channel takes longer than a short run.
    channels = CHANNELS // 2 if quick else CHANNELS
    conf = {"spark.sql.shuffle.partitions": str(channels)}
    with arena("skew", conf, cores=channels) as place:
        cases = [
            measure(place, case, _size(case, channels, quick), progress)
            for case in (_QUICK if quick else _FULL)
        ]
        splits = SplitSize(8_000, 1_600, 2) if quick else SplitSize(40_000, 4_000, 3)
        split = measure_split(place, splits, progress)
        flips = FlipSize(8_000 if quick else 32_000, 4 if quick else 10, channels)
        flipped = measure_flipped(place, flips, progress)
    return {
        "channels": channels,
        "keys": KEYS,
        "row_ms": 1,
        "cases": cases,
        "split": split,
        "split_ratio": split["split_ratio"],
        "flipped": flipped,
        "same_batch_bound_ratio": flipped["auto"]["flipped_bound_ratio"],
        "quick": quick,
    }


def measure_flipped(place: Arena, size: FlipSize, progress: Progress) -> dict[str, Any]:
    """Hot sets that are flipped with every second batch, counted before they are routed or not."""

    def start(rows: InputFiles, at: str, out: str, options: dict[str, Any]) -> Query:
        return _braided(place, rows, at, out, size.channels, options)

    return measure_flips(place, size, start, _NAME, progress)


def _size(case: SkewCase, channels: int, quick: bool) -> SkewSize:
    if quick:
        return SkewSize(8_000, braided=8, static=4, native=1, channels=channels)
    if case.shuffles_per_minute >= _RESTLESS:
        return SkewSize(16_000, braided=12, static=5, native=1, channels=channels)
    # Where keys are shuffled at all, that is in the middle, after six batches.
    count = 9 if case.shuffles_per_minute else 5
    return SkewSize(40_000, braided=count, static=2, native=1, channels=channels)


def measure(place: Arena, case: SkewCase, size: SkewSize, progress: Progress) -> dict[str, Any]:
    """All sides of one case."""
    made = _input(place, case, size)
    sides: dict[str, tuple[int, int, Callable[[InputFiles, str, str], Query]]] = {
        "static": (
            size.static,
            size.warm,
            lambda rows, at, out: _braided(
                place, rows, at, out, size.channels, {"braided.balance": "static"}
            ),
        ),
        "braided": (
            size.braided,
            size.warm_braided,
            lambda rows, at, out: _braided(place, rows, at, out, size.channels, {}),
        ),
        # The last, so that the workers of the others are not taken for idle ones meanwhile.
        "native": (size.native, size.warm, lambda rows, at, out: _native(place, rows, at, out)),
    }
    seen: dict[str, list[Any]] = {}
    identical = True
    for name, (count, warm, start) in sides.items():
        files = InputFiles(place.work / f"in-{case.skew}-{case.shuffles_per_minute}-{name}")
        files.show(made.inputs.files[:warm])
        files.show(made.inputs.files[size.warm_braided : size.warm_braided + count])
        path = place.fresh(f"out-{name}")
        batches = run_all(start(files, place.fresh("checkpoint"), path))
        output = last_per_key(published(place.spark, path, warm + count))
        identical = identical and same_rows([files.totals(place.spark), output])
        seen[name] = batches[warm:]
        progress(
            f"zipf {case.skew}, ω {case.shuffles_per_minute}: {name:<8}"
            f"{_rows_per_s(seen[name]):>8,.0f} rows/s"
        )
    return {**_figures(case, size, made, seen), "identical": identical}


def _figures(
    case: SkewCase, size: SkewSize, made: _SkewedInput, seen: dict[str, list[Any]]
) -> dict[str, Any]:
    rates = {name: _rows_per_s(batches) for name, batches in seen.items()}
    walls_ms = {name: [_wall_ms(b) for b in batches] for name, batches in seen.items()}
    ratios = {
        name: _bound_ratio(made, size.warm_braided, seen[name]) for name in ("static", "braided")
    }
    bounds_ms = [1000 * s for s in made.bound_s[size.warm_braided :]]
    walls = [wall / bound for wall, bound in zip(walls_ms["braided"], bounds_ms, strict=False)]
    return {
        "skew": case.skew,
        "shuffles_per_minute": case.shuffles_per_minute,
        "native_rows_per_s": round(rates["native"]),
        "static_rows_per_s": round(rates["static"]),
        "braided_rows_per_s": round(rates["braided"]),
        "bound_rows_per_s": round(1000 * size.rows / median(bounds_ms)),
        "bound_ratio": round(ratios["braided"], 3),
        "static_bound_ratio": round(ratios["static"], 3),
        "wall_ratio": round(median(walls), 3),
        "p99_ms": round(_p99(walls_ms["braided"])),
        "static_p99_ms": round(_p99(walls_ms["static"])),
        "native_p99_ms": round(_p99(walls_ms["native"])),
        "over_static": round(rates["braided"] / rates["static"], 2),
        "bound_over_static": round(_bound_over_static(made, size, seen["static"], ratios), 2),
        "over_native": round(rates["braided"] / rates["native"], 2),
        "moved_slots": sum(_operator(batch)["moves"] for batch in seen["braided"]),
    }


def _bound_ratio(made: _SkewedInput, warm: int, batches: Sequence[Any]) -> float:
    """The busiest channel's busy time over the bound, where the keys were known."""
    ratios = [
        max(_operator(batch)["busyMs"]) / 1000 / made.bound_s[number]
        for number, batch in enumerate(batches, warm)
        if not made.is_first[number]
    ]
    return median(ratios)


def _bound_over_static(
    made: _SkewedInput, size: SkewSize, static: Sequence[Any], ratios: dict[str, float]
) -> float:
    """What the best assignment would have over the static one, if all that a batch takes beside its
    busiest channel stayed as it is, and nobody knew of a shuffle before its first batch was over.
    """
    beside_s = median(
        [(_wall_ms(batch) - max(_operator(batch)["busyMs"])) / 1000 for batch in static]
    )
    theirs = best = 0.0
    for number in range(size.warm_braided, size.warm_braided + size.braided):
        bound_s = made.bound_s[number]
        unknown_s = ratios["static"] * bound_s
        theirs += unknown_s + beside_s
        best += (unknown_s if made.is_first[number] else bound_s) + beside_s
    return theirs / best


def _input(place: Arena, case: SkewCase, size: SkewSize) -> _SkewedInput:
    inputs = InputFiles(place.work / f"in-{case.skew}-{case.shuffles_per_minute}")
    keys = ZipfKeys(size.keys, case.skew, seed=11)
    every_s = 60 / case.shuffles_per_minute if case.shuffles_per_minute else float("inf")
    # The first one in the middle of an interval, but not before anybody is measured.
    due_s = every_s / 2
    bounds, firsts = [], []
    for number in range(-size.warm_braided, size.braided):
        is_first = number * size.batch_s >= due_s
        if is_first:
            keys.shuffle()
            due_s += every_s
        drawn = keys.draw(size.rows if number >= 0 else size.warm_rows)
        hottest = int(np.bincount(drawn).max())
        inputs.add(drawn)
        bounds.append(ROW_S * max(size.rows / size.channels, hottest))
        firsts.append(is_first)
    return _SkewedInput(inputs, bounds, firsts)


def _native(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = inputs.stream(place.spark)
    totals = rows.groupBy("k").transformWithState(NativeWaitingTotals(), TOTALS, "Append", "None")
    writer = totals.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query: Query = writer.start(path)
    return query


def _braided(
    place: Arena,
    inputs: InputFiles,
    checkpoint: str,
    path: str,
    channels: int,
    options: dict[str, Any],
) -> Query:
    rows = braided.stream(inputs.stream(place.spark)).groupBy("k")
    totals = rows.apply(WaitingTotals, TOTALS).name(_NAME)
    writer = totals.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query: Query = writer.option("braided.channels", channels).options(**options).start(path)
    return query


def _operator(batch: Any) -> Any:
    return batch["braided"]["operators"][_NAME]


def _rows_per_s(batches: Sequence[Any]) -> float:
    rows = sum(batch["numInputRows"] for batch in batches)
    return float(1000 * rows / sum(map(_wall_ms, batches)))


def _wall_ms(batch: Any) -> float:
    return float(batch["durationMs"]["triggerExecution"])


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99))

"""Latency and cost when the arrival rate rises fourfold and falls again: elastic against fixed.

Rows arrive at a steady rate, four times as fast for a while, and steadily again, a file every
quarter of a second, whether or not anybody keeps up. The clock starts when a query has had its
first batches, which are like no others. A row costs a millisecond of waiting. Its latency runs from
its arrival to the moment its batch has been handed to the sink. Three runs over the same
schedule: with few channels, with many, and with `braided.channels.max`, which makes the
number follow the load. Channel-seconds are the channels of each batch times the time until the next
one begins. The ideal has few channels before and after the surge and many during it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import braided
from braided.bench.arrivals import FILE_S, arrive
from braided.bench.session import INPUT, Arena, KeyNumbers, Progress, arena, with_data
from braided.bench.timeline import Timeline
from braided.bench.waiting import wait
from braided.operator.definition import Operator

__all__ = ["SurgeSize", "measure", "run"]

_NAME = "work"
_TIMES = 4
_FIRST_BATCHES = 5
_NOTHING = Timeline((), (), (), (), (), ())


class SurgeWork(Operator):
    """A row out for each row in, with its time of arrival, after `ROW_S` of waiting."""

    n: int = 0

    def onOpen(self) -> list[float]:
        return [time.perf_counter()]

    def onBatch(self, rows: pa.Table) -> Any:
        self.n += rows.num_rows
        self.opened[0] = wait(self.opened[0], rows.num_rows)
        for arrived in rows["v"].to_pylist():
            yield self.key.k, arrived


@dataclass(frozen=True)
class SurgeSize:
    """Rows per second at first, and seconds before, of, and after the surge."""

    rows_per_s: int
    before_s: float
    surge_s: float
    after_s: float
    interval_s: float = 1.0
    few: int = 1
    many: int = 6
    most: int = 16
    keys: int = 500

    def rate(self, at_s: float) -> int:
        is_surge = self.before_s <= at_s < self.before_s + self.surge_s
        return self.rows_per_s * (_TIMES if is_surge else 1)

    @property
    def all_s(self) -> float:
        return self.before_s + self.surge_s + self.after_s

    @property
    def ideal_channel_s(self) -> float:
        return self.few * (self.before_s + self.after_s) + self.many * self.surge_s


@dataclass
class _SurgeFigures:
    """What a run showed."""

    latencies_s: list[Any] = field(default_factory=list)
    rows: int = 0
    begun_s: float | None = None
    batches: Timeline = _NOTHING

    def take(self, df: DataFrame, batch: int) -> None:
        arrived = df.select("v").toArrow()["v"].to_numpy()
        if self.begun_s is None:
            return
        arrived = arrived[arrived > self.begun_s]
        self.rows += len(arrived)
        self.latencies_s.append(time.time() - arrived)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    # To start a worker for each channel takes longer than a short run.
    short = SurgeSize(500, before_s=2, surge_s=4, after_s=4, most=8)
    size = short if quick else SurgeSize(500, before_s=15, surge_s=20, after_s=25)
    with arena("surge", cores=size.most) as place:
        _run(place, SurgeSize(500, 2, 1, 0, most=size.most), size.most, {})  # nobody looks at it
        progress("warm")
        return {**measure(place, size, progress), "quick": quick}


def measure(place: Arena, size: SurgeSize, progress: Progress) -> dict[str, Any]:
    """The three runs."""
    elastic = {"braided.channels.max": size.most}
    sides = {"many": (size.many, {}), "elastic": (size.few, elastic), "few": (size.few, {})}
    found: dict[str, _SurgeFigures] = {}
    for name, (channels, options) in sides.items():
        seen = found[name] = _run(place, size, channels, options)
        held_s = seen.batches.channel_s(size.all_s)
        progress(
            f"{name:<8} p99 {_p99_s(seen):5.2f} s, {held_s:6.1f} channel-seconds, "
            f"channels {list(seen.batches.channels)}"
        )
    expected = _scheduled(size)
    many, own, few = (found[name] for name in ("many", "elastic", "few"))
    cost = own.batches.channel_s(size.all_s)
    return {
        "rows": expected,
        "no_row_lost": all(seen.rows == expected for seen in found.values()),
        "few_channels": size.few,
        "many_channels": size.many,
        "few_p99_s": round(_p99_s(few), 3),
        "many_p99_s": round(_p99_s(many), 3),
        "elastic_p99_s": round(_p99_s(own), 3),
        "latency_ratio": round(_p99_s(own) / _p99_s(many), 2),
        "few_channel_s": round(few.batches.channel_s(size.all_s), 1),
        "many_channel_s": round(many.batches.channel_s(size.all_s), 1),
        "elastic_channel_s": round(cost, 1),
        "ideal_channel_s": round(size.ideal_channel_s, 1),
        "cost_ratio": round(cost / size.ideal_channel_s, 2),
        "surge_channels": int(np.median(_in_surge(own, size) or [0])),
        "batches_to_follow": _batches_to_follow(_in_surge(own, size)),
        "channels": list(own.batches.channels),
    }


def _run(place: Arena, size: SurgeSize, channels: int, options: dict[str, Any]) -> _SurgeFigures:
    directory = Path(place.fresh("in-surge"))
    directory.mkdir(parents=True)
    seen = _SurgeFigures()
    rows = place.spark.readStream.schema(INPUT).parquet(str(directory))
    work = braided.stream(rows).groupBy("k").apply(SurgeWork, INPUT).name(_NAME)
    query = (
        work.writeStream.foreachBatch(seen.take)
        .option("checkpointLocation", place.fresh("checkpoint"))
        .option("braided.channels", channels)
        .options(**options)
        .trigger(processingTime=f"{size.interval_s} seconds")
        .start()
    )
    try:
        feeder = threading.Thread(target=_feed, args=(directory, size, seen, query), daemon=True)
        feeder.start()
        feeder.join()
        query.processAllAvailable()
        seen.batches = Timeline.of(with_data(query.recentProgress), _NAME, seen.begun_s or 0.0)
    finally:
        query.stop()
    return seen


def _feed(
    directory: Path, size: SurgeSize, seen: _SurgeFigures, query: braided.ElasticQuery
) -> None:
    """Rows arrive as the schedule says, whatever becomes of them."""
    chance = np.random.default_rng(3)

    def keys_of(number: int) -> KeyNumbers:
        rate = size.rate(number * FILE_S)
        keys: KeyNumbers = chance.integers(0, size.keys, round(rate * FILE_S))
        return keys

    def begin(at_s: float) -> None:
        seen.begun_s = at_s

    arrive(
        directory,
        round(size.all_s / FILE_S),
        keys_of,
        lambda: len(with_data(query.recentProgress)) >= _FIRST_BATCHES,
        begin,
        lambda: query.isActive,
    )


def _scheduled(size: SurgeSize) -> int:
    files = range(round(size.all_s / FILE_S))
    return sum(round(size.rate(number * FILE_S) * FILE_S) for number in files)


def _p99_s(seen: _SurgeFigures) -> float:
    return float(np.quantile(np.concatenate(seen.latencies_s), 0.99))


def _in_surge(seen: _SurgeFigures, size: SurgeSize) -> list[int]:
    """The channels of the batches with surging rows, from the first one on."""
    first_s, end_s = size.before_s + FILE_S, size.before_s + size.surge_s
    held = zip(seen.batches.starts_s, seen.batches.channels, strict=True)
    return [channels for at_s, channels in held if first_s < at_s <= end_s]


def _batches_to_follow(channels: list[int]) -> int | None:
    """How many batches of a surge have fewer channels than it gets, which most of them have."""
    if not channels:
        return None
    return next(n for n, count in enumerate(channels) if count >= np.median(channels))

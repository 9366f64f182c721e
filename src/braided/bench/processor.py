"""Rows per second of Spark's own StatefulProcessors, natively and on Braided, unchanged.

Value, list and map state, timers and values that expire, each in rows and in pandas. Both sides
read the same files, run the same class and write to a Parquet sink; every batch has rows of all
keys. Rows per second come from the median `triggerExecution` of the batches after the warm-up. The
output of all batches that both ran is compared, row by row.

In pandas much of the time is the processor's own: a data frame that it makes for each row of output
costs more than the key's state. `frames_ms` is what its frames take of a batch on both sides,
measured by themselves and divided by the cores; `ratio_without_frames` is the ratio of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import braided
from braided.bench.processors import PROCESSORS, InPandas, InRows, frames_us_per_key
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, Query, arena, median, run_all
from braided.bench.totals import need_native, published, same_rows

__all__ = ["CONF", "ProcessorSize", "inputs", "measure", "run"]

_FILES = 2
"""Files a batch, one for each core."""
# Where a native query may have timers it runs batch after batch, whether any is due or not, and is
# never done with its input. Those batches are left out: they would only cost the native side time.
CONF = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


@dataclass(frozen=True)
class ProcessorSize:
    """Keys of every batch and rows of each, and how many batches each side is measured in."""

    keys: int
    rows_per_key: int
    warm: int
    native: int
    braided: int
    warm_keys: int
    """Keys of the batches before, which get the start of workers over with."""
    settling: int
    """Batches of ours after those that are not counted: the JVM goes on compiling for dozens, and
    a native batch is ten times as long."""

    @property
    def ours(self) -> int:
        return self.settling + self.braided


_FULL = ProcessorSize(10_000, 5, warm=2, native=2, braided=9, warm_keys=1_000, settling=9)
_QUICK = ProcessorSize(10_000, 5, warm=1, native=1, braided=3, warm_keys=100, settling=0)
_ALL = tuple((kind, pandas) for pandas in (False, True) for kind in PROCESSORS)
# A native batch of so many keys takes 5 to 10 seconds in rows and 15 in pandas.
_SOME = (("list", False), ("timers", False), ("ttl", True))


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    need_native()
    size = _QUICK if quick else _FULL
    with arena("processor", CONF) as place:
        files = inputs(place, size)
        cases = [
            measure(place, files, size, kind, pandas=pandas, progress=progress)
            for kind, pandas in (_SOME if quick else _ALL)
        ]
    mean = math.exp(sum(math.log(case["ratio"]) for case in cases) / len(cases))
    return {
        "cases": cases,
        "geometric_mean_ratio": round(mean, 2),
        "least_ratio": min(case["ratio"] for case in cases),
        "identical": all(case["identical"] for case in cases),
        "keys": size.keys,
        "quick": quick,
    }


def measure(
    place: Arena,
    files: Sequence[InputFiles],
    size: ProcessorSize,
    kind: str,
    *,
    pandas: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Runs one kind of processor on both sides and compares what they wrote."""
    name = f"{kind}, {'pandas' if pandas else 'rows'}"
    rates, outputs = {}, {}
    for side, rows in zip(("native", "braided"), files, strict=True):
        outputs[side] = place.fresh(f"out-{side}-{kind}-{pandas}")
        query = _start(place, rows, side, kind, pandas, outputs[side])
        uncounted = size.warm + (size.settling if side == "braided" else 0)
        batches = run_all(query)[uncounted:]
        rates[side] = [
            1000 * batch["numInputRows"] / batch["durationMs"]["triggerExecution"]
            for batch in batches
        ]
        progress(
            f"{name:<16}{side:<8}{median(rates[side]):>10,.0f} rows/s  ({len(rates[side])} batches)"
        )
    compared = size.warm + min(size.native, size.ours)
    identical = same_rows([published(place.spark, path, compared) for path in outputs.values()])
    native, ours = median(rates["native"]), median(rates["braided"])
    progress(f"{name:<16}{ours / native:.1f} times, identical: {identical}")
    case = {
        "scenario": kind,
        "interface": "pandas" if pandas else "rows",
        "native_rows_per_s": round(native),
        "braided_rows_per_s": round(ours),
        "ratio": round(ours / native, 2),
        "identical": identical,
        "native_batches": len(rates["native"]),
        "braided_batches": len(rates["braided"]),
    }
    return {**case, **_frames(place, size, native, ours)} if pandas else case


def _frames(place: Arena, size: ProcessorSize, native: float, ours: float) -> dict[str, Any]:
    """What of a batch are the processor's own frames, which are the same on both sides."""
    rows = size.keys * size.rows_per_key
    us_per_key = frames_us_per_key(size.rows_per_key)
    frames_ms = us_per_key * size.keys / 1000 / place.spark.sparkContext.defaultParallelism
    native_ms, ours_ms = 1000 * rows / native, 1000 * rows / ours
    rest_ms = ours_ms - frames_ms
    return {
        "native_ms": round(native_ms, 1),
        "braided_ms": round(ours_ms, 1),
        "frames_ms": round(frames_ms, 1),
        "frames_us_per_key": round(us_per_key, 1),
        "ratio_without_frames": round((native_ms - frames_ms) / rest_ms, 2)
        if rest_ms > 0
        else None,
    }


def inputs(place: Arena, size: ProcessorSize) -> tuple[InputFiles, InputFiles]:
    """The same files for both sides; the native one gets the first of them only."""
    ours = InputFiles(place.work / "in-braided")
    random = np.random.default_rng(11)
    for keys in [size.warm_keys] * size.warm + [size.keys] * max(size.native, size.ours):
        drawn = np.repeat(np.arange(keys, dtype=np.int64), size.rows_per_key)
        random.shuffle(drawn)
        ours.add(drawn, _FILES)
    native = InputFiles(place.work / "in-native")
    native.show(ours.files[: _FILES * (size.warm + size.native)])
    return native, ours


def _start(place: Arena, files: InputFiles, side: str, kind: str, pandas: bool, path: str) -> Query:
    keeps = PROCESSORS[kind]
    rows: Any = files.stream(place.spark, _FILES)
    if side == "braided":
        rows = braided.stream(rows)
    grouped = rows.groupBy("k")
    call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    totals = call(
        statefulProcessor=(InPandas if pandas else InRows)(keeps),
        outputStructType=TOTALS,
        outputMode="Append",
        timeMode="ProcessingTime" if keeps.timed else "None",
    )
    writer = totals.writeStream.format("parquet")
    query: Query = writer.option("checkpointLocation", place.fresh("checkpoint")).start(path)
    return query

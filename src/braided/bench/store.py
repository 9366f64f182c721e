"""Time and requests of a batch with the checkpoint on local disk and on an S3 server here.

The same files, the same work and a file sink beside the checkpoint. `local_ms` and `s3_ms` are
medians of `triggerExecution` after the warm-up. Requests are counted by the server: Braided's own
(`requests_per_batch`, and by kind) apart from those that Spark makes for its logs and the output
(`spark_requests_per_batch`). `requests_allowed` is 3 for each channel that changed something and 6;
`cases` shows that they do not grow with slots or with state.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import functions as F

import braided
from braided.bench.s3_server import S3Request, S3Server, missing, serve
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, arena, median, with_data
from braided.bench.totals import Totals

__all__ = ["StoreSize", "measure", "run"]

_CHANNELS = 4


@dataclass(frozen=True)
class StoreSize:
    """How much is run."""

    cases: tuple[tuple[int, int], ...] = ((256, 5_000), (256, 100_000), (4096, 100_000))
    """Slots and keys."""
    rows: int = 5_000
    warm: int = 8
    batches: int = 30


_FULL = StoreSize()
_QUICK = StoreSize(cases=((64, 1_000), (1024, 20_000)), rows=1_000, warm=4, batches=8)


@dataclass(frozen=True)
class _StoreCosts:
    ms: float
    channels_changed: float
    requests: list[S3Request]
    batches: int
    output: set[tuple[Any, ...]]

    def per_batch(self, ours: bool) -> float:
        return round(sum(r.ours == ours for r in self.requests) / self.batches, 2)

    def kinds(self) -> dict[str, dict[str, float]]:
        """Requests of ours, and their bytes, per batch."""
        counts, sizes = Counter[str](), Counter[str]()
        for request in self.requests:
            if request.ours:
                counts[request.operation] += 1
                sizes[request.operation] += request.bytes
        return {
            kind: {
                "requests": round(count / self.batches, 2),
                "bytes": round(sizes[kind] / self.batches),
            }
            for kind, count in sorted(counts.items())
        }


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    lacking = missing()
    if lacking is not None:
        raise RuntimeError(lacking)
    size = _QUICK if quick else _FULL
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-s3-") as home,
        serve(Path(home)) as s3,
        arena("store", s3.spark_settings) as place,
    ):
        result = measure(place, s3, size, progress)
    result["quick"] = quick
    return result


def measure(place: Arena, s3: S3Server, size: StoreSize, progress: Progress) -> dict[str, Any]:
    """The smallest case on both stores, the others on S3 alone."""
    cases = []
    local: _StoreCosts | None = None
    for slots, keys in size.cases:
        name = f"{slots}-{keys}"
        inputs = _inputs(place, name, size, keys)
        if local is None:
            local = _side(place, None, inputs, name, slots, size)
            progress(f"local  {slots:>6} slots {keys:>8} keys {local.ms:>8.0f} ms a batch")
        ours = _side(place, s3, inputs, name, slots, size)
        progress(
            f"S3     {slots:>6} slots {keys:>8} keys {ours.ms:>8.0f} ms a batch, "
            f"{ours.per_batch(True)} requests"
        )
        cases.append((slots, keys, ours))
    assert local is not None
    first = cases[0][2]
    allowed = 3 * first.channels_changed + 6
    return {
        "local_ms": local.ms,
        "s3_ms": first.ms,
        "ratio": round(first.ms / local.ms, 3),
        "channels_changed": first.channels_changed,
        "requests_per_batch": first.per_batch(True),
        "requests_allowed": allowed,
        "identical": first.output == local.output,
        "spark_requests_per_batch": first.per_batch(False),
        "by_kind": first.kinds(),
        "cases": [
            {
                "slots": slots,
                "keys": keys,
                "s3_ms": ours.ms,
                "requests_per_batch": ours.per_batch(True),
                "requests_allowed": 3 * ours.channels_changed + 6,
                "by_kind": ours.kinds(),
            }
            for slots, keys, ours in cases
        ],
    }


def _inputs(place: Arena, name: str, size: StoreSize, keys: int) -> InputFiles:
    inputs = InputFiles(place.work / f"all-{name}")
    # Every key once, so that the state has its size from the first batch on.
    inputs.add(np.arange(keys, dtype=np.int64))
    for _ in range(size.warm + size.batches - 1):
        inputs.add(inputs.random_keys(size.rows, keys))
    return inputs


def _side(
    place: Arena, s3: S3Server | None, inputs: InputFiles, name: str, slots: int, size: StoreSize
) -> _StoreCosts:
    where = "local" if s3 is None else "s3"
    base = place.fresh(f"{where}-{name}") if s3 is None else f"{s3.url}/{name}"
    shown = InputFiles(place.work / f"in-{where}-{name}")
    shown.show(inputs.files[: size.warm])
    totals = braided.stream(shown.stream(place.spark)).groupBy("k").apply(Totals, TOTALS)
    writer = totals.writeStream.format("parquet").option("checkpointLocation", f"{base}/checkpoint")
    writer.option("braided.slots", slots).option("braided.channels", _CHANNELS)
    query = writer.start(f"{base}/out")
    try:
        query.processAllAvailable()
        before = 0 if s3 is None else len(s3.requests())
        shown.show(inputs.files[size.warm :])
        query.processAllAvailable()
        requests = [] if s3 is None else s3.requests(before)
        batches = with_data(query.recentProgress)[size.warm :]
    finally:
        query.stop()
    return _StoreCosts(
        ms=median([batch["durationMs"]["triggerExecution"] for batch in batches]),
        channels_changed=median(_changed(batches)),
        requests=requests,
        batches=len(batches),
        output=_newest(place, f"{base}/out"),
    )


def _changed(batches: Sequence[Any]) -> list[float]:
    """Channels that changed something; rows of random keys reach all of them."""
    return [
        float(sum(operator["channels"] for operator in batch["braided"]["operators"].values()))
        for batch in batches
    ]


def _newest(place: Arena, out: str) -> set[tuple[Any, ...]]:
    """The last row of each key."""
    rows = place.spark.read.parquet(out).groupBy("k").agg(F.max(F.struct("n", "s")).alias("last"))
    return {(row.k, row.last.n, row.last.s) for row in rows.collect()}

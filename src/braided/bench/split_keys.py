"""One key with most of the rows: an operator that can merge against one that can't.

8 channels, a millisecond of waiting a row, and a key that has 60 % of them. Who keeps its rows
together takes 0.6 ms per row of the batch, however many channels there are; dealt out to all of
them it is 0.125 ms. So `split_ratio`, the rows per second of whole batches with `merge` over those
without, is 4.8 at best. Both sides have the controller's defaults, and their state in the end is
compared with plain SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql import functions as F

import braided
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, run_all
from braided.bench.totals import same_rows
from braided.bench.waiting import MergingTotals, WaitingTotals

__all__ = ["SplitSize", "measure_split"]

CHANNELS = 8
HOT_SHARE = 0.6
KEYS = 10_000
_NAME = "totals"
_WARM = 8
"""Batches before those that count: the controller begins with the fourth."""


@dataclass(frozen=True)
class SplitSize:
    """Rows of a batch, of those before that do not count, and how many count."""

    rows: int
    warm_rows: int
    batches: int


def measure_split(place: Arena, size: SplitSize, progress: Progress) -> dict[str, Any]:
    made = InputFiles(place.work / "in-split")
    random = np.random.default_rng(5)
    for number in range(_WARM + size.batches):
        rows = size.warm_rows if number < _WARM else size.rows
        keys = random.integers(1, KEYS, rows)
        keys[random.random(rows) < HOT_SHARE] = 0
        made.add(keys)
    sides: dict[str, tuple[type[WaitingTotals], int, int]] = {
        "merge": (MergingTotals, _WARM, size.batches),
        "whole": (WaitingTotals, 3, 1),
    }
    rates, shares, identical = {}, 0, True
    for name, (operator, warm, count) in sides.items():
        inputs = InputFiles(place.work / f"in-split-{name}")
        inputs.show(made.files[:warm])
        inputs.show(made.files[_WARM : _WARM + count])
        checkpoint = place.fresh(f"checkpoint-{name}")
        rows_in = braided.stream(inputs.stream(place.spark)).groupBy("k")
        writer = rows_in.apply(operator, TOTALS).name(_NAME).writeStream.format("noop")
        writer.option("checkpointLocation", checkpoint).option("braided.channels", CHANNELS)
        query = writer.start()
        batches = run_all(query)
        pins = query.routing()[_NAME].pins
        shares = max([shares, *(len(pin.shares) for pin in pins)])
        state = braided.state(checkpoint, place.spark, _NAME)
        kept = state.select(F.col("key.k"), F.col("state.n"), F.col("state.s"))
        identical = identical and same_rows([inputs.totals(place.spark), kept])
        rates[name] = _rows_per_s(batches[warm:])
        progress(f"a key with {HOT_SHARE:.0%}: {name:<8}{rates[name]:>8,.0f} rows/s")
    return {
        "channels": CHANNELS,
        "hot_share": HOT_SHARE,
        "shares": shares,
        "merge_rows_per_s": round(rates["merge"]),
        "whole_rows_per_s": round(rates["whole"]),
        "split_ratio": round(rates["merge"] / rates["whole"], 2),
        "best_ratio": round(HOT_SHARE * CHANNELS, 2),
        "identical": identical,
    }


def _rows_per_s(batches: Sequence[Any]) -> float:
    rows = sum(batch["numInputRows"] for batch in batches)
    return float(1000 * rows / sum(batch["durationMs"]["triggerExecution"] for batch in batches))

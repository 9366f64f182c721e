"""Rows per second of a running count and sum per key: Operator against native transformWithState.

Both sides read the same files, keep count and sum of each key, and write one row per key and batch
to a Parquet sink. Rows per second come from the median `triggerExecution` of the batches after the
warm-up. The outputs are compared: native, Braided and plain SQL over the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import braided
from braided.bench.session import TOTALS, Arena, Inputs, Progress, Query, arena, median, run_all
from braided.bench.totals import (
    NativeTotals,
    RowTotals,
    Totals,
    last_per_key,
    need_native,
    published,
    same_rows,
)

__all__ = ["Case", "measure", "run"]

_FILES = 2
"""Files a batch, one for each core."""
_FIRST_ROWS = 1_000
"""A small first batch gets compilation and the start of Python workers over with, on both sides."""


@dataclass(frozen=True)
class Case:
    """How large the batches are, and how many each side runs; the first ones are not counted."""

    rows: int
    keys: int
    warm: int
    native: int
    braided: int
    rounds: int = 1


_FULL = (
    Case(rows=50_000, keys=10_000, warm=2, native=4, braided=6, rounds=2),
    Case(rows=500_000, keys=100_000, warm=2, native=2, braided=5, rounds=2),
)
# In the large case the native side starts its one measured batch (about a minute) with no state
# but that of the small batch, which is easier for it than what Braided is measured with.
_QUICK = (
    Case(rows=50_000, keys=10_000, warm=2, native=1, braided=2),
    Case(rows=500_000, keys=100_000, warm=1, native=1, braided=2),
)


@dataclass
class _Side:
    name: str
    start: Callable[[Arena, Inputs, str, str], Query]
    rates: list[float] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    need_native()
    with arena("stateful") as place:
        cases = [measure(place, case, progress) for case in (_QUICK if quick else _FULL)]
    return {"cases": cases, "quick": quick}


def measure(place: Arena, case: Case, progress: Progress) -> dict[str, Any]:
    """Runs one case on all sides and compares what they wrote."""
    name = f"{case.rows}-{case.keys}"
    counted = {"native": case.native, "braided": case.braided, "onrow": case.braided}
    inputs = _inputs(place, name, case, max(counted.values()))
    fewer = Inputs(place.work / f"in-{name}-native")
    fewer.show(inputs.files[: _FILES * (case.warm + case.native)])
    sides = [_Side("native", _native), _Side("braided", _braided), _Side("onrow", _onrow)]
    for turn in range(case.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            rows = fewer if side.name == "native" else inputs
            path = place.fresh(f"out-{side.name}-{name}-{turn}")
            query = side.start(place, rows, place.fresh("checkpoint"), path)
            batches = run_all(query)[case.warm :]
            rates = [_rows_per_s(batch) for batch in batches]
            progress(
                f"{case.rows:,} rows, {case.keys:,} keys: {side.name:<8}"
                f"{median(rates):>10,.0f} rows/s  ({len(rates)} batches)"
            )
            side.rates += rates
            side.outputs.append(path)
    native, ours, onrow = sides
    compared = case.warm + case.native
    frames = [
        last_per_key(published(place.spark, path, compared))
        for side in sides
        for path in side.outputs
    ]
    identical = same_rows([fewer.totals(place.spark), *frames])
    progress(f"{case.rows:,} rows, {case.keys:,} keys: identical: {identical}")
    return {
        "rows": case.rows,
        "keys": case.keys,
        "native_rows_per_s": round(median(native.rates)),
        "braided_rows_per_s": round(median(ours.rates)),
        "ratio": round(median(ours.rates) / median(native.rates), 2),
        "identical": identical,
        "onrow_rows_per_s": round(median(onrow.rates)),
        "onrow_ratio": round(median(onrow.rates) / median(native.rates), 2),
        "native_batches": len(native.rates),
        "braided_batches": len(ours.rates),
    }


def _rows_per_s(batch: Any) -> float:
    return float(1000 * batch["numInputRows"] / batch["durationMs"]["triggerExecution"])


def _inputs(place: Arena, name: str, case: Case, counted: int) -> Inputs:
    """The first batch, the rest of the warm-up, and what counts."""
    inputs = Inputs(place.work / f"in-{name}")
    sizes: Sequence[int] = [min(_FIRST_ROWS, case.rows), *[case.rows] * (case.warm - 1 + counted)]
    for rows in sizes:
        inputs.add(inputs.random_keys(rows, case.keys), _FILES)
    return inputs


def _native(place: Arena, inputs: Inputs, checkpoint: str, path: str) -> Query:
    rows = inputs.stream(place.spark, _FILES)
    totals = rows.groupBy("k").transformWithState(NativeTotals(), TOTALS, "Append", "None")
    writer = totals.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    return writer.start(path)


def _braided(place: Arena, inputs: Inputs, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(Totals, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)


def _onrow(place: Arena, inputs: Inputs, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(RowTotals, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)

"""Rows per second of a running count and sum per key: operators against native transformWithState.

All sides read the same files, keep count and sum of each key, and write one row per key and batch
to a Parquet sink. Rows per second come from the median `triggerExecution` of the batches after the
warm-up. The outputs are compared: native, Braided and plain SQL over the same files. Beside an
`Operator` with `onBatch` and one with `onRow`, a `ColumnOperator` is measured, and one that does
nothing, in as many batches: what is left is Spark's reading, shuffle and sort, and the way of the
rows to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import braided
from braided.bench.session import TOTALS, Arena, InputFiles, Progress, Query, arena, median, run_all
from braided.bench.totals import (
    ColumnTotals,
    NativeTotals,
    NoOperation,
    RowTotals,
    Totals,
    last_per_key,
    need_native,
    published,
    same_rows,
)

__all__ = ["Batches", "StatefulCase", "measure", "run"]

_FILES = 2
"""Files a batch, one for each core."""
_FIRST_ROWS = 1_000
"""A small first batch gets compilation and the start of Python workers over with, on both sides."""


class Batches(NamedTuple):
    """How many batches a side runs: those that are not counted, and those that are."""

    warm: int
    counted: int

    @property
    def all(self) -> int:
        return self.warm + self.counted


@dataclass(frozen=True)
class StatefulCase:
    """How large the batches are, and how many each side runs, the native one the fewest."""

    rows: int
    keys: int
    native: Batches
    braided: Batches
    onrow: Batches
    columnar: Batches
    rounds: int = 1


# The JVM goes on compiling for dozens of batches; a native batch is ten times as long.
_FULL = (
    StatefulCase(
        500_000,
        100_000,
        native=Batches(2, 2),
        braided=Batches(30, 8),
        onrow=Batches(10, 4),
        columnar=Batches(30, 8),
        rounds=2,
    ),
    StatefulCase(
        50_000,
        10_000,
        native=Batches(4, 4),
        braided=Batches(60, 20),
        onrow=Batches(20, 10),
        columnar=Batches(60, 20),
        rounds=2,
    ),
)
# The large case comes first and leaves warm JVMs and workers to the small one. Its one native batch
# starts with no state but that of the small first batch, which is easier than what Braided has.
_QUICK = (
    StatefulCase(
        500_000,
        100_000,
        native=Batches(1, 1),
        braided=Batches(2, 2),
        onrow=Batches(1, 1),
        columnar=Batches(2, 2),
    ),
    StatefulCase(
        50_000,
        10_000,
        native=Batches(1, 1),
        braided=Batches(4, 3),
        onrow=Batches(2, 2),
        columnar=Batches(4, 3),
    ),
)


@dataclass
class _StatefulSide:
    name: str
    start: Callable[[Arena, InputFiles, str, str], Query]
    batches: Batches
    inputs: InputFiles
    rates: list[float] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    need_native()
    with arena("stateful") as place:
        cases = [measure(place, case, progress) for case in (_QUICK if quick else _FULL)]
    return {"cases": sorted(cases, key=itemgetter("rows")), "quick": quick}


def measure(place: Arena, case: StatefulCase, progress: Progress) -> dict[str, Any]:
    """Runs one case on all sides and compares what they wrote."""
    name = f"{case.rows}-{case.keys}"
    inputs = _inputs(place, name, case)
    fewer = _first(place, f"{name}-native", inputs, case.native)
    fewest = _first(place, f"{name}-onrow", inputs, case.onrow)
    sides = [
        _StatefulSide("native", _native, case.native, fewer),
        _StatefulSide("braided", _braided, case.braided, inputs),
        _StatefulSide("onrow", _onrow, case.onrow, fewest),
        _StatefulSide("columnar", _columnar, case.columnar, inputs),
        _StatefulSide("noop", _noop, case.columnar, inputs),
    ]
    for turn in range(case.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            path = place.fresh(f"out-{side.name}-{name}-{turn}")
            query = side.start(place, side.inputs, place.fresh("checkpoint"), path)
            batches = run_all(query)[side.batches.warm :]
            rates = [_rows_per_s(batch) for batch in batches]
            progress(
                f"{case.rows:,} rows, {case.keys:,} keys: {side.name:<8}"
                f"{median(rates):>10,.0f} rows/s  ({len(rates)} batches)"
            )
            side.rates += rates
            side.outputs.append(path)
    native, ours, onrow, columnar, noop = sides
    frames = [
        last_per_key(published(place.spark, path, case.native.all))
        for side in sides
        if side is not noop
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
        "columnar_rows_per_s": round(median(columnar.rates)),
        "columnar_ratio": round(median(columnar.rates) / median(native.rates), 2),
        "columnar_to_braided": round(median(columnar.rates) / median(ours.rates), 2),
        "noop_rows_per_s": round(median(noop.rates)),
        "native_batches": len(native.rates),
        "braided_batches": len(ours.rates),
    }


def _rows_per_s(batch: Any) -> float:
    return float(1000 * batch["numInputRows"] / batch["durationMs"]["triggerExecution"])


def _inputs(place: Arena, name: str, case: StatefulCase) -> InputFiles:
    """The small first batch, then all others."""
    inputs = InputFiles(place.work / f"in-{name}")
    for rows in [min(_FIRST_ROWS, case.rows), *[case.rows] * (case.braided.all - 1)]:
        inputs.add(inputs.random_keys(rows, case.keys), _FILES)
    return inputs


def _first(place: Arena, name: str, inputs: InputFiles, batches: Batches) -> InputFiles:
    """The first of them alone."""
    fewer = InputFiles(place.work / f"in-{name}")
    fewer.show(inputs.files[: _FILES * batches.all])
    return fewer


def _native(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = inputs.stream(place.spark, _FILES)
    totals = rows.groupBy("k").transformWithState(NativeTotals(), TOTALS, "Append", "None")
    writer = totals.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    return writer.start(path)


def _braided(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(Totals, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)


def _onrow(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(RowTotals, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)


def _columnar(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(ColumnTotals, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)


def _noop(place: Arena, inputs: InputFiles, checkpoint: str, path: str) -> Query:
    rows = braided.stream(inputs.stream(place.spark, _FILES))
    writer = rows.groupBy("k").apply(NoOperation, TOTALS).writeStream.format("parquet")
    return writer.option("checkpointLocation", checkpoint).start(path)

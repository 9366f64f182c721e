"""Peak memory of driver and workers: 10 million keys, values of 1 MB, 1 million rows a batch.

What a task needs is bounded by a chunk of rows and by the keys that a batch touches. So each case
is run small and large in what memory must not grow with, and all else is the same: `keys` in the
keys that are stored, `values` in the keys stored with 1 MB each, `rows` in the rows of a batch, for
`onBatch` and for a columnar operator, spread over keys and all of one key. `growth` is the worker's
peak of the largest over that of the smallest. Keys that lie close share pages of the cache, of
which a batch copies those that it touches: up to one page for each key, but no more, so that `keys`
grows at first and then stays. `touched` shows what memory does grow with: the bytes of the keys
that a batch touches, whose state before and after it is held until it is written. `rebuilt` is the
largest number of keys once more, with a cache that has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql import Row

import braided
from braided.bench.peaks import Peaks, measured_peaks
from braided.bench.session import (
    TOTALS,
    Arena,
    InputFiles,
    KeyNumbers,
    Progress,
    arena,
    touched_keys,
)
from braided.bench.totals import ColumnTotals, Totals
from braided.operator.columns import ColumnOperator
from braided.operator.definition import Operator

__all__ = ["MemoryPlan", "measure", "run"]

_VALUE_BYTES = 1_000_000


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes small and large, and how many batches are looked at for each."""

    keys: Sequence[int] = (100_000, 1_000_000, 10_000_000)
    keys_touched: int = 10_000
    load_rows: int = 500_000
    large_values: Sequence[int] = (100, 500)
    """Keys that have a value of 1 MB."""
    values_touched: Sequence[int] = (20, 80)
    """The first for both numbers of keys, all of them at the largest."""
    rows: Sequence[int] = (100_000, 1_000_000)
    rows_keys: int = 10_000
    batches: int = 3


_FULL = MemoryPlan()
_QUICK = MemoryPlan(
    keys=(10_000, 100_000, 500_000),
    keys_touched=2_000,
    load_rows=250_000,
    large_values=(40, 160),
    values_touched=(20, 40),
    rows=(100_000, 500_000),
    batches=2,
)


class Blob(braided.Operator):
    """Keeps 1 MB for each key, another in every batch."""

    n: int = 0
    data: bytes = b""

    def onRow(self, row: Row) -> Iterator[tuple[int, int, float]]:
        self.n += 1
        self.data = np.random.default_rng((row.k, self.n)).bytes(_VALUE_BYTES)
        yield row.k, self.n, 0.0


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    with arena("memory") as place:
        return {**measure(place, _QUICK if quick else _FULL, progress), "quick": quick}


def measure(place: Arena, plan: MemoryPlan, progress: Progress) -> dict[str, Any]:
    by_keys, rebuilt = _by_keys(place, plan, progress)
    values, touched = _by_values(place, plan, progress)
    rows = [
        _by_rows(place, plan, name, keys, progress)
        for name in ("onBatch", "columnar")
        for keys in (plan.rows_keys, 1)
    ]
    return {
        "keys": by_keys,
        "rebuilt": rebuilt,
        "values": values,
        "touched": touched,
        "rows": rows,
        "growth": {
            "keys": _growth(by_keys),
            "rebuilt": _growth([by_keys[0], rebuilt]),
            "values": _growth(values),
            "rows": max(case["growth"] for case in rows),
        },
    }


def _by_keys(
    place: Arena, plan: MemoryPlan, progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Batches that touch as many keys, whatever is stored; then without a cache."""
    load = _Load(place, "keys", Totals, progress)
    random = np.random.default_rng(3)
    results, loaded = [], 0
    for keys in plan.keys:
        missing = np.arange(loaded, keys)
        load.take(np.array_split(missing, -(-len(missing) // plan.load_rows)))
        loaded = keys
        some = [touched_keys(random, plan.keys_touched, keys) for _ in range(plan.batches)]
        results.append({"keys": keys, **load.measured(f"{keys:,} keys", some)})
    load.restart_without_cache()
    some = [touched_keys(random, plan.keys_touched, loaded) for _ in range(plan.batches)]
    rebuilt = {"keys": loaded, **load.measured(f"{loaded:,} keys, no cache", some)}
    load.stop()
    return results, rebuilt


def _by_values(
    place: Arena, plan: MemoryPlan, progress: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Keys with a value of 1 MB each: how many are stored, and how many a batch touches."""
    load = _Load(place, "values", Blob, progress)
    first = plan.values_touched[0]
    values: list[dict[str, Any]] = []
    touched: list[dict[str, Any]] = []
    loaded = 0
    for keys in plan.large_values:
        missing = np.arange(loaded, keys)
        load.take(np.array_split(missing, -(-len(missing) // first)))
        loaded = keys
        largest = keys == plan.large_values[-1]
        for number in plan.values_touched if largest else [first]:
            some = [np.arange(number) * (keys // number) for _ in range(plan.batches)]
            peaks = load.measured(f"{keys:,} values of 1 MB, {number} touched", some)
            result = {"keys": keys, "keys_touched": number, "value_bytes": _VALUE_BYTES, **peaks}
            if number == first:
                values.append(result)
            if largest:
                touched.append(result)
    load.stop()
    return values, touched


def _by_rows(
    place: Arena, plan: MemoryPlan, kind: str, keys: int, progress: Progress
) -> dict[str, Any]:
    """Batches of few rows and of many, with the same keys."""
    operator: type[Operator] | type[ColumnOperator]
    operator = Totals if kind == "onBatch" else ColumnTotals
    load = _Load(place, f"rows-{kind}-{keys}", operator, progress)
    load.take([load.inputs.random_keys(max(plan.rows), keys)])  # starts workers, and adds the keys
    sizes = []
    for rows in plan.rows:
        some = [load.inputs.random_keys(rows, keys) for _ in range(plan.batches)]
        name = f"{rows:,} rows of {keys:,} keys, {kind}"
        sizes.append({"rows": rows, **load.measured(name, some)})
    load.stop()
    return {"operator": kind, "keys": keys, "growth": _growth(sizes), "sizes": sizes}


def _growth(results: Sequence[dict[str, Any]]) -> float:
    smallest, largest = (max(0.1, float(each["worker_mb"])) for each in (results[0], results[-1]))
    return round(largest / smallest, 3)


class _Load:
    """A query that is given batches, with the peaks of those that are measured."""

    def __init__(
        self,
        place: Arena,
        name: str,
        operator: type[Operator] | type[ColumnOperator],
        progress: Progress,
    ) -> None:
        self.inputs = InputFiles(place.work / f"in-{name}")
        self._place = place
        self._operator = operator
        self._checkpoint = place.fresh(f"checkpoint-{name}")
        self._progress = progress
        self._name = name
        self._query = self._start({})

    def _start(self, options: dict[str, str]) -> Any:
        rows = braided.stream(self.inputs.stream(self._place.spark))
        writer = rows.groupBy("k").apply(self._operator, TOTALS).writeStream.format("noop")
        return writer.options(checkpointLocation=self._checkpoint, **options).start()

    def take(self, batches: Sequence[KeyNumbers]) -> None:
        """A row for each of the keys of each batch."""
        for keys in batches:
            self.inputs.add(keys)
        self._query.processAllAvailable()

    def measured(self, name: str, batches: Sequence[KeyNumbers]) -> dict[str, float]:
        with measured_peaks(self._place.spark.sparkContext) as peaks:
            self.take(batches)
        self._progress(_line(name, peaks))
        return peaks.fields()

    def restart_without_cache(self) -> None:
        self.stop()
        empty = self._place.fresh(f"cache-{self._name}")
        self._query = self._start({"braided.cache.dir": empty})

    def stop(self) -> None:
        self._query.stop()


def _line(name: str, peaks: Peaks) -> str:
    return (
        f"{name:<44} worker {peaks.worker_mb:>6.0f} MB, driver {peaks.driver_mb:>5.0f} MB, "
        f"JVM {peaks.jvm_live_mb:>5.0f} MB in use"
    )

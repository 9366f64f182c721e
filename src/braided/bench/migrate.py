"""Five dataflows that move to half their executors and back, by each of three strategies.

The dataflows of Shukla and Simmhan (`workloads/dataflows.py`): tasks that wait 100 ms for a row, 8
rows a second, on a cluster of this machine. One query for each; it is migrated from four executors
to two and back by CCR, then by DCR, then by DSM, each time in the middle of a batch and when all is
as usual again (`--quick`: Linear only, in by CCR, back by DSM, in by DCR, and it is not waited for
all to be as usual). It goes to the two executors that came last, so that none of the strategies
finds executors that have done all of the work before. A migration that did not come to its end is a
case without figures, its `note` says why, and so is the next one if it has other executors to begin
with than it is about. `rows_lost` and `rows_repeated` are counted in the output: a row has to come
once by each way through the flow. `identical` also says that every task before the sink has counted
the rows of every key without a gap.

`paper` in the result says what can be compared with the paper, and what can't.

`ccr_fastest`: CCR's `restore_s` is the least for every dataflow and direction in which it and
another one were measured. `grid_in_restore_ratio`: the paper's 15 s over ours, for Grid, scale-in
and CCR; none with `--quick`. `stabilise_s` takes a minute of steady output to know, so it is waited
for with `stabilised` dataflows only.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import braided
from braided.bench.session import Progress, median, quiet_spark, with_data
from braided.bench.standalone_cluster import standalone_cluster
from braided.flow.route import slot_sql
from braided.spark.executors import Executor, SparkExecutors
from braided.workloads.dataflows import DATAFLOWS, ROWS, Dataflow

__all__ = ["MigrateSize", "measure", "run"]

_MANY, _FEW = 4, 2
_CASES = tuple((strategy, way) for strategy in ("ccr", "dcr", "dsm") for way in ("in", "out"))
_PER_S = 8
_WAIT_S = 0.1
_FILE_S = 0.5
_SHARE = 0.4
"""How much of the time channels wait for rows, at most; the rest is for what a batch takes."""
_USUAL = 1.5
_SETTLE_S = 60.0
_PATIENCE_S = 240.0
_LEAVING_S = 20.0
_LOOK_S = 0.1

_PAPER_RESTORE_S = {("grid", "in"): {"ccr": 15.0, "dcr": 41.0, "dsm": 91.0}}
_PAPER_DRAIN_S = {
    ("grid", "in"): {"ccr": 0.468, "dcr": 1.875},
    ("grid", "out"): {"ccr": 0.550, "dcr": 1.440},
    ("linear", "in"): {"ccr": 0.256, "dcr": 0.905},
}
_PAPER = {
    "comparable": (
        "restore_s is, there and here, from the request to the first output of what has moved",
        "drain_s is, there and here, how long it takes until nothing is in flight any more",
        "rows_lost and rows_repeated are of the output, there and here",
    ),
    "not_comparable": (
        "there no output comes before restore_s, and tasks start in JVMs that Storm starts again "
        "on other machines; here executors that stay keep their JVM, those that come are made "
        "ready first (prepare_s), batches go on until then, and pause_s is how long there is no "
        "output",
        "there a row flows on by itself, and 21 instances of tasks have 21 cores; here output "
        "comes when a batch ends, and the tasks of a batch run one after the other: a first "
        "output takes all of them, on the cores of one machine",
        "there a task has one thread for 8 rows a second; here all tasks share channels, and rows "
        "are dealt out to them in turn, as by Storm's shuffle",
        "for scale-out DSM has nobody to kill here: it is a move without preparation",
        "paper_restore_s and paper_drain_s are what the paper's text says in numbers; its other "
        "bars are drawn only",
        "Grid and Traffic are reconstructions with the paper's numbers of tasks and instances",
    ),
}
_METRICS = (
    "restore_s",
    "drain_s",
    "rebalance_s",
    "catch_up_s",
    "recovery_s",
    "stabilise_s",
    "prepare_s",
    "pause_s",
    "rows_redone",
)


@dataclass(frozen=True)
class MigrateSize:
    """Which cases there are, and how many batches there are before and after each."""

    dataflows: tuple[Dataflow, ...] = DATAFLOWS
    cases: tuple[tuple[str, str], ...] = _CASES
    """Strategies and directions, one after the other; the first is from four executors."""
    batches: int = 3
    stabilised: tuple[str, ...] = ("grid",)
    """Those with which a minute of steady output is waited for, as long as `stabilise_s`."""
    stabilise_s: float = 75.0
    is_rehearsed: bool = True
    """Whether all goes in and out once, by DCR, before anything is measured: else the first case
    finds executors that have had no more than their share of channels, and later ones such that
    were warmed for all of them."""
    wait_s: float = _WAIT_S
    settles: bool = True
    """Whether it is waited for batches to take as long as before, after each case."""


_FULL = MigrateSize()
_QUICK = MigrateSize(
    DATAFLOWS[:1],
    cases=(("ccr", "in"), ("dsm", "out"), ("dcr", "in")),
    batches=1,
    stabilised=(),
    is_rehearsed=False,
    settles=False,
)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = _QUICK if quick else _FULL
    cores = max(_channels(each, size) for each in size.dataflows) // _FEW
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-", ignore_cleanup_errors=True) as made,
        standalone_cluster(Path(made), workers=_MANY, cores=cores) as cluster,
        quiet_spark("braided bench migrate", Path(made), cluster.spark_settings) as spark,
    ):
        progress(f"{_MANY} workers at {cluster.url}, {cores} declared cores each")
        return {**measure(spark, Path(made), size, progress), "quick": quick}


def measure(
    spark: SparkSession, work: Path, size: MigrateSize, progress: Progress
) -> dict[str, Any]:
    """All cases, dataflow by dataflow, on a cluster of at least four workers."""
    runs = [_DataflowRun(spark, work, each, size).measure(progress) for each in size.dataflows]
    cases = [case for _, of_flow in runs for case in of_flow]
    restored = {(c["dag"], c["direction"], c["strategy"]): c["restore_s"] for c in cases}
    ours_s = restored.get(("grid", "in", "ccr"))
    paper_s = _PAPER_RESTORE_S["grid", "in"]["ccr"]
    return {
        "cases": cases,
        "paper": _PAPER,
        "dataflows": {flow["dag"]: flow for flow, _ in runs},
        "ccr_fastest": _is_fastest("ccr", restored),
        "grid_in_restore_ratio": round(paper_s / ours_s, 2) if ours_s else None,
        "rows_lost": sum(flow["rows_lost"] for flow, _ in runs),
        "rows_repeated": sum(flow["rows_repeated"] for flow, _ in runs),
        "identical": all(flow["identical"] for flow, _ in runs),
    }


def _is_fastest(strategy: str, restored: dict[tuple[str, str, str], float | None]) -> bool:
    """Whether it is, wherever it was tried; one that did not come to its end is not."""
    compared = [
        (restored[dag, direction, strategy], other_s)
        for (dag, direction, _), other_s in restored.items()
        if (dag, direction, strategy) in restored
    ]
    return all(
        own_s is not None and (other_s is None or own_s <= other_s) for own_s, other_s in compared
    )


def _channels(dataflow: Dataflow, size: MigrateSize) -> int:
    """As many as keep up, in equal parts on all executors."""
    busy = dataflow.instances * _PER_S * size.wait_s
    return _MANY * math.ceil(busy / _SHARE / _MANY)


class _RowFeed:
    """Writes rows at a steady pace, with ids from 0 and keys in turn."""

    def __init__(self, directory: Path, keys: list[int]) -> None:
        self.directory, self._keys = directory, keys
        self.written = 0
        self._is_over = threading.Event()
        self._failed: Exception | None = None
        directory.mkdir(parents=True)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write_all, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
        if self._failed is not None:
            raise self._failed

    def key_of(self, number: int) -> int:
        return self._keys[number % len(self._keys)]

    def _write_all(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._is_over.wait(max(0.0, due_s - time.monotonic())):
                self.write()
                due_s += _FILE_S
        except OSError as error:
            self._failed = error

    def write(self) -> None:
        """One file, of what comes in the time between two."""
        numbers = range(self.written, self.written + round(_PER_S * _FILE_S))
        text = "\n".join(json.dumps({"id": n, "k": self.key_of(n)}) for n in numbers)
        hidden = self.directory / f".{self.written:09}.json"
        hidden.write_text(text)
        os.rename(hidden, self.directory / hidden.name[1:])
        self.written = numbers.stop


@dataclass(frozen=True)
class _Case:
    """A migration that was to be made: the first row that counts as its own, and what it took."""

    strategy: str
    direction: str
    first_row: int
    metrics: Any | None
    """None if it did not come to its end."""
    note: str


@dataclass
class _Check:
    """What is wrong with an output, by the id of the input row."""

    lost: Counter[int] = field(default_factory=Counter)
    repeated: Counter[int] = field(default_factory=Counter)
    miscounted: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.repeated or self.miscounted)


class _DataflowRun:
    """One dataflow, from its first batch to its last."""

    def __init__(
        self, spark: SparkSession, work: Path, dataflow: Dataflow, size: MigrateSize
    ) -> None:
        self._spark, self._work, self._dataflow, self._size = spark, work, dataflow, size
        self._channels = _channels(dataflow, size)
        self._slots = 2 * self._channels
        self._rows = _RowFeed(work / f"{dataflow.name}-in", _key_of_each_slot(spark, self._slots))
        self._out = str(work / f"{dataflow.name}-out")

    def measure(self, progress: Progress) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What there is to say of the flow, and of each of its cases."""
        self._have_executors(_MANY)
        self._rows.write()
        self._start()
        cases = []
        try:
            self._await_batches(1)  # which starts the workers, so that nothing piles up meanwhile
            with self._rows.arriving():
                self._await_batches(1 + self._size.batches)
                usual_ms = median(self._batch_ms()[2:])
                progress(f"{self._dataflow.name:>10}: {usual_ms / 1000:.1f} s a batch")
                for direction in ("in", "out") if self._size.is_rehearsed else ():
                    self._case("dcr", direction)
                for strategy, direction in self._size.cases:
                    case = self._case(strategy, direction, waits=True)
                    cases.append(case)
                    progress(self._said(case))
            self._query.processAllAvailable()
        finally:
            self._query.stop()
        check = self._check()
        ends = [case.first_row for case in cases[1:]] + [self._rows.written]
        flow = {
            "dag": self._dataflow.name,
            "tasks": len(self._dataflow.tasks),
            "instances": self._dataflow.instances,
            "is_reconstruction": self._dataflow.is_reconstruction,
            "channels": self._channels,
            "batch_ms": round(usual_ms),
            "rows_in": self._rows.written,
            "rows_lost": check.lost.total(),
            "rows_repeated": check.repeated.total(),
            "identical": check.is_right,
        }
        return flow, [self._shown(*each, check) for each in zip(cases, ends, strict=True)]

    def _start(self) -> None:
        reader = self._spark.readStream.schema("id long, k long")
        source = reader.json(str(self._rows.directory)).selectExpr("id", "k", "'' path", "0L n")
        stream = self._dataflow.build(braided.stream(source), self._size.wait_s)
        writer = stream.writeStream.format("parquet")
        writer.option("checkpointLocation", str(self._work / f"{self._dataflow.name}-checkpoint"))
        writer.option("braided.slots", self._slots).option("braided.channels", self._channels)
        writer.option("braided.balance", "static")  # nobody moves slots but this benchmark
        self._query = writer.start(self._out)

    def _case(self, strategy: str, direction: str, waits: bool = False) -> _Case:
        """One migration, asked for in the middle of a batch, until all is as usual again."""
        first_row = self._rows.written
        before = self._batch_ms()[-self._size.batches :]
        needed = _MANY if direction == "in" else _FEW
        if not self._comes_to(needed):
            there = len(self._executors())
            note = f"not tried: there are {there} executors to begin with, not {needed}"
            return _Case(strategy, direction, first_row, None, note)
        self._await_batches(2)  # what is in flight from now on counts as of this case
        time.sleep(median(before) / 2000)
        wanted = self._newest_hosts() if direction == "in" else _MANY
        migration = self._query.migrate(strategy, wanted, timeout=_PATIENCE_S)
        if migration.outcome != "done":
            note = f"{migration.outcome}: {migration.why}"
            return _Case(strategy, direction, first_row, None, note)
        self._await(lambda: strategy == "dcr" or migration.metrics.catch_up_s is not None)
        self._await_batches(self._size.batches)
        if self._size.settles:
            self._settle(_USUAL * median(before))
        note = "stable output was not waited for"
        if waits and self._dataflow.name in self._size.stabilised:
            note = self._await_stable(migration)
        return _Case(strategy, direction, first_row, migration.metrics, note)

    def _settle(self, at_most_ms: float) -> None:
        """Until batches take as long as before, or are not going to."""
        end_s = time.monotonic() + _SETTLE_S
        while self._batch_ms()[-1] > at_most_ms and time.monotonic() < end_s:
            self._check_alive()
            time.sleep(_LOOK_S)

    def _await_stable(self, migration: Any) -> str:
        end_s = time.monotonic() + self._size.stabilise_s
        while migration.metrics.stabilise_s is None:
            self._check_alive()
            if time.monotonic() > end_s:
                return f"output was not stable within {self._size.stabilise_s:.0f} s"
            time.sleep(_LOOK_S)
        return ""

    def _said(self, case: _Case) -> str:
        metrics = case.metrics
        parts = [f"{self._dataflow.name:>10} {case.direction:<3} {case.strategy}"]
        if metrics is None:
            return ", ".join([*parts, case.note])
        for name in ("restore_s", "prepare_s", "drain_s", "rebalance_s", "pause_s"):
            value = getattr(metrics, name)
            parts.append(f"{name[:-2]} {'-' if value is None else f'{value:.1f}'}")
        return ", ".join(parts)

    def _shown(self, case: _Case, end: int, check: _Check) -> dict[str, Any]:
        shape = self._dataflow.name, case.direction
        own = range(case.first_row, end)
        return {
            "dag": self._dataflow.name,
            "direction": case.direction,
            "strategy": case.strategy,
            **{name: _rounded(getattr(case.metrics, name, None)) for name in _METRICS},
            "rows_lost": sum(check.lost[n] for n in own),
            "rows_repeated": sum(check.repeated[n] for n in own),
            "paper_restore_s": _PAPER_RESTORE_S.get(shape, {}).get(case.strategy),
            "paper_drain_s": _PAPER_DRAIN_S.get(shape, {}).get(case.strategy),
            "note": case.note,
        }

    def _check(self) -> _Check:
        """Compares the output with what a loop says, which knows nothing of Spark."""
        found = self._spark.read.schema(ROWS).parquet(self._out).collect()
        came = Counter((row.id, row.path) for row in found)
        paths = [path for task in self._dataflow.last for path in self._dataflow.paths(task)]
        check = _Check()
        for number in range(self._rows.written):
            for path in paths:
                times = came.pop((number, path), 0)
                if times != 1:
                    (check.lost if times == 0 else check.repeated)[number] += abs(times - 1)
        check.repeated.update({number: times for (number, _), times in came.items()})
        counts: dict[tuple[str, int], list[int]] = {}
        for row in found:
            counts.setdefault((row.path.rpartition("/")[2], row.k), []).append(row.n)
        check.miscounted = sum(
            sorted(each) != list(range(1, len(each) + 1)) for each in counts.values()
        )
        return check

    def _have_executors(self, count: int) -> None:
        SparkExecutors(self._spark).request(count)
        self._await(lambda: len(self._executors()) == count)

    def _comes_to(self, count: int) -> bool:
        """Whether there are so many executors, or are when those that leave have gone."""
        end_s = time.monotonic() + _LEAVING_S
        while len(self._executors()) != count and time.monotonic() < end_s:
            self._check_alive()
            time.sleep(_LOOK_S)
        return len(self._executors()) == count

    def _newest_hosts(self) -> list[str]:
        """Hosts that have never had more than their share, whichever migration this is."""
        executors = sorted(self._executors(), key=lambda each: int(each.id))
        return [executor.host for executor in executors[-_FEW:]]

    def _executors(self) -> list[Executor]:
        return SparkExecutors(self._spark).observed()

    def _batch_ms(self) -> list[float]:
        batches = with_data(self._query.recentProgress)
        return [float(each["durationMs"]["triggerExecution"]) for each in batches]

    def _newest_batch(self) -> int:
        progress = self._query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def _await_batches(self, more: int) -> None:
        last = self._newest_batch() + more
        self._await(lambda: self._newest_batch() >= last)

    def _await(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            self._check_alive()
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"{self._dataflow.name}: not within {_PATIENCE_S:.0f} s, with batches of "
                    f"{self._batch_ms()[-5:]} ms. Is this machine too busy to keep up?"
                )
            time.sleep(_LOOK_S)

    def _check_alive(self) -> None:
        query = getattr(self, "_query", None)
        if query is not None and not query.isActive:
            raise query.exception() or RuntimeError("the query ended by itself")


def _key_of_each_slot(spark: SparkSession, slots: int) -> list[int]:
    """A key in every slot, so that rows in turn are the same number for every channel."""
    keys = spark.range(32 * slots).select("id", F.expr(slot_sql(["id"], slots)).alias("s"))
    first = {row.s: row.id for row in keys.groupBy("s").agg(F.min("id").alias("id")).collect()}
    return [first[slot] for slot in range(slots)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)

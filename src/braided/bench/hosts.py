"""Four hosts: no placement, placement, placement with prefetch, while slots and executors change.

The same flow and load three times, in batches back to back: on two executors, then a rebalance,
then four executors, then two again. Work is waiting, so that hosts that share the cores of this
machine are hosts nevertheless. `moved_batch_ratio` is the batch in which slots changed hosts, after
the rebalance, over the median of those before. `grow_batch_ratio` is the slowest of the batches
from then on that channels are on new executors, over the same median, and `grow_start_ratio` the
slowest while Spark started those. They, `on_planned_host` and `bytes_caught_up_stable` are those of
placement with prefetch. `kill_batch_ratio` is of another run, of three channels on four hosts: the
slowest batch from the kill of an executor on, over the median before.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import braided
from braided.bench.session import TOTALS, InputFiles, KeyNumbers, Progress, median, with_data
from braided.bench.standalone_cluster import StandaloneCluster, standalone_cluster
from braided.flow.route import slot_sql
from braided.spark.executors import SparkExecutors
from braided.spark.quiet import quiet_jvm
from braided.spark.shuffle_bytes import ShuffleBytes

__all__ = ["HostsSize", "measure", "run"]

_SLOTS = 64
_FEW, _MANY = 2, 4
_ROW_S = 0.0002
_PATIENCE_S = 180.0
_LOOK_S = 0.05
_MODES: dict[str, dict[str, str]] = {
    "no_placement": {"braided.placement": "off"},
    "placement": {"braided.prefetch": "false", "braided.cluster.maxExecutors": str(_MANY)},
    "prefetch": {"braided.cluster.maxExecutors": str(_MANY)},
}
_OPERATOR = "totals"


@dataclass(frozen=True)
class HostsSize:
    """How much is run: so many batches in each phase, rows in each batch, and state."""

    keys: int = 20_000
    padding: int = 1_000
    rows: int = 5_000
    batches: int = 16
    warm: int = 8
    files: int = 400
    kills: bool = True
    brief: tuple[str, ...] = ()
    """Modes that leave out the executors that come and go."""


_FULL = HostsSize()
_QUICK = HostsSize(
    keys=3_000, rows=1_500, batches=4, warm=2, files=200, kills=False, brief=("placement",)
)


class PaddedTotals(braided.Operator):
    padding: braided.Param[int] = 0
    n: int = 0
    s: float = 0.0
    ballast: bytes = b""

    def onBatch(self, rows: pa.Table) -> list[tuple[int, int, float]]:
        time.sleep(_ROW_S * rows.num_rows)
        self.n += rows.num_rows
        self.s += float(np.sum(rows["v"].to_numpy()))
        if not self.ballast:
            self.ballast = np.random.default_rng(self.key.k).bytes(self.padding)
        return [(self.key.k, self.n, self.s)]


@dataclass(frozen=True)
class _ShownBatch:
    """One batch, as its progress shows it."""

    number: int
    rows: int
    ms: float
    epoch: int
    channels: int
    elsewhere: int
    caught_up: int
    bytes_caught_up: int
    bytes_prefetched: int
    """Brought by jobs of their own, since the batch before."""
    waited_ms: float

    @staticmethod
    def of(progress: Any) -> _ShownBatch:
        section = progress["braided"]
        operator = section["operators"][_OPERATOR]
        cluster = section.get("cluster", {})
        placed = cluster.get("operators", {}).get(_OPERATOR, {})
        return _ShownBatch(
            number=progress["batchId"],
            rows=operator["rows"],
            ms=float(progress["durationMs"]["triggerExecution"]),
            epoch=operator["epoch"],
            channels=operator["channels"],
            elsewhere=placed.get("elsewhere", 0),
            caught_up=operator["caughtUp"] + operator["rebuilt"],
            bytes_caught_up=operator["bytesCaughtUp"],
            bytes_prefetched=cluster.get("prefetched", {}).get("bytes", 0),
            waited_ms=operator["waitedMs"],
        )


@dataclass(frozen=True)
class _MarkedPhase:
    """What happened between two marks."""

    name: str
    batches: list[_ShownBatch]
    changed: int
    """The first batch by another table; that of none if nothing changed."""
    shuffle_local: int
    shuffle_remote: int
    executor_s: float

    @property
    def before_change(self) -> list[_ShownBatch]:
        return [batch for batch in self.batches if batch.number < self.changed]

    @property
    def after_change(self) -> list[_ShownBatch]:
        return [batch for batch in self.batches if batch.number >= self.changed]

    def show(self) -> dict[str, Any]:
        times = [batch.ms for batch in self.batches]
        return {
            "batches": len(times),
            "rows_per_s": round(1000 * sum(b.rows for b in self.batches) / sum(times)),
            "p50_ms": median(times),
            "p99_ms": float(np.percentile(times, 99)),
            "bytes_caught_up": sum(b.bytes_caught_up for b in self.batches),
            "bytes_prefetched": sum(b.bytes_prefetched for b in self.batches),
            "slots_caught_up": sum(b.caught_up for b in self.batches),
            "waited_ms": round(sum(b.waited_ms for b in self.batches), 1),
            "shuffle_bytes_local": self.shuffle_local,
            "shuffle_bytes_remote": self.shuffle_remote,
            "executor_seconds": round(self.executor_s, 1),
        }


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = _QUICK if quick else _FULL
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-", ignore_cleanup_errors=True) as made,
        standalone_cluster(Path(made), workers=_MANY) as cluster,
    ):
        progress(f"{_MANY} workers at {cluster.url}")
        spark = _session(cluster, Path(made))
        try:
            result = measure(spark, cluster, Path(made), size, progress)
        finally:
            spark.stop()
    return {**result, "quick": quick}


def _session(cluster: StandaloneCluster, work: Path) -> SparkSession:
    settings = {
        **cluster.spark_settings,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "2000",
        "spark.sql.streaming.fileSink.log.compactInterval": "100000",
    }
    with quiet_jvm(work / "spark.log"):
        spark = SparkSession.builder.appName("braided bench hosts").config(map={**settings})
        session = spark.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def measure(
    spark: SparkSession, cluster: StandaloneCluster, work: Path, size: HostsSize, progress: Progress
) -> dict[str, Any]:
    """All modes, one after the other, on the same input."""
    inputs = _inputs(spark, work / "all", size)
    modes, identical = {}, True
    for mode in [*_MODES, *(["kill"] if size.kills else [])]:
        phases, same = _ModeRun(spark, cluster, work, size, mode, inputs).measure(progress)
        modes[mode], identical = phases, identical and same
    ours = modes["prefetch"]
    stable, usual = ours["stable"].batches, median([b.ms for b in ours["stable"].batches])
    channels = sum(b.channels for phase in ours.values() for b in phase.batches)
    elsewhere = sum(b.elsewhere for phase in ours.values() for b in phase.batches)
    grown = ours["grow"].after_change
    return {
        "on_planned_host": round(1 - elsewhere / channels, 4),
        "bytes_caught_up_stable": sum(b.bytes_caught_up for b in stable),
        "bytes_caught_up_stable_no_placement": sum(
            b.bytes_caught_up for b in modes["no_placement"]["stable"].batches
        ),
        "moved_batch_ratio": round(ours["rebalance"].after_change[0].ms / usual, 3),
        "moved_batch_ratio_no_prefetch": _moved_ratio(modes["placement"]),
        "grow_batch_ratio": round(max(b.ms for b in grown) / usual, 3),
        "grow_start_ratio": round(max(b.ms for b in ours["grow"].before_change) / usual, 3),
        "kill_batch_ratio": _kill_ratio(modes["kill"]) if size.kills else None,
        "identical": identical,
        "modes": {
            mode: {name: phase.show() for name, phase in phases.items()}
            for mode, phases in modes.items()
        },
    }


def _moved_ratio(phases: dict[str, _MarkedPhase]) -> float:
    usual = median([batch.ms for batch in phases["stable"].batches])
    return round(phases["rebalance"].after_change[0].ms / usual, 3)


def _kill_ratio(phases: dict[str, _MarkedPhase]) -> float:
    usual = median([batch.ms for batch in phases["stable"].batches])
    return round(max(batch.ms for batch in phases["killed"].batches) / usual, 3)


def _inputs(spark: SparkSession, directory: Path, size: HostsSize) -> InputFiles:
    """All keys, then files of which the first of two channels has three quarters of the rows."""
    rows = spark.range(size.keys).selectExpr("id", f"{slot_sql(['id'], _SLOTS)} AS slot")
    keys, slots = (np.array(column) for column in zip(*rows.collect(), strict=True))
    random = np.random.default_rng(7)
    heavy, light = keys[slots % 2 == 0], keys[slots % 2 == 1]

    def some(among: KeyNumbers, count: int) -> KeyNumbers:
        return random.choice(among, count, replace=False)

    inputs = InputFiles(directory)
    inputs.add(np.arange(size.keys, dtype=np.int64))
    many = min(3 * size.rows // 4, heavy.size)
    for _ in range(size.files):
        inputs.add(np.concatenate([some(heavy, many), some(light, size.rows - many)]))
    return inputs


class _ModeRun:
    """One mode, from its first batch to its last."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: StandaloneCluster,
        work: Path,
        size: HostsSize,
        mode: str,
        inputs: InputFiles,
    ) -> None:
        self._spark, self._cluster, self._work, self._size = spark, cluster, work, size
        self._mode, self._inputs = mode, inputs
        self._executors = SparkExecutors(spark)
        self._shuffled = ShuffleBytes(spark)
        self._out = str(work / f"{mode}-out")
        self._held_s, self._looked_s = 0.0, time.monotonic()

    def measure(self, progress: Progress) -> tuple[dict[str, _MarkedPhase], bool]:
        kills = self._mode == "kill"
        channels = _MANY - 1 if kills else _FEW
        self._set_executors(_MANY if kills else _FEW)
        stream = braided.stream(self._inputs.stream(self._spark)).groupBy("k")
        totals = stream.apply(PaddedTotals.with_(padding=self._size.padding), TOTALS).name(
            _OPERATOR
        )
        writer = totals.writeStream.format("parquet").options(**_MODES.get(self._mode, {}))
        writer.option("checkpointLocation", str(self._work / f"{self._mode}-checkpoint"))
        writer.option("braided.slots", _SLOTS).option("braided.channels", channels)
        writer.option("braided.balance", "static")  # nobody moves slots but this benchmark
        self._query = writer.start(self._out)
        phases = {}
        try:
            self._await(lambda: len(self._batches()) > self._size.warm)
            for name, change in self._plan():
                phases[name] = self._phase(name, change)
                shown = phases[name].show()
                progress(
                    f"{self._mode:>13} {name:<10}{shown['p50_ms']:>8.0f} ms a batch, "
                    f"p99 {shown['p99_ms']:>6.0f}, {shown['bytes_caught_up']:>11,} bytes caught up"
                )
        finally:
            self._query.stop()
        return phases, self._is_right()

    def _plan(self) -> list[tuple[str, Callable[[], None] | None]]:
        if self._mode == "kill":
            return [("stable", None), ("killed", self._kill)]
        plan: list[tuple[str, Callable[[], None] | None]] = [
            ("stable", None),
            ("rebalance", self._query.rebalance),
        ]
        if self._mode in self._size.brief:
            return plan
        return [
            *plan,
            ("grow", lambda: self._rescale(_MANY)),
            ("shrink", lambda: self._rescale(_FEW)),
        ]

    def _phase(self, name: str, change: Callable[[], None] | None) -> _MarkedPhase:
        """Batches until the change is in effect, and so many more."""
        self._shuffled.since_last()
        begun, epoch = len(self._batches()), self._batches()[-1].epoch
        self._held_s, self._looked_s = 0.0, time.monotonic()
        if change is not None:
            change()

        def changed() -> int:
            """How many batches there were when the table changed."""
            later = [i for i, b in enumerate(self._batches()) if i >= begun and b.epoch > epoch]
            return later[0] if later else -1

        needs = change is not None
        if needs:
            self._await(lambda: changed() >= 0)
        first = changed() if needs else begun
        self._await(lambda: len(self._batches()) >= first + self._size.batches)
        read = self._shuffled.since_last()
        batches = self._batches()
        return _MarkedPhase(
            name,
            batches[begun : first + self._size.batches],
            batches[first].number if needs else 1 << 60,
            read.local,
            read.remote,
            self._held_s,
        )

    def _rescale(self, channels: int) -> None:
        if self._mode == "no_placement":  # which asks for no executors itself
            if channels > _FEW:
                self._set_executors(channels)
            self._query.rescale(channels)
            if channels == _FEW:
                self._await(lambda: self._batches()[-1].channels == channels)
                self._set_executors(channels)
        else:
            self._query.rescale(channels)

    def _kill(self) -> None:
        """Kills the executor of a channel."""
        self._cluster.kill_executor(self._query.routing()[_OPERATOR].hosts[0])

    def _set_executors(self, count: int) -> None:
        """Has the cluster come to so many executors."""
        there = self._executors.observed()
        if len(there) > count:
            self._executors.release([executor.id for executor in there[count:]], count)
        else:
            self._executors.request(count)
        self._await(lambda: len(self._executors.observed()) == count)

    def _batches(self) -> list[_ShownBatch]:
        progress = with_data(self._query.recentProgress)
        return [_ShownBatch.of(each) for each in progress if "braided" in each]

    def _await(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            self._hold()
            self._check()
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"{self._mode}: not within {_PATIENCE_S:.0f} s. Is this machine very busy, or "
                    f"were {self._size.files} files of input too few?"
                )
            time.sleep(_LOOK_S)

    def _hold(self) -> None:
        """Adds up the time that executors are held, by how many there are at each look."""
        now_s = time.monotonic()
        self._held_s += (now_s - self._looked_s) * len(self._executors.observed())
        self._looked_s = now_s

    def _check(self) -> None:
        query = getattr(self, "_query", None)
        if query is not None and not query.isActive:
            raise query.exception() or RuntimeError("the query ended by itself")

    def _is_right(self) -> bool:
        """Whether the output is what plain SQL says of the files that were read."""
        spark = self._spark
        found = spark.read.parquet(self._out).groupBy("k").agg(F.max(F.struct("n", "s")).alias("t"))
        ours = {(row.k, row.t.n, row.t.s) for row in found.collect()}
        batches = 1 + max(batch.number for batch in self._batches())
        read = InputFiles(self._work / f"{self._mode}-read")
        read.show(self._inputs.files[:batches])
        return ours == {tuple(row) for row in read.totals(spark).collect()}

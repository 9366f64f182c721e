"""Keys that occur together on one host or anywhere: locations and hashtags on four hosts.

Two operators in a row, on a cluster of this machine: one counts the rows of a location, the next
those of a hashtag. Most rows of a hashtag are from its home, and homes drift from one period to the
next (`sim/correlated.py`). The same rows go through four ways to say where a key is:

- `hash`: as ever;
- `offline`: by a table that was made of the first period (`braided plan`) and never changes;
- `online`: by tables that the running query makes of what it counts, one a period;
- `worst`: the offline table with each part of the hashtags on the host after that of its locations.

Rows carry `padding_kb` from one operator to the other, and Spark does not compress what it
shuffles, so that bytes are those of rows. The first period warms up: rows like its own come until
channels are on all hosts and, online, the query has just decided. So the periods that are measured
are those of the query (`in_phase` says whether they were, by what it decided and when). Each is
judged by its last third, when the table that was made of the period before is in effect: on rows
that came after it was made. `locality` is the share of rows whose two keys are on one host by the
tables in effect; bytes are what Spark says of the shuffle between the two operators. `imbalance` is
the rows of the busiest host over the mean, of either operator. `prediction_error` is the most that
a promised locality was off, of tables that were in effect when they were judged.

`hot_path_cost` is what counting pairs takes in a batch where nothing is counted and rows carry the
least, at the rate of `braided.locality.every` by default: the processor time of all tasks, as if
they counted one after the other, over the time of the batch. `hot_path_cost_busy` is the same over
the time that tasks are busy with it, of both operators; `..._in_runs` are both at the rate of the
online runs, in which more of the rows are counted. It is counted as there: in tables as small, in
tasks as short.

Goals, of which `missed` names those that a run did not reach:

- `locality_ratio`: online, at least 2.5 times as many rows stay as by hash;
- `remote_bytes_ratio`: with 12 KB, half of hash's bytes between hosts, or less;
- `imbalance`: at most 1.1, on the rows that come after each reconfiguration;
- `prediction_error`: at most 5 points; missed too where nothing was promised that could be judged;
- `hot_path_cost`: at most 2 % of a batch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import braided
from braided.bench.session import Progress, median, quiet_spark, with_data
from braided.bench.standalone_cluster import standalone_cluster
from braided.control.events import Located, read
from braided.control.routing.table import RoutingTable
from braided.flow.route import pin_hashes
from braided.plan_routing import plan_parts
from braided.sim.correlated import CorrelatedPairs
from braided.spark.executors import SparkExecutors
from braided.spark.shuffle_bytes import ReadBytes, ShuffleBytes
from braided.tasks.key_pairs import KeyPairs, PairSetting, PairTarget

__all__ = [
    "JudgedPeriod",
    "LocalitySize",
    "counting_us",
    "measure",
    "missed",
    "promise",
    "run",
]

_HOSTS = 4
_MODES = ("hash", "offline", "online", "worst")
_PLANNED = ("offline", "worst")
_SLOTS = 64
_KEYS = ("location", "hashtag")
_EVERY = 2
"""One row in so many is counted: a period has few rows here."""
_EVERY_BY_DEFAULT = PairSetting.every
_INPUT = "location long, hashtag long"
_PATIENCE_S = 240.0
_LOOK_S = 0.1
_WARM_PERIODS = 3
"""The most that are taken to warm up."""

_PAIRS = CorrelatedPairs(
    locations=600, hashtags=3_000, hashtag_head=40.0, affinity=0.75, stable=0.7
)

_AT_LEAST = {"locality_ratio": 2.5}
_AT_MOST = {
    "remote_bytes_ratio": 0.5,
    "imbalance": 1.1,
    "prediction_error": 0.05,
    "hot_path_cost": 0.02,
}

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LocalitySize:
    """How much is run: periods of so many batches, of so many rows."""

    paddings_kb: tuple[int, ...] = (0, 4, 12)
    modes: tuple[str, ...] = _MODES
    periods: int = 4
    batches: int = 12
    rows: int = 2_000
    pairs: CorrelatedPairs = _PAIRS

    @property
    def warm(self) -> int:
        """Files of the first period: as many as warming up may take, all different."""
        return 1 + _WARM_PERIODS * self.batches

    @property
    def measured(self) -> range:
        """The periods after the one that warms up."""
        return range(1, self.periods)

    def end(self, period: int) -> int:
        """The file after those of a period."""
        return self.warm + period * self.batches

    def judged(self, period: int) -> range:
        """The files that a period is judged by; the last one has the next decision behind it."""
        last = self.end(period) - 1
        return range(last - self.batches // 3, last)


_FULL = LocalitySize()
_QUICK = LocalitySize(paddings_kb=(12,), modes=("hash", "online"), periods=3, batches=9, rows=1_500)


class ByLocation(braided.Operator):
    """Counts the rows of a location, and passes them on with what they carry."""

    padding: braided.Param[int] = 0
    n: int = 0

    def onBatch(self, rows: pa.Table) -> list[pa.Table]:
        self.n += rows.num_rows
        counted = pa.array(np.full(rows.num_rows, self.n))
        pad = pa.array([_pad(self.padding)] * rows.num_rows, pa.binary())
        return [pa.table({"hashtag": rows["hashtag"], "of_location": counted, "pad": pad})]


class ByHashtag(braided.Operator):
    """Counts the rows of a hashtag."""

    n: int = 0

    def onBatch(self, rows: pa.Table) -> list[tuple[int, int]]:
        self.n += rows.num_rows
        return [(self.key.hashtag, self.n)]


def _pad(size: int) -> bytes:
    return b"." * size


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    size = _QUICK if quick else _FULL
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-", ignore_cleanup_errors=True) as made,
        standalone_cluster(Path(made), workers=_HOSTS) as cluster,
        quiet_spark(
            "braided bench locality",
            Path(made),
            {**cluster.spark_settings, "spark.shuffle.compress": "false"},
        ) as spark,
    ):
        progress(f"{_HOSTS} workers at {cluster.url}")
        return {**measure(spark, Path(made), size, progress), "quick": quick}


def measure(
    spark: SparkSession, work: Path, size: LocalitySize, progress: Progress
) -> dict[str, Any]:
    """All modes with all paddings, on the same rows."""
    rows = _PeriodRows(spark, work / "in", size)
    rows.write_plans(work)
    cases = []
    for padding_kb in size.paddings_kb:
        for mode in size.modes:
            case = _PaddedRun(spark, work, rows, mode, padding_kb).measure()
            progress(
                f"{mode:>8}, {padding_kb:>2} KB: {case['locality']:.0%} of rows stay, "
                f"{case['remote_mb']:,.1f} MB between hosts, {case['rows_per_s']:,} rows/s"
            )
            cases.append(case)
    last = size.paddings_kb[-1]
    by_mode = {case["mode"]: case for case in cases if case["padding_kb"] == last}
    plain, ours = by_mode["hash"], by_mode["online"]
    counted_us, in_runs_us = counting_us(size), counting_us(size, _EVERY)
    batch_us, busy_us = cases[0]["batch_us_per_row"], cases[0]["busy_us_per_row"]
    promises = [p for case in cases for p in case["promises"] if p["came"] is not None]
    found = {
        "locality_hash": plain["locality"],
        "locality_online": ours["locality"],
        "locality_ratio": round(ours["locality"] / plain["locality"], 2),
        "remote_bytes_ratio": round(ours["remote_mb"] / plain["remote_mb"], 3),
        "imbalance": max(case["imbalance"] for case in cases if case["mode"] == "online"),
        "imbalance_hash": plain["imbalance"],
        "prediction_error": max((abs(p["expected"] - p["came"]) for p in promises), default=None),
        "hot_path_cost": round(counted_us / batch_us, 4),
        "hot_path_cost_busy": round(counted_us / busy_us, 4),
        "hot_path_cost_in_runs": round(in_runs_us / batch_us, 4),
        "hot_path_cost_busy_in_runs": round(in_runs_us / busy_us, 4),
        "counting_us_per_row": round(counted_us, 3),
        "counting_us_per_row_in_runs": round(in_runs_us, 3),
        "in_phase": all(case["in_phase"] for case in cases),
        "identical": all(case["identical"] for case in cases),
    }
    return {**found, "missed": missed(found), "cases": cases}


def missed(found: Mapping[str, Any]) -> list[str]:
    """The goals that what was found does not reach; what is not known reaches none."""
    known = {name: found[name] for name in (*_AT_LEAST, *_AT_MOST) if found[name] is not None}
    reached = {name for name, least in _AT_LEAST.items() if known.get(name, -np.inf) >= least}
    reached |= {name for name, most in _AT_MOST.items() if known.get(name, np.inf) <= most}
    return [name for name in (*_AT_LEAST, *_AT_MOST) if name not in reached]


class _PeriodRows:
    """The rows of all periods, in a file for each batch, and the hashes of their keys."""

    def __init__(self, spark: SparkSession, directory: Path, size: LocalitySize) -> None:
        self.spark, self.directory, self.size = spark, directory, size
        directory.mkdir(parents=True)
        periods = [
            size.pairs.period(n, (size.batches if n else size.warm) * size.rows)
            for n in range(size.periods)
        ]
        self.keys = tuple(np.concatenate(each) for each in zip(*periods, strict=True))
        for number in range(size.end(size.periods - 1)):
            self._write(number)

    def of(self, first: int, last: int) -> tuple[_Numbers, _Numbers]:
        """Both keys of the rows of some batches, from the first to before the last."""
        here, there = (each[first * self.size.rows : last * self.size.rows] for each in self.keys)
        return here, there

    def frame(self, files: int) -> DataFrame:
        """What the first files have."""
        paths = [str(self.path(number)) for number in range(files)]
        return self.spark.read.schema(_INPUT).parquet(*paths)

    def plans(self, mode: str) -> Mapping[str, str]:
        return {"braided.routing": str(self.directory.parent / mode)} if mode in _PLANNED else {}

    def write_plans(self, work: Path) -> None:
        """The tables that are made of the first period alone, and the contrary of one."""
        if not set(_PLANNED) & set(self.size.modes):
            return
        keys, names = [(key,) for key in _KEYS], [f"by_{key}" for key in _KEYS]
        tables, _ = plan_parts(self.frame(self.size.batches), keys, names, _HOSTS)
        for mode in _PLANNED:
            (work / mode).mkdir()
            for name, table in tables.items():
                if mode == "worst" and name == names[1]:
                    table = _one_further(table)
                pq.write_table(table, work / mode / f"{name}.parquet")

    @cached_property
    def hashes(self) -> tuple[dict[int, tuple[int, int]], ...]:
        """Both hashes of every key."""
        found = []
        for keys in self.keys:
            known = self.spark.createDataFrame(pa.table({"k": np.unique(keys)}), "k long")
            rows = known.selectExpr("k", *pin_hashes(["k"])).collect()
            found.append({row[0]: (row[1], row[2]) for row in rows})
        return tuple(found)

    def path(self, number: int) -> Path:
        return self.directory / f"{number:06}.parquet"

    def _write(self, number: int) -> None:
        here, there = self.of(number, number + 1)
        pq.write_table(pa.table(dict(zip(_KEYS, (here, there), strict=True))), self.path(number))


def _one_further(table: pa.Table) -> pa.Table:
    """Each part on the host after its own."""
    at = table.schema.get_field_index("__part")
    part = pa.array((table.column(at).to_numpy() + 1) % _HOSTS, pa.int32())
    metadata = table.schema.metadata
    return table.set_column(at, "__part", part).replace_schema_metadata(metadata)


@dataclass(frozen=True)
class JudgedPeriod:
    """What a period came to."""

    batch: int
    """The last one before the tables were looked at."""
    tables: Mapping[str, RoutingTable]
    read: ReadBytes
    locality: float
    imbalance: float


class _PaddedRun:
    """One mode with one padding, from its first batch to its last."""

    def __init__(
        self, spark: SparkSession, work: Path, rows: _PeriodRows, mode: str, padding_kb: int
    ) -> None:
        self._spark, self._rows, self._size = spark, rows, rows.size
        self._mode, self._padding_kb = mode, padding_kb
        self._home = work / f"{mode}-{padding_kb}"
        self._input = self._home / "in"
        self._input.mkdir(parents=True)
        self._warm = 0
        """Files that have warmed up."""
        self._shown = self._size.warm
        """Up to here all that are left for the periods to measure are shown."""
        self._query: Any = None
        self._shuffled = ShuffleBytes(spark)

    def measure(self) -> dict[str, Any]:
        executors = SparkExecutors(self._spark)
        executors.request(_HOSTS)
        self._await(lambda: len({each.host for each in executors.observed()}) == _HOSTS)
        self._start()
        found: list[JudgedPeriod] = []
        try:
            self._warm_up()
            for period in self._size.measured:
                judged = self._size.judged(period)
                self._process(judged.start)
                self._shuffled.since_last()
                # Tables that wait for state to come are in effect by now, and none is due yet.
                batch, tables = self._all_batches()[-1]["batchId"], dict(self._query.routing())
                self._process(judged.stop)
                read = self._shuffled.since_last()
                locality, imbalance = self._judge(tables, judged)
                found.append(JudgedPeriod(batch, tables, read, locality, imbalance))
                self._process(self._size.end(period))
        finally:
            self._query.stop()
        return self._case(found)

    def _start(self) -> None:
        reader = self._spark.readStream.schema(_INPUT).option("maxFilesPerTrigger", 1)
        rows = braided.stream(reader.parquet(str(self._input)))
        operator = ByLocation.with_(padding=1024 * self._padding_kb)
        located = rows.groupBy("location").apply(
            operator, "hashtag long, of_location long, pad binary"
        )
        tagged = located.name("by_location").groupBy("hashtag").apply(ByHashtag, "k long, n long")
        writer = tagged.name("by_hashtag").writeStream.format("parquet")
        writer.option("checkpointLocation", str(self._home / "checkpoint"))
        writer.option("braided.slots", _SLOTS).option("braided.channels", _HOSTS)
        if self._mode == "online":
            writer.option("braided.locality", "on").option("braided.locality.every", _EVERY)
            writer.option("braided.locality.period", self._size.batches)
        self._query = writer.options(**self._rows.plans(self._mode)).start(str(self._home / "out"))

    def _warm_up(self) -> None:
        """Batches of the first period: one that is cold, of which the controller gets no sample,
        and then as many as it takes until a period ends with channels on all hosts, as they were
        for half of it. Hosts that have just come are warmed first.
        """
        period, whole = self._size.batches, 0
        while self._warm < self._size.warm:
            self._show(self._warm)
            self._warm += 1
            self._await(lambda: len(self._all_batches()) >= self._warm)
            counted = self._counted() if self._mode == "online" and self._warm > 1 else None
            tables = self._query.routing().values()
            is_whole = all(len(set(table.hosts)) == _HOSTS for table in tables)
            whole = whole + 1 if is_whole else 0
            is_settled = self._warm > period and 2 * whole >= period
            if is_settled and counted in (None, 0):
                return

    def _counted(self) -> int:
        """How many batches of its period the query has counted by now."""

        def said() -> Any:
            return self._all_batches()[-1]["braided"]["control"]

        # It says so after the batch, in a thread of its own.
        self._await(lambda: "locality" in said())
        return int(said()["locality"]["batches"])

    def _process(self, files: int) -> None:
        """Shows files one after the other, each when the one before is done: what the controller
        says of a batch is then there for the next.
        """
        while self._shown < files:
            self._show(self._shown)
            self._shown += 1
            self._await(lambda: len(self._batches()) >= self._shown - self._size.warm)

    def _show(self, number: int) -> None:
        file = self._rows.path(number)
        (self._input / file.name).hardlink_to(file)

    def _batches(self) -> list[Any]:
        """Those that count."""
        return self._all_batches()[self._warm :]

    def _all_batches(self) -> list[Any]:
        return [each for each in with_data(self._query.recentProgress) if "braided" in each]

    def _await(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            if self._query is not None and not self._query.isActive:
                raise self._query.exception() or RuntimeError("the query ended by itself")
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self._mode}: no batch within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _case(self, found: Sequence[JudgedPeriod]) -> dict[str, Any]:
        batches, first = self._batches(), self._size.warm
        measured = [batches[n - first] for p in self._size.measured for n in self._size.judged(p)]
        times_ms = [float(each["durationMs"]["triggerExecution"]) for each in measured]
        operators = [each["braided"]["operators"].values() for each in measured]
        busy_ms = [sum(sum(each["busyMs"]) for each in both) for both in operators]
        located = self._located()
        last = self._all_batches()[self._warm - 1 :: self._size.batches]
        return {
            "mode": self._mode,
            "padding_kb": self._padding_kb,
            "locality": round(float(np.mean([each.locality for each in found])), 4),
            "locality_by_period": [round(each.locality, 4) for each in found],
            "imbalance": round(max(each.imbalance for each in found), 3),
            "local_mb": round(sum(each.read.last_local for each in found) / 1e6, 2),
            "remote_mb": round(sum(each.read.last_remote for each in found) / 1e6, 2),
            "rows_per_s": round(1000 * self._size.rows / median(times_ms)),
            "batch_us_per_row": round(1000 * median(times_ms) / self._size.rows, 2),
            "busy_us_per_row": round(1000 * median(busy_ms) / self._size.rows, 2),
            "channels_side_by_side": _side_by_side(found[-1].tables),
            "promises": [promise(each, found) for each in located],
            "in_phase": {each.batch for each in located} <= {each["batchId"] for each in last},
            "identical": self._is_right(),
        }

    def _judge(self, tables: Mapping[str, RoutingTable], batches: range) -> tuple[float, float]:
        """The share of rows that stay on their host, and the busiest host's over the mean."""
        at = []
        for number, name in enumerate(("by_location", "by_hashtag")):
            keys = self._rows.of(batches.start, batches.stop)[number]
            at.append(_hosts_of(tables[name], keys, self._rows.hashes[number]))
        loads = [np.unique(each, return_counts=True)[1] for each in at]
        imbalance = max(float(load.max()) * _HOSTS / load.sum() for load in loads)
        return float((at[0] == at[1]).mean()), imbalance

    def _located(self) -> list[Located]:
        """What the query decided from the end of the warm-up on, by its log."""
        if self._mode != "online":
            return []
        warmed = self._all_batches()[self._warm - 1]["batchId"]
        with open(self._home / "checkpoint/braided/events.jsonl", "rb") as lines:
            events = list(read(lines))
        return [each for each in events if isinstance(each, Located) and each.batch >= warmed]

    def _is_right(self) -> bool:
        """Whether the last count of every hashtag is how often it came."""
        rows = self._spark.read.parquet(str(self._home / "out")).groupBy("k").agg(F.max("n"))
        shown = [(0, self._warm), (self._size.warm, self._shown)]
        every = np.concatenate([self._rows.of(*files)[1] for files in shown])
        tags, counts = np.unique(every, return_counts=True)
        expected = dict(zip(tags.tolist(), counts.tolist(), strict=True))
        return {row[0]: row[1] for row in rows.collect()} == expected


def promise(event: Located, found: Sequence[JudgedPeriod]) -> dict[str, Any]:
    """What was expected of a table, and what came on the rows of the first period that was judged
    after it, where that table was in effect by then.
    """
    after = next((each for each in found if each.batch > event.batch), None)
    # A table has as many keys as were asked for, or it is another one.
    is_it = after is not None and event.entries == sum(
        len(table.assigned) for table in after.tables.values()
    )
    came = after.locality if after is not None and is_it and not event.held else None
    return {
        "batch": event.batch,
        "expected": round(event.expected, 4),
        "came": None if came is None else round(came, 4),
        "moved_keys": event.moved_keys,
        "why": event.held or event.reason,
    }


def _hosts_of(
    table: RoutingTable, keys: _Numbers, hashes: Mapping[int, tuple[int, int]]
) -> npt.NDArray[np.str_]:
    """The host of each of the keys."""
    known, number = np.unique(keys, return_inverse=True)
    both = np.array([hashes[key] for key in known.tolist()], np.int64)
    slots = both[:, 0] % table.slots.size
    at = table.assigned.positions(both[:, 0], both[:, 1])
    if table.assigned:
        slots = np.where(at >= 0, table.assigned.slots[at], slots)
    for pin in table.pins:
        slots[(both[:, 0] == pin.hash) & (both[:, 1] == pin.check)] = pin.slot
    return np.array(table.hosts)[table.slots[slots]][number]


def _side_by_side(tables: Mapping[str, RoutingTable]) -> float:
    """The share of channels that are on the host of the other operator's of the same number. Tables
    that are made beforehand count on it, and say nothing where hosts came one after the other.
    """
    here, there = (table.hosts for table in tables.values())
    return float(np.mean([one == other for one, other in zip(here, there, strict=True)]))


def counting_us(size: LocalitySize, every: int = _EVERY_BY_DEFAULT) -> float:
    """What counting pairs takes for a row of the online runs, in microseconds of a processor, where
    one in so many is counted.
    """
    here, there = size.pairs.period(0, size.batches * size.rows)
    schema = pa.schema([("hashtag", pa.int64())])
    setting = PairSetting((PairTarget("by_hashtag", (0,), schema),), every=every)
    taken_s = []
    for batch in range(size.batches):
        rows = slice(batch * size.rows, (batch + 1) * size.rows)
        tasks = [
            _tables(here[rows][of_task], there[rows][of_task], schema)
            for of_task in (here[rows] % _HOSTS == host for host in range(_HOSTS))
        ]
        begun_s = time.thread_time()
        for tables in tasks:
            pairs, position = KeyPairs(setting, batch), 0
            for key, table in tables:
                pairs.opened(key, position)
                pairs.emitted(table, position)
                position += table.num_rows
            pairs.reports()
        taken_s.append(time.thread_time() - begun_s)
    return 1e6 * median(taken_s) / size.rows


def _tables(
    here: _Numbers, there: _Numbers, schema: pa.Schema
) -> list[tuple[bytes, pa.RecordBatch]]:
    """What the first operator gives out in one task: a table for each key."""
    order = np.argsort(here, kind="stable")
    chunk = pa.record_batch([pa.array(there[order])], schema=schema)
    keys, first, rows = np.unique(here[order], return_index=True, return_counts=True)
    return [
        (key.to_bytes(8, "big"), chunk.slice(begin, count))
        for key, begin, count in zip(keys.tolist(), first.tolist(), rows.tolist(), strict=True)
    ]

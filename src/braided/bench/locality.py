"""Keys that occur together on one host or anywhere: locations and hashtags on four hosts.

Two operators in a row, on a cluster of this machine: one counts the rows of a location, the next
those of a hashtag. Most rows of a hashtag are from its home, and homes drift from one period to the
next (`sim/correlated.py`). The same rows go through four ways to say where a key is:

- `hash`: as ever;
- `offline`: by a table that was made of the first period (`braided plan`) and never changes;
- `online`: by tables that the running query makes of what it counts, one a period;
- `worst`: the offline table with each part of the hashtags on the host after that of its locations.

Rows carry `padding_kb` from one operator to the other, and Spark does not compress what it
shuffles, so that bytes are those of rows. A period is judged by its last third, when the table
that was made of the period before is in effect: on rows that came after it was made. `locality` is
the share of rows whose two keys are on one host by the tables in effect; bytes are what Spark
says of the shuffle between the two operators. `imbalance` is the rows of the busiest host over
the mean, of either operator. `prediction_error` is the most that a promised locality was off.
`hot_path_cost` is what counting pairs takes, of the time that the first operator needs for a row
with the least padding.
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

__all__ = ["LocalitySize", "measure", "run"]

_HOSTS = 4
_MODES = ("hash", "offline", "online", "worst")
_PLANNED = ("offline", "worst")
_SLOTS = 64
_KEYS = ("location", "hashtag")
_INPUT = "location long, hashtag long"
_PATIENCE_S = 240.0
_LOOK_S = 0.1
_WARM_MOST = 10

_PAIRS = CorrelatedPairs(
    locations=600, hashtags=3_000, hashtag_head=40.0, affinity=0.75, stable=0.7
)

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
    def files(self) -> int:
        return self.periods * self.batches

    def judged(self, period: int) -> range:
        """The batches that a period is judged by; the last one has the next decision behind it."""
        last = (period + 1) * self.batches - 1
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
    rows = _Rows(spark, work / "in", size)
    rows.write_plans(work)
    cases = []
    for padding_kb in size.paddings_kb:
        for mode in size.modes:
            case = _Run(spark, work, rows, mode, padding_kb).measure()
            progress(
                f"{mode:>8}, {padding_kb:>2} KB: {case['locality']:.0%} of rows stay, "
                f"{case['remote_mb']:,.1f} MB between hosts, {case['rows_per_s']:,} rows/s"
            )
            cases.append(case)
    last = size.paddings_kb[-1]
    by_mode = {case["mode"]: case for case in cases if case["padding_kb"] == last}
    plain, ours = by_mode["hash"], by_mode["online"]
    counting_us = _counting_us()
    promises = [p for case in cases for p in case["promises"] if p["came"] is not None]
    return {
        "locality_hash": plain["locality"],
        "locality_online": ours["locality"],
        "locality_ratio": round(ours["locality"] / plain["locality"], 2),
        "remote_bytes_ratio": round(ours["remote_mb"] / plain["remote_mb"], 3),
        "imbalance": max(case["imbalance"] for case in cases if case["mode"] == "online"),
        "imbalance_hash": plain["imbalance"],
        "prediction_error": max((abs(p["expected"] - p["came"]) for p in promises), default=None),
        "hot_path_cost": round(counting_us / cases[0]["busy_us_per_row"], 4),
        "counting_us_per_row": round(counting_us, 3),
        "identical": all(case["identical"] for case in cases),
        "cases": cases,
    }


class _Rows:
    """The rows of all periods, in a file for each batch, and the hashes of their keys."""

    def __init__(self, spark: SparkSession, directory: Path, size: LocalitySize) -> None:
        self.spark, self.directory, self.size = spark, directory, size
        directory.mkdir(parents=True)
        periods = [size.pairs.period(n, size.batches * size.rows) for n in range(size.periods)]
        self.keys = tuple(np.concatenate(each) for each in zip(*periods, strict=True))
        for number in range(size.files):
            self._write(number)

    def of(self, first: int, last: int) -> tuple[_Numbers, _Numbers]:
        """Both keys of the rows of some batches, from the first to before the last."""
        here, there = (each[first * self.size.rows : last * self.size.rows] for each in self.keys)
        return here, there

    def frame(self, files: int) -> DataFrame:
        """What the first files have."""
        paths = [str(self._path(number)) for number in range(files)]
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

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:06}.parquet"

    def _write(self, number: int) -> None:
        here, there = self.of(number, number + 1)
        pq.write_table(pa.table(dict(zip(_KEYS, (here, there), strict=True))), self._path(number))


def _one_further(table: pa.Table) -> pa.Table:
    """Each part on the host after its own."""
    at = table.schema.get_field_index("__part")
    part = pa.array((table.column(at).to_numpy() + 1) % _HOSTS, pa.int32())
    metadata = table.schema.metadata
    return table.set_column(at, "__part", part).replace_schema_metadata(metadata)


class _Run:
    """One mode with one padding, from its first batch to its last."""

    def __init__(
        self, spark: SparkSession, work: Path, rows: _Rows, mode: str, padding_kb: int
    ) -> None:
        self._spark, self._rows, self._size = spark, rows, rows.size
        self._mode, self._padding_kb = mode, padding_kb
        self._home = work / f"{mode}-{padding_kb}"
        self._input = self._home / "in"
        self._input.mkdir(parents=True)
        self._shown = self._warm = 0
        self._query: Any = None
        self._shuffled = ShuffleBytes(spark)

    def measure(self) -> dict[str, Any]:
        executors = SparkExecutors(self._spark)
        executors.request(_HOSTS)
        self._await(lambda: len({each.host for each in executors.observed()}) == _HOSTS)
        self._start()
        self._warm_up()
        read: list[ReadBytes] = []
        tables = []
        try:
            for period in range(self._size.periods):
                judged = self._size.judged(period)
                self._process(judged.start)
                self._shuffled.since_last()
                # Tables that wait for state to come are in effect by now, and none is due yet.
                tables.append(dict(self._query.routing()))
                self._process(judged.stop)
                read.append(self._shuffled.since_last())
                self._process((period + 1) * self._size.batches)
        finally:
            self._query.stop()
        return self._case(read, tables)

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
            writer.option("braided.locality", "on").option("braided.locality.every", 2)
            writer.option("braided.locality.period", self._size.batches)
        self._query = writer.options(**self._rows.plans(self._mode)).start(str(self._home / "out"))

    def _warm_up(self) -> None:
        """Batches of the first rows until channels are on all hosts: those that have just come are
        warmed first.
        """
        while self._warm < _WARM_MOST:
            self._show(f"{self._warm:06}-warm.parquet", f"{0:06}.parquet")
            self._warm += 1
            self._await(lambda: len(self._all_batches()) >= self._warm)
            tables = self._query.routing().values()
            if self._warm > 1 and all(len(set(table.hosts)) == _HOSTS for table in tables):
                return

    def _process(self, files: int) -> None:
        """Shows files one after the other, each when the one before is done: what the controller
        says of a batch is then there for the next.
        """
        while self._shown < files:
            self._show(f"{self._shown:06}.parquet", f"{self._shown:06}.parquet")
            self._shown += 1
            self._await(lambda: len(self._batches()) >= self._shown)

    def _show(self, name: str, file: str) -> None:
        (self._input / name).hardlink_to(self._rows.directory / file)

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

    def _case(
        self, read: list[ReadBytes], tables: Sequence[Mapping[str, RoutingTable]]
    ) -> dict[str, Any]:
        batches = self._batches()
        judged = [
            self._judge(each, self._size.judged(period)) for period, each in enumerate(tables)
        ]
        # The first period is before anything was known to anybody.
        later = range(1, self._size.periods)
        measured = [batches[n] for period in later for n in self._size.judged(period)]
        times_ms = [float(each["durationMs"]["triggerExecution"]) for each in measured]
        operators = [each["braided"]["operators"]["by_location"] for each in measured]
        busy_ms = [sum(each["busyMs"]) for each in operators]
        return {
            "mode": self._mode,
            "padding_kb": self._padding_kb,
            "locality": round(float(np.mean([judged[n][0] for n in later])), 4),
            "locality_by_period": [round(locality, 4) for locality, _ in judged],
            "imbalance": round(max(judged[n][1] for n in later), 3),
            "local_mb": round(sum(read[n].last_local for n in later) / 1e6, 2),
            "remote_mb": round(sum(read[n].last_remote for n in later) / 1e6, 2),
            "rows_per_s": round(1000 * self._size.rows / median(times_ms)),
            "busy_us_per_row": round(1000 * median(busy_ms) / self._size.rows, 2),
            "promises": self._promises(judged),
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

    def _promises(self, judged: list[tuple[float, float]]) -> list[dict[str, Any]]:
        """What was expected of tables, and what came on the rows after them."""
        if self._mode != "online":
            return []
        with open(self._home / "checkpoint/braided/events.jsonl", "rb") as lines:
            events = list(read(lines))
        found = []
        for event in events:
            if isinstance(event, Located):
                period = (event.batch - self._warm) // self._size.batches + 1
                came = judged[period][0] if period < len(judged) and not event.held else None
                found.append(
                    {
                        "batch": event.batch,
                        "expected": round(event.expected, 4),
                        "came": None if came is None else round(came, 4),
                        "moved_keys": event.moved_keys,
                        "why": event.held or event.reason,
                    }
                )
        return found

    def _is_right(self) -> bool:
        """Whether the last count of every hashtag is how often it came."""
        rows = self._spark.read.parquet(str(self._home / "out")).groupBy("k").agg(F.max("n"))
        warm = np.tile(self._rows.of(0, 1)[1], self._warm)
        every = np.concatenate([self._rows.keys[1], warm])
        tags, counts = np.unique(every, return_counts=True)
        expected = dict(zip(tags.tolist(), counts.tolist(), strict=True))
        return {row[0]: row[1] for row in rows.collect()} == expected


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


def _counting_us() -> float:
    """What counting pairs takes for a row, in microseconds."""
    rows, keys = 200_000, 5_000
    random = np.random.default_rng(3)
    schema = pa.schema([("hashtag", pa.int64())])
    chunk = pa.record_batch({"hashtag": random.integers(0, 20_000, rows)})
    begins = np.sort(random.choice(rows, keys, replace=False)).tolist()
    taken = []
    for _ in range(5):
        pairs = KeyPairs(PairSetting((PairTarget("by_hashtag", (0,), schema),)))
        begun_s = time.perf_counter()
        for position in begins:
            pairs.opened(position.to_bytes(8, "big"), position)
        for first in range(0, rows, 10_000):
            pairs.emitted(chunk.slice(first, 10_000), first)
        pairs.reports()
        taken.append(time.perf_counter() - begun_s)
    return 1e6 * min(taken) / rows

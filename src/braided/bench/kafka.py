"""From Kafka through a keyed operator to Kafka: rows per second and latency against native.

The first part takes in a topic that is full: count and sum of each key, a row out for each key and
batch. Rows per second come from the median `triggerExecution` of the batches after the first ones.
Braided runs a columnar operator and writes exactly once, one transaction a batch; the native side
runs a `StatefulProcessor`, which gets rows one by one, and writes with Spark's own sink, which is
at least once. So `ratio` is what both together bring, the columns and the engine; the goal is 10 at
full size. The newest row of every key is compared: both sides and a plain sum.

In the second part rows arrive by the clock: steadily, four times as many for a while, half of which
are of one key, and steadily again. Each row has the time of its arrival and leads to a row out, by
an operator that gets rows one by one on both sides; its latency ends when a consumer has it that
reads what is committed. A query has recovered when three batches in a row have rows as young at
their ends, but for one in a hundred, as those of batches before the surge were. The goal is at most
5 batches between the end of the surge and these three.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import braided
from braided.bench.kafka_broker import KafkaBroker, connector_jars, missing, serve
from braided.bench.kafka_topics import PARTITIONS, PATIENCE_S, BenchTopics, rows_of
from braided.bench.recovery import recovery_batches
from braided.bench.session import TOTALS, Arena, Progress, Query, arena, median, run_all, with_data
from braided.bench.totals import ColumnTotals, NativeTotals, need_native
from braided.errors import DefinitionError
from braided.operator.definition import Operator

__all__ = ["KafkaSize", "measure", "run"]

_TIMES = 4
_TICK_S = 0.1
_WARM_BATCHES = 3
_STAMPED = "k long, n long, at double"
_TO_KAFKA = "string(k) AS key", "to_json(struct(*)) AS value"


class Stamped(Operator):
    """A row out for each row in: which of its key it is, and when it arrived."""

    n: int = 0

    def onRow(self, row: Row) -> Iterator[tuple[int, int, float]]:
        self.n += 1
        yield row.k, self.n, row.v


class NativeStamped(StatefulProcessor):
    """The same on Spark's own `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        [n] = self._n.get() or (0,)
        for row in rows:
            n += 1
            yield Row(k=key[0], n=n, at=row.v)
        self._n.update((n,))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class KafkaSize:
    """How much comes in, in batches and by the clock."""

    rows: int
    """Of a batch."""
    keys: int
    native_batches: int
    braided_batches: int
    warm: int
    """Batches that are not counted."""
    rows_per_s: int
    before_s: float
    surge_s: float
    after_s: float

    def arriving(self, at_s: float) -> tuple[int, bool]:
        """Rows of the next moment, and whether half of them are of one key."""
        is_surge = self.before_s <= at_s < self.before_s + self.surge_s
        return int(self.rows_per_s * _TICK_S) * (_TIMES if is_surge else 1), is_surge

    @property
    def all_s(self) -> float:
        return self.before_s + self.surge_s + self.after_s


_FULL = KafkaSize(400_000, 50_000, 4, 16, 2, 1_500, 20, 10, 20)
# In a minute and a half, but with a batch or more of the native side before the surge.
_QUICK = KafkaSize(80_000, 8_000, 2, 5, 1, 600, 7, 2, 5)

_T = TypeVar("_T")


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    need_native()
    if (lacking := missing()) is not None:
        raise DefinitionError(f"the benchmark needs a Kafka broker: {lacking}")
    jars = ",".join(map(str, connector_jars()))
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-", ignore_cleanup_errors=True) as home,
        _beside(serve(Path(home))) as broker,
        arena("kafka", {"spark.jars": jars}) as place,
    ):
        size = _QUICK if quick else _FULL
        return {**measure(place, broker.result(), size, progress), "quick": quick}


@contextmanager
def _beside(starting: AbstractContextManager[_T]) -> Iterator[Future[_T]]:
    """Starts something in a thread of its own while the block begins, and ends it with the block.

    A broker takes as long to start as Spark, and most of that each waits.
    """
    with ThreadPoolExecutor(1) as pool:
        entered = pool.submit(starting.__enter__)
        try:
            yield entered
        finally:
            if entered.exception() is None:
                starting.__exit__(None, None, None)


def measure(
    place: Arena, broker: KafkaBroker, size: KafkaSize, progress: Progress
) -> dict[str, Any]:
    """Both parts, both sides."""
    bus = BenchTopics(broker)
    full = _Full(place, bus, size)
    native_rate, native_right = full.run("native", size.native_batches)
    progress(f"native   {native_rate:>10,.0f} rows/s")
    own_rate, own_right = full.run("braided", size.braided_batches)
    progress(f"braided  {own_rate:>10,.0f} rows/s, identical: {native_right and own_right}")
    native = _Clocked(place, bus, size, "native").run()
    progress(f"native   p50 {native.percentile(50):,.0f} ms, p99 {native.percentile(99):,.0f} ms")
    own = _Clocked(place, bus, size, "braided").run()
    progress(f"braided  p50 {own.percentile(50):,.0f} ms, p99 {own.percentile(99):,.0f} ms")
    return {
        "rows": size.rows,
        "keys": size.keys,
        "native_rows_per_s": round(native_rate),
        "braided_rows_per_s": round(own_rate),
        "ratio": round(own_rate / native_rate, 2),
        "p50_ms": round(own.percentile(50)),
        "p99_ms": round(own.percentile(99)),
        "native_p50_ms": round(native.percentile(50)),
        "native_p99_ms": round(native.percentile(99)),
        "recovery_batches": own.recovery_batches,
        "native_recovery_batches": native.recovery_batches,
        "identical": native_right and own_right and native.is_whole and own.is_whole,
    }


def _source(place: Arena, bus: BenchTopics, topic: str, **options: Any) -> DataFrame:
    reader = place.spark.readStream.format("kafka").option("kafka.bootstrap.servers", bus.address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reader.options(**options).load()
    return rows.selectExpr("bigint(string(key)) AS k", "double(string(value)) AS v")


def _native(
    place: Arena, bus: BenchTopics, rows: DataFrame, step: Any, schema: str, to: str
) -> Query:
    out = rows.groupBy("k").transformWithState(step, schema, "Append", "None")
    writer = out.selectExpr(*_TO_KAFKA).writeStream.format("kafka").option("topic", to)
    writer = writer.option("kafka.bootstrap.servers", bus.address)
    return writer.option("checkpointLocation", place.fresh(f"checkpoint-{to}")).start()


def _braided(
    place: Arena, bus: BenchTopics, rows: DataFrame, step: Any, schema: str, to: str, **options: Any
) -> Query:
    out = braided.stream(rows).groupBy("k").apply(step, schema)
    writer = out.selectExpr(*_TO_KAFKA).writeStream.format("kafka").option("topic", to)
    writer = writer.option("kafka.bootstrap.servers", bus.address).option("exactlyOnce", True)
    writer = writer.options(**options)
    writer = writer.option("checkpointLocation", place.fresh(f"checkpoint-{to}"))
    query: Query = writer.start()
    return query


class _Full:
    """A topic that is full."""

    def __init__(self, place: Arena, bus: BenchTopics, size: KafkaSize) -> None:
        self._place = place
        self._bus = bus
        self._size = size
        self._random = np.random.default_rng(7)

    def run(self, side: str, batches: int) -> tuple[float, bool]:
        """Rows per second, and whether the newest row of every key is what it has to be."""
        topic, to = self._bus.create(f"in-{side}"), self._bus.create(f"out-{side}")
        keys, values = self._fill(topic, batches)
        rows = _source(self._place, self._bus, topic, maxOffsetsPerTrigger=self._size.rows)
        if side == "native":
            query = _native(self._place, self._bus, rows, NativeTotals(), TOTALS, to)
        else:
            query = _braided(self._place, self._bus, rows, ColumnTotals, TOTALS, to)
        done = run_all(query)[self._size.warm :]
        rates = [1000 * p["numInputRows"] / p["durationMs"]["triggerExecution"] for p in done]
        return median(rates), self._is_right(to, keys, values)

    def _fill(self, topic: str, batches: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        count = batches * self._size.rows
        keys = self._random.integers(0, self._size.keys, count)
        values = self._random.integers(0, 1024, count) / 8.0
        producer = self._bus.producer()
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            while True:
                try:
                    producer.produce(topic, str(value), str(key))
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(PATIENCE_S):
            raise RuntimeError("the broker did not take the rows")
        return keys, values

    def _is_right(self, to: str, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> bool:
        newest: dict[int, tuple[int, float]] = {}
        for row in self._bus.read(to):
            newest[row["k"]] = max(newest.get(row["k"], (0, 0.0)), (row["n"], row["s"]))
        counts, sums = np.bincount(keys), np.bincount(keys, values)
        present = np.flatnonzero(counts)
        return newest == {int(k): (int(counts[k]), float(sums[k])) for k in present}


@dataclass
class _LatencyRun:
    """What the second part showed of one side."""

    latencies_ms: npt.NDArray[np.float64]
    """Of all rows that were counted."""
    ages_ms: list[tuple[float, float]]
    """Of each batch: when it ended, and how old all but one in a hundred of its rows were."""
    surge: tuple[float, float]
    is_whole: bool
    """Whether each row came out once."""

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent))

    @property
    def recovery_batches(self) -> int | None:
        return recovery_batches(self.ages_ms, *self.surge)


@dataclass
class _Clocked:
    """Rows by the clock, through one side."""

    place: Arena
    bus: BenchTopics
    size: KafkaSize
    side: str
    _received: list[tuple[float, int, int, float]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> _LatencyRun:
        topic = self.bus.create(f"clocked-{self.side}")
        to = self.bus.create(f"clocked-out-{self.side}")
        rows = _source(self.place, self.bus, topic)
        if self.side == "native":
            query = _native(self.place, self.bus, rows, NativeStamped(), _STAMPED, to)
        else:
            channels = {"braided.channels.max": 4}
            query = _braided(self.place, self.bus, rows, Stamped, _STAMPED, to, **channels)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._read, to)
            sent = _Sender(self.bus, topic, self.size)
            try:
                sent.warm(lambda: len(with_data(query.recentProgress)) >= _WARM_BATCHES)
                begun = sent.send()
                query.processAllAvailable()
                progress = with_data(query.recentProgress)
            finally:
                query.stop()
                deadline = time.monotonic() + 10
                while len(self._received) < len(sent.arrived) and time.monotonic() < deadline:
                    time.sleep(0.05)
                self._ended.set()
            reading.result()
        surge = begun + self.size.before_s, begun + self.size.before_s + self.size.surge_s
        counted = [(at, came) for came, _, _, at in self._received if at >= begun]
        latencies = np.array([1000 * (came - at) for at, came in counted])
        return _LatencyRun(latencies, _ages(progress, sent, begun), surge, self._is_whole(sent))

    def _read(self, to: str) -> None:
        consumer = self.bus.consumer(to)
        try:
            while not self._ended.is_set():
                messages = consumer.consume(5_000, 0.02)
                came = time.time()
                for row in rows_of(messages, set()):  # it ends again and again, and goes on
                    self._received.append((came, row["k"], row["n"], row["at"]))
        finally:
            consumer.close()

    def _is_whole(self, sent: _Sender) -> bool:
        expected = sorted((k, n) for k, count in sent.counts.items() for n in range(1, count + 1))
        return sorted((k, n) for _, k, n, _ in self._received) == expected and sorted(
            at for _, _, _, at in self._received
        ) == sorted(sent.arrived)


class _Sender:
    """Sends rows when they are due, whether or not anybody keeps up."""

    def __init__(self, bus: BenchTopics, topic: str, size: KafkaSize) -> None:
        self._producer = bus.producer()
        self._topic = topic
        self._size = size
        self._random = np.random.default_rng(5)
        self.arrived: list[float] = []
        """When each row arrived, in the order in which they were sent."""
        self.in_partition: list[list[float]] = [[] for _ in range(PARTITIONS)]
        """The same, by partition: that of an offset is its number."""
        self.counts: dict[int, int] = {}

    def warm(self, is_warm: Any) -> None:
        """Rows that nobody counts, until the first batches are over."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_warm():
            if time.monotonic() > deadline:
                raise RuntimeError("the query does not get over its first batches")
            self._moment(int(self._size.rows_per_s * _TICK_S), False, time.time())
            time.sleep(_TICK_S)

    def send(self) -> float:
        """All that is scheduled; when it began."""
        begun = time.time()
        for number in range(int(self._size.all_s / _TICK_S)):
            due = begun + (number + 1) * _TICK_S
            time.sleep(max(0.0, due - time.time()))
            rows, is_hot = self._size.arriving(number * _TICK_S)
            self._moment(rows, is_hot, due)
        if self._producer.flush(PATIENCE_S):
            raise RuntimeError("the broker did not take the rows")
        return begun

    def _moment(self, rows: int, is_hot: bool, due: float) -> None:
        keys = self._random.integers(1, 500, rows)
        if is_hot:
            keys[::2] = 0
        for key in keys.tolist():
            at = due - len(self.arrived) % 1000 * 1e-6  # each its own, or nearly
            self.arrived.append(at)
            partition = key % PARTITIONS
            self.in_partition[partition].append(at)
            self.counts[key] = self.counts.get(key, 0) + 1
            self._producer.produce(self._topic, repr(at), str(key), partition)
        self._producer.poll(0)


def _ages(progress: list[Any], sent: _Sender, begun: float) -> list[tuple[float, float]]:
    """Of each batch with rows that count: when it ended, and the age of its oldest rows then."""
    found = []
    for batch in progress:
        started = datetime.fromisoformat(batch["timestamp"]).timestamp()
        ended = started + batch["durationMs"]["triggerExecution"] / 1000
        [source] = [s for s in batch["sources"] if "Kafka" in s["description"]]
        first, last = (_offsets(source[name]) for name in ("startOffset", "endOffset"))
        arrived = [
            at
            for number in range(PARTITIONS)
            for at in sent.in_partition[number][first.get(number, 0) : last.get(number, 0)]
        ]
        if arrived and min(arrived) >= begun:
            found.append((ended, 1000 * (ended - float(np.percentile(arrived, 1)))))
    return found


def _offsets(said: Any) -> dict[int, int]:
    """Where a batch begins, or ends, in each partition."""
    parsed = json.loads(said) if isinstance(said, str) else said
    if parsed is None:  # before the first
        return {}
    [partitions] = parsed.values()
    return {int(number): int(offset) for number, offset in partitions.items()}

"""Rows from Kafka, through Spark's source, as operators and the controller see them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame

import braided
from braided.control.measure.view import FlowView
from braided.import_state import import_state
from braided.spark.source_positions import positions_told
from braided.store.durable.open_store import open_store
from support.kafka import Topics
from support.kafka_operators import Counts, Numbers
from support.stream_harness import Lab, output_of, wait_until

pytestmark = pytest.mark.together("kafka")

MOST = 60
"""Rows that a batch takes from each source."""


class Onlooker:
    """A scale policy that changes nothing and remembers what it was shown."""

    by_rate = True

    def __init__(self) -> None:
        self.views: list[FlowView] = []

    def scale(self, view: FlowView, limits: Any, memory: Any) -> Any:
        self.views.append(view)
        return {}, memory

    def rates(self, name: str) -> dict[int, list[float]]:
        """The rates at which rows came, by the batch that was the newest."""
        found: dict[int, list[float]] = {}
        for view in self.views:
            found.setdefault(view.batch, []).append(view.operators[name].arrival_rate)
        return found


class Sent:
    """Rows on their way: those of a key in one partition, numbered in their order."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._chance = random.Random(5)
        self.by_key: dict[str, list[str]] = {}

    def send(self, topic: str, partitions: range, rows: int) -> None:
        messages = []
        for _ in range(rows):
            partition = self._chance.choice(partitions)
            key = f"{topic[:7]}-{partition}-{self._chance.randrange(3)}"
            values = self.by_key.setdefault(key, [])
            values.append(f"{len(values)}")
            messages.append((partition, key, values[-1]))
        self._topics.send(topic, messages)

    @property
    def numbered(self) -> set[tuple[str, int, str]]:
        return {
            (key, number, value)
            for key, values in self.by_key.items()
            for number, value in enumerate(values, 1)
        }


def test_rows_of_a_key_keep_kafkas_order_through_all_that_happens_to_topics(
    lab: Lab, topics: Topics
) -> None:
    """One reader leaves Kafka's columns in, as its order; the other keeps key and value alone."""
    sent = Sent(topics)
    first = topics.create("order-a", 3)
    pattern = first.replace("order-a", "order-.").rpartition("-")[0] + "-.*"
    out = topics.create("out", 2)
    sent.send(first, range(3), 4 * MOST)

    def source() -> DataFrame:
        reader = lab.spark.readStream.format("kafka").option("subscribePattern", pattern)
        reader = reader.option("kafka.bootstrap.servers", topics.broker.address)
        reader = reader.option("startingOffsets", "earliest").option("minPartitions", 5)
        return reader.option("maxOffsetsPerTrigger", MOST).load()

    onlooker = Onlooker()

    def start() -> braided.ElasticQuery:
        whole = source().selectExpr(
            "string(key) AS k", "string(value) AS v", "topic", "partition", "offset"
        )
        bare = source().selectExpr("string(key) AS k", "string(value) AS v")
        schema = "k string, n int, v string"
        by_columns = braided.stream(whole).groupBy("k").apply(Numbers, schema).name("whole")
        as_they_come = braided.stream(bare).groupBy("k").apply(Numbers, schema).name("bare")
        to_kafka = as_they_come.selectExpr("k AS key", "concat_ws(' ', n, v) AS value")
        writers = [
            by_columns.writeStream.format("parquet").option("path", str(lab.out)),
            to_kafka.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", topics.broker.address)
            .option("topic", out),
        ]
        writers[0].option("checkpointLocation", str(lab.checkpoint))
        writers[0].option("braided.scale", onlooker).option("braided.channels", 2)
        return braided.start(*writers)

    def arrived() -> int:
        return sum(map(len, output_of(lab.out).values()))

    def step(topic: str, partitions: range, rows: int) -> None:
        sent.send(topic, partitions, rows)
        query.processAllAvailable()
        assert query._opened.control.settled(180)

    def is_foreseen() -> bool:
        again = [rates for rates in onlooker.rates("whole").values() if len(rates) > 1]
        return any(rates[1] > 1.25 * rates[0] for rates in again)

    query = start()
    try:
        query.processAllAvailable()
        assert query._opened.control.settled(180)
        behind = max(view.operators["whole"].backlog_rows for view in onlooker.views)
        assert behind >= MOST, "nobody saw what waits in Kafka"
        step(first, range(3), 2)
        for _ in range(10):
            # Rows are foreseen by the second, so that one that is held up spoils what is foreseen.
            for _ in range(2):
                step(first, range(3), 2)
            before = len(sent.numbered)
            step(first, range(3), MOST)
            assert arrived() == before + MOST
            if is_foreseen():
                break
        topics.add_partitions(first, 5)
        sent.send(first, range(3, 5), 20)
        wait_until(lambda: arrived() == len(sent.numbered), "rows of the new partitions")
    finally:
        query.stop()
    # A surge is known before it runs: the rates by which its channels are chosen are far more.
    assert is_foreseen()
    sizes = [p["sources"][0]["numInputRows"] for p in query.recentProgress]
    assert max(sizes) == MOST

    second = topics.create(first.replace("order-a", "order-b").rpartition("-")[0], 2)
    sent.send(second, range(2), 30)
    sent.send(first, range(5), 30)
    query = start()
    try:
        wait_until(lambda: arrived() == len(sent.numbered), "rows of the new topic")
        query.processAllAvailable()
    finally:
        query.stop()
    assert {row for rows in output_of(lab.out).values() for row in rows} == sent.numbered
    # Spark's sink may write a batch twice, when a query ends before it is recorded.
    read = {(m.key or b"", m.value or b"") for m in topics.read(out)}
    assert read == {(k.encode(), f"{n} {v}".encode()) for k, n, v in sent.numbered}


def test_reading_begins_where_the_starting_offsets_say_and_splits_partitions_in_order(
    lab: Lab, topics: Topics
) -> None:
    topic = topics.create("begins", 2)
    topics.send(topic, [(n % 2, f"k{n % 2}", f"{n // 2}") for n in range(40)])
    reader = lab.spark.readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", topics.broker.address)
    reader = reader.option("startingOffsets", json.dumps({topic: {"0": 5, "1": -2}}))
    # Spark cuts a partition into several, which are read at the same time.
    rows = reader.option("minPartitions", 8).load()
    taken: list[int] = []

    def take(frame: DataFrame, batch: int) -> None:
        taken.extend(row.n for row in frame.select("n").collect())

    pieces = rows.selectExpr("spark_partition_id() AS n").writeStream.foreachBatch(take)
    pieces.trigger(availableNow=True).start().awaitTermination()
    assert len(set(taken)) >= 8
    bare = braided.stream(rows.selectExpr("string(key) AS k", "string(value) AS v"))
    lab.run(bare.groupBy("k").apply(Numbers, "k string, n int, v string"), channels=2)
    assert sorted(lab.rows()) == sorted(
        (f"k{part}", place, f"{first + place - 1}")
        for part, first in ((0, 5), (1, 0))
        for place in range(1, 21 - first)
    )


PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_a_native_query_moves_over_and_goes_on_at_the_offsets_where_it_stopped(
    lab: Lab, topics: Topics
) -> None:
    topic, native = topics.create("moves", 2), str(lab.home / "native")

    def counted(rows: Any) -> Any:
        return rows.groupBy("k").transformWithState(
            statefulProcessor=Counts(),
            outputStructType="k string, n int, v string",
            outputMode="Append",
            timeMode="None",
        )

    def source() -> DataFrame:
        reader = lab.spark.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", topics.broker.address)
        reader = reader.option("startingOffsets", "earliest")
        return reader.load().selectExpr("string(key) AS k", "string(value) AS v")

    def send(numbers: range) -> None:
        topics.send(topic, [(n % 2, f"k{n % 4}", f"{n}") for n in numbers])

    send(range(13))
    lab.spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    try:
        writer = counted(source()).writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", native).start().awaitTermination()
        imported = import_state(lab.spark, native, str(lab.checkpoint), "Counts", with_offsets=True)
    finally:
        lab.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    told, option = positions_told(open_store(native), imported.batch)
    assert told == f"source 0: topic {topic}, partition 0 to offset 7, 1 to offset 6 (not included)"
    begun, offsets = option.split(" {", 1)
    assert begun == "  as an option: startingOffsets"
    assert json.loads("{" + offsets) == {topic: {"0": 7, "1": 6}}
    send(range(13, 24))
    lab.run(counted(braided.stream(source())), channels=2)
    assert sorted(lab.rows()) == sorted((f"k{n % 4}", n // 4 + 1, f"{n}") for n in range(13, 24))

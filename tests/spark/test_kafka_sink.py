"""Rows into Kafka, exactly once: what arrives, what a crash leaves, and what is refused."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import braided
from braided import failpoints
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
    OptionError,
)
from braided.sinks import kafka
from support.kafka import Topics
from support.stream_harness import Feed, Lab, manifests_of
from support.stream_operators import SCHEMA, Totals

pytestmark = pytest.mark.together("kafka")

ROW = "k AS key", "concat_ws(' ', c, v, seq) AS value"


class Sink:
    """Totals of a feed, into Kafka."""

    def __init__(self, lab: Lab, topics: Topics) -> None:
        self.lab = lab
        self.topics = topics
        self.feed: Feed = lab.feed(SCHEMA)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, rows: int, keys: int = 5) -> None:
        """More rows arrive, which make a batch."""
        new = [(f"k{n % keys}", 0, n, n) for n in range(len(self._rows), len(self._rows) + rows)]
        self._rows += new
        self.feed.add(new)

    @property
    def totals(self) -> list[tuple[str, str]]:
        """What is to arrive, keys and values, sorted."""
        state: dict[str, tuple[int, int]] = {}
        found = []
        for key, _, v, seq in self._rows:
            count, total = state.get(key, (0, 0))
            state[key] = count, total = count + 1, total + v
            found.append((key, f"{count} {total} {seq}"))
        return sorted(found)

    def run(self, *columns: str, exact: bool = True, kind: str = "kafka", **options: Any) -> None:
        frame = self.feed.frame(maxFilesPerTrigger=1)
        stream = braided.stream(frame).groupBy("k").apply(Totals, SCHEMA)
        writer = stream.selectExpr(*(columns or ROW)).writeStream.format(kind)
        writer.option("kafka.bootstrap.servers", self.topics.broker.address)
        writer.option("checkpointLocation", str(self.lab.checkpoint)).trigger(availableNow=True)
        writer.option("braided.channels", 2).option("exactlyOnce", exact)
        writer.options(**options).start().awaitTermination()

    def crash(self, point: str, topic: str) -> None:
        failpoints.arm(point)
        with pytest.raises(Exception, match=f"crashed at {point}"):
            self.run(topic=topic)

    def arrived(self, topic: str) -> list[tuple[str, str]]:
        read = self.topics.read(topic)
        return sorted(((m.key or b"").decode(), (m.value or b"").decode()) for m in read)


@pytest.fixture
def sink(lab: Lab, topics: Topics) -> Sink:
    return Sink(lab, topics)


def test_a_batch_is_in_kafka_once_wherever_its_query_stopped(sink: Sink, topics: Topics) -> None:
    topic = topics.create("exact", 3)
    sink.add(40)
    sink.crash("publishing", topic)
    assert sink.arrived(topic) == []
    sink.crash("transaction-written", topic)
    assert sink.arrived(topic) == [] != topics.read(topic, committed=False)
    sink.crash("transaction-committed", topic)
    assert sink.arrived(topic) == sink.totals
    sink.add(40)
    sink.crash("after-publish", topic)
    assert sink.arrived(topic) == sink.totals
    checkpoint, copy = sink.lab.checkpoint, sink.lab.home / "copy"
    shutil.copytree(checkpoint, copy)
    sink.add(20)
    sink.run(topic=topic)
    assert sink.arrived(topic) == sink.totals
    # The same two sinks, by kind and target: Spark's own goes on where ours stopped, and back.
    sink.add(20)
    sink.crash("publishing", topic)
    sink.run(exact=False, topic=topic)
    sink.add(10)
    sink.run(topic=topic)
    assert sink.arrived(topic) == sink.totals
    # Rows of a key are where other clients put them, and in order.
    places: dict[bytes, set[int]] = {}
    values: dict[bytes, list[int]] = {}
    for message in topics.read(topic):
        assert message.key is not None and message.value is not None
        places.setdefault(message.key, set()).add(message.partition)
        values.setdefault(message.key, []).append(int(message.value.split()[0]))
    assert {len(each) for each in places.values()} == {1}, "Spark's sink and ours disagree"
    assert len(set.union(*places.values())) > 1
    assert all(numbers == sorted(numbers) for numbers in values.values())
    # A copy of the checkpoint is another query, which would take batches for written.
    shutil.rmtree(checkpoint)
    shutil.move(copy, checkpoint)
    with pytest.raises(CheckpointMismatchError, match="older copy"):
        sink.run(topic=topic)


def test_rows_say_their_topic_partition_and_headers(sink: Sink, topics: Topics) -> None:
    even, odd = topics.create("even", 2), topics.create("odd", 2)
    sink.add(8)
    columns = (
        f"CASE WHEN seq < 100 THEN if(seq % 2 = 0, '{even}', '{odd}') END AS topic",
        "CAST(k AS binary) AS key",
        "if(seq = 3, NULL, string(seq)) AS value",
        "if(seq < 4, 1, NULL) AS partition",
        "if(seq = 5, array(named_struct('key', 'h', 'value', binary('x'))), NULL) AS headers",
        "seq AS ignored",
    )
    sink.run(*columns)
    read = topics.read(even, odd)
    assert len(read) == 8 and {(m.topic, m.value) for m in read} == {
        ((even, odd)[n % 2], None if n == 3 else str(n).encode()) for n in range(8)
    }
    first = [m for m in read if m.value is None or int(m.value) < 4]
    assert {m.partition for m in first} == {1} and len(first) == 4
    [with_headers] = [m for m in read if m.headers]
    assert with_headers.value == b"5" and with_headers.headers == [("h", b"x")]
    # What Kafka would not take ends the batch before it is committed.
    sink.add(100)
    batch = max(manifests_of(sink.lab.checkpoint))
    with pytest.raises(
        StreamingQueryException,
        match=r"OutputSchemaError: a row has no topic.*Nothing of the batch",
    ):
        sink.run(*columns)
    assert max(manifests_of(sink.lab.checkpoint)) == batch


def test_text_that_is_not_utf8_arrives_as_it_is(sink: Sink, topics: Topics) -> None:
    topic = topics.create("bytes")
    sink.add(1)
    garbled = "CAST(unhex('61FF62') AS string)"
    sink.run(f"{garbled} AS key", f"concat({garbled}, k) AS value", topic=topic)
    [message] = topics.read(topic)
    assert (message.key, message.value) == (b"a\xffb", b"a\xffbk0")


def test_a_row_is_as_large_as_its_bytes_are(sink: Sink, topics: Topics) -> None:
    topic = topics.create("sizes")

    def sent(size: int) -> None:
        header = f"named_struct('key', 'h', 'value', binary(repeat('x', {size})))"
        sink.run("k AS value", f"array({header}) AS headers", topic=topic)

    sink.add(1)
    sent(900_000)
    [message] = topics.read(topic)
    assert message.headers == [("h", b"x" * 900_000)]
    sink.add(1)
    with pytest.raises(StreamingQueryException, match="more than 1000000 bytes"):
        sent(1_000_000)


@pytest.mark.parametrize(
    ("column", "lost"),
    [("k AS value", True), ("explode(array_except(array(k), array(k))) AS value", False)],
)
def test_a_batch_that_kafka_may_have_forgotten_is_not_written_if_it_has_rows(
    sink: Sink, topics: Topics, monkeypatch: pytest.MonkeyPatch, column: str, lost: bool
) -> None:
    topic = topics.create("forgotten")
    sink.add(1)
    failpoints.arm("publishing")
    with pytest.raises(Exception, match="crashed at publishing"):
        sink.run(column, topic=topic)
    monkeypatch.setattr(kafka, "_REMEMBERED_S", -1.0)
    refused: AbstractContextManager[Any] = pytest.raises(Exception, match="remembers no batch")
    with refused if lost else nullcontext():
        sink.run(column, topic=topic)
    assert sink.arrived(topic) == []


def test_a_batch_for_a_new_topic_is_written_where_kafka_remembers_the_one_before(
    sink: Sink, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = topics.create("first"), topics.create("second")
    columns = f"if(seq < 1, '{first}', '{second}') AS topic", "k AS value"
    sink.add(1)
    sink.run(*columns)
    sink.add(1)
    failpoints.arm("publishing")
    with pytest.raises(Exception, match="crashed at publishing"):
        sink.run(*columns)
    monkeypatch.setattr(kafka, "_REMEMBERED_S", -1.0)
    sink.run(*columns)
    assert [len(topics.read(topic)) for topic in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("named_struct('key', CAST(NULL AS string), 'value', binary('x'))", "header without a key"),
        ("CAST(NULL AS struct<key: string, value: binary>)", "header without a key"),
        ("named_struct('key', CAST(unhex('FF') AS string), 'value', binary('x'))", "not UTF-8"),
    ],
)
def test_a_header_without_a_key_ends_the_batch_before_it_is_committed(
    sink: Sink, topics: Topics, header: str, said: str
) -> None:
    topic = topics.create("headers")
    sink.add(1)
    with pytest.raises(StreamingQueryException, match=rf"OutputSchemaError: a row has .*{said}"):
        sink.run("k AS value", f"array({header}) AS headers", topic=topic)
    assert not manifests_of(sink.lab.checkpoint)
    assert sink.arrived(topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "error", "said"),
    [
        (("k AS key",), {}, DefinitionError, "needs a column 'value'"),
        (("c AS value",), {}, DefinitionError, "'value' must be a string or binary, not int"),
        (("k AS value", "k AS partition"), {}, DefinitionError, "'partition' must be an int"),
        (("k AS value", "c AS headers"), {}, DefinitionError, "'headers' must be array<struct"),
        (("c AS value",), {"kind": "Kafka"}, DefinitionError, "'value' must be a string"),
        (("k AS value",), {"topic": None}, DefinitionError, "needs the option 'topic'"),
        (("k AS value",), {"topic": "not-there"}, DefinitionError, "no topic 'not-there'"),
        (("k AS value",), {"kafka.no.such": "1"}, OptionError, 'property: "no.such"'),
        (("k AS value",), {"retries": "1"}, OptionError, "has no option 'retries'"),
        (("k AS value",), {"exactlyOnce": "perhaps"}, OptionError, "true or false"),
    ],
)
def test_what_can_not_be_written_is_refused_at_the_start(
    sink: Sink,
    columns: tuple[str, ...],
    options: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    given = {"topic": "any", **options}
    with pytest.raises(error, match=said):
        sink.run(*columns, **{name: value for name, value in given.items() if value is not None})

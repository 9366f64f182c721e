"""Batches in Kafka's transactions, against a broker: once, whoever dies or is replaced when."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from braided import failpoints
from braided.errors import CheckpointMismatchError, FencedError, PublishError
from braided.sinks import kafka_transactions
from braided.sinks.kafka_settings import kafka_settings
from braided.sinks.kafka_transactions import Committed, KafkaTransactions, Message
from support.kafka import Topics, kafka_broker_for_tests
from support.power_cut import cut_at

pytestmark = [pytest.mark.together("kafka"), pytest.mark.slow]


SSL_REFUSED = "SSL (handshake failed|connection closed by peer .*in state SSL_HANDSHAKE)"
"""What the client says depends on whether it was writing or reading when it was hung up on."""


class Writer(KafkaTransactions):
    """Writes to one topic."""

    def __init__(
        self,
        topics: Topics,
        topic: str,
        check: Callable[[], None] = lambda: None,
        name: str | None = None,
        client: dict[str, str] | None = None,
        servers: str | None = None,
        **options: str,
    ) -> None:
        named = {f"kafka.{option.replace('_', '.')}": value for option, value in options.items()}
        address = servers or topics.broker.address
        settings = kafka_settings({"kafka.bootstrap.servers": address, **named})
        if client:
            settings = dataclasses.replace(settings, client={**settings.client, **client})
        super().__init__(settings, f"braided/{name or topic}", check)
        self._topic = topic

    def add(self, batch: int, attempt: str, *values: str) -> bool:
        return self.send(batch, attempt, lambda: (self.message(value) for value in values))

    def send(self, batch: int, attempt: str, rows: Callable[[], Iterator[Message]]) -> bool:
        return self.write(batch, attempt, rows, lambda: [self._topic])

    def message(self, value: str) -> Message:
        return Message(self._topic, None, value, -1, None)

    @property
    def newest(self) -> Committed | None:
        return self.committed(self._topic)

    def flush(self) -> None:
        """What was sent so far is there, for readers that do not ask whether it is committed."""
        assert self._producer is not None
        self._producer.flush(30)


def values(topics: Topics, *names: str, committed: bool = True) -> list[str]:
    return [(m.value or b"").decode() for m in topics.read(*names, committed=committed)]


def replaced() -> None:
    raise FencedError("another query has it")


def test_a_batch_is_written_once_wherever_its_writer_stopped(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create("stops")
    first = Writer(topics, topic)
    assert first.newest is None and first.has_topic(topic) and not first.has_topic("no-such")
    assert first.add(0, "0-a", "a", "b")
    assert not first.add(0, "0-a", "never")
    # Before the commit: what was sent is aborted, by the heir if not by whoever sent it.
    with cut_at(monkeypatch, "transaction-written"), pytest.raises(RuntimeError, match="cut"):
        first.add(1, "1-a", "c")
    assert values(topics, topic) == ["a", "b"]
    assert values(topics, topic, committed=False) == ["a", "b", "c"]
    heir = Writer(topics, topic)
    assert heir.newest == Committed(0, "0-a")
    assert heir.add(1, "1-a", "c")
    # After it: whoever comes next finds it there.
    last = Writer(topics, topic)
    assert last.newest == Committed(1, "1-a")
    assert not last.add(1, "1-a", "never")
    assert last.add(2, "2-a")  # no rows: nothing to remember
    assert values(topics, topic) == ["a", "b", "c"]
    # Another query on a copy of the checkpoint has the same id.
    with pytest.raises(CheckpointMismatchError, match="copy"):
        Writer(topics, topic).add(1, "1-other", "never")
    with pytest.raises(CheckpointMismatchError, match="older copy"):
        Writer(topics, topic).add(0, "0-a", "never")
    for each in (first, heir, last):
        each.close()


def test_a_topic_that_the_broker_makes_by_itself_is_there(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with kafka_broker_for_tests(tmp_path_factory, makes_topics=True) as broker:
        topics = Topics(broker)
        for topic in ("made-1", "made-2", "made-3"):
            writer = Writer(topics, topic)
            assert writer.has_topic(topic) and writer.add(0, "0-a", topic)
            assert values(topics, topic) == [topic]
            writer.close()


def test_a_topic_that_can_not_be_is_not_said_to_be_missing(topics: Topics) -> None:
    with pytest.raises(PublishError, match="there can't be a topic of that name"):
        Writer(topics, "any").has_topic("no topic")


def test_rows_may_go_to_several_topics_and_the_newest_batch_of_all_counts(topics: Topics) -> None:
    one, two = topics.create("one"), topics.create("two", 3)
    writer = Writer(topics, one)
    headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None)]
    message = Message(two, b"k", None, 2, headers)
    assert writer.send(3, "3-a", lambda: iter([writer.message("v"), message]))
    assert writer.add(4, "4-a", "w")
    writer.close()
    assert Writer(topics, one).committed(one, two) == Committed(4, "4-a")
    assert Writer(topics, one).committed(two) == Committed(3, "3-a")
    [sent] = topics.read(two)
    assert (sent.partition, sent.key, sent.value, sent.headers) == (2, b"k", None, headers)
    assert values(topics, one) == ["v", "w"]


def test_a_newer_copy_is_found_in_topics_that_come_later(topics: Topics) -> None:
    """The original has gone on with a topic that its copy has not written to before."""
    one, two = topics.create("both"), topics.create("later")
    original, copy = Writer(topics, one), Writer(topics, one)

    def send(writer: Writer, batch: int, to: str, value: str) -> bool:
        def rows() -> Iterator[Message]:
            yield Message(to, None, value, -1, None)

        return writer.write(batch, f"{batch}-{value}", rows, lambda: [to])

    assert send(original, 0, one, "a") and send(original, 1, two, "b")
    original.close()
    assert not send(copy, 0, one, "a")
    with pytest.raises(CheckpointMismatchError, match="copy"):
        send(copy, 1, two, "other")
    copy.close()
    again = Writer(topics, one)
    assert not send(again, 1, two, "b") and send(again, 2, one, "c")
    assert values(topics, one, two) == ["a", "c", "b"]


def test_a_partition_that_is_new_is_written_to(topics: Topics) -> None:
    topic = topics.create("grows")
    writer = Writer(topics, topic)
    assert writer.add(0, "0-a", "a")
    topics.add_partitions(topic, 2)
    assert writer.send(1, "1-a", lambda: iter([Message(topic, None, b"b", 1, None)]))
    with pytest.raises(PublishError, match="add the partition"):
        writer.send(2, "2-a", lambda: iter([Message(topic, None, b"c", 2, None)]))
    assert [(m.partition, m.value) for m in topics.read(topic)] == [(0, b"a"), (1, b"b")]
    writer.close()


def test_a_zombie_publishes_nothing_and_says_that_it_was_replaced(topics: Topics) -> None:
    topic = topics.create("zombie")
    zombie = Writer(topics, topic, replaced)
    heirs = []

    def sent_meanwhile() -> Iterator[Message]:
        """The heir comes while the zombie is sending."""
        yield zombie.message("zombie's")
        zombie.flush()
        heirs.append(Writer(topics, topic))
        assert heirs[0].newest is None
        assert heirs[0].add(0, "0-a", "heir's")
        yield zombie.message("zombie's")

    with pytest.raises(FencedError, match="another query has it"):
        zombie.send(0, "0-a", sent_meanwhile)
    # One that wakes before it has begun takes the id, and finds the batch there.
    assert not zombie.add(0, "0-a", "zombie's")
    # Who has the checkpoint takes the id back.
    assert heirs[0].add(1, "1-a", "heir's too")
    assert values(topics, topic) == ["heir's", "heir's too"]
    assert "zombie's" in values(topics, topic, committed=False)
    heirs[0].close()


def test_a_program_that_takes_the_id_all_the_time_is_an_error(topics: Topics) -> None:
    topic = topics.create("robbed")
    robbed = Writer(topics, topic)
    robbers = []

    def robbed_meanwhile() -> Iterator[Message]:
        robbers.append(Writer(topics, topic))
        robbers[-1].begin()
        yield robbed.message("x")
        if len(robbers) % 2:  # it notices while it takes rows, or after them
            yield from (robbed.message("y") for _ in range(50_000))

    with pytest.raises(FencedError, match="uses the transactional id"):
        robbed.send(0, "0-a", robbed_meanwhile)
    assert len(robbers) == 4
    for each in robbers:
        each.close()
    assert values(topics, topic) == []


def test_what_trying_again_does_not_help_is_said_at_once(topics: Topics) -> None:
    topic = topics.create("small", **{"max.message.bytes": "2000"})
    writer = Writer(topics, topic)
    with pytest.raises(PublishError, match=r"Batch 0 is committed.*max.message.bytes"):
        writer.add(0, "0-a", "x" * 5000)
    assert values(topics, topic) == []

    def too_large_at_first() -> Iterator[Message]:
        """The client knows before it has all rows, and takes no more."""
        yield writer.message("x" * 5000)
        writer.flush()
        yield writer.message("y")

    with pytest.raises(PublishError, match=r"Batch 0 is committed.*max.message.bytes"):
        writer.send(0, "0-a", too_large_at_first)
    # It is not in the way of what comes next.
    assert writer.add(0, "0-a", "y")
    with pytest.raises(PublishError, match=r"the broker's transaction.max.timeout.ms"):
        Writer(topics, "other", transaction_timeout_ms="9000000").begin()
    writer.close()


def test_an_address_that_nobody_answers_at_has_no_batch_sent_twice(topics: Topics) -> None:
    topic = topics.create("addresses")
    addresses = f"127.0.0.1:1,127.0.0.2:1,{topics.broker.address}"
    for batch in range(3):  # the client begins with any of them
        writer = Writer(topics, topic, servers=addresses)
        sent: list[int] = []

        def rows(
            writer: Writer = writer, sent: list[int] = sent, batch: int = batch
        ) -> Iterator[Message]:
            sent.append(batch)
            yield writer.message(f"{batch}")

        assert writer.send(batch, f"{batch}-a", rows)
        assert len(sent) == 1
        writer.close()
    assert values(topics, topic) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": "x.PlainLoginModule required username='me' password='pass';",
            },
            "SASL PLAIN mechanism handshake failed.*correct the user and the password",
        ),
        ({"security_protocol": "SSL", "delivery_timeout_ms": "2000"}, SSL_REFUSED),
    ],
)
def test_who_is_not_let_in_hears_why_and_soon(
    topics: Topics, options: dict[str, str], said: str
) -> None:
    """The broker has neither users nor certificates, and takes nobody who has."""
    began = time.monotonic()
    with pytest.raises(PublishError, match=said):
        Writer(topics, "any", **options).begin()
    assert time.monotonic() - began < 60


def test_a_row_for_which_the_client_never_has_room_is_an_error(topics: Topics) -> None:
    topic = topics.create("room")
    tiny = {"queue.buffering.max.kbytes": "1"}
    writer = Writer(topics, topic, client=tiny, delivery_timeout_ms="5000")
    with pytest.raises(PublishError, match=r"Batch 0 is committed.*kafka.buffer.memory"):
        writer.add(0, "0-a", "x" * 5000)
    assert Writer(topics, topic).add(0, "0-a", "x" * 5000)


def test_a_broker_may_be_away_for_a_while(topics: Topics) -> None:
    """In the middle of a transaction; and for too long, after which somebody else goes on."""
    topic = topics.create("away")
    writer = Writer(topics, topic)
    writer.begin()
    impatient = Writer(topics, topic, name=f"{topic}-2", delivery_timeout_ms="1500")
    impatient.begin()
    backs: list[threading.Thread] = []

    def sent_meanwhile() -> Iterator[Message]:
        yield writer.message("a")
        if not backs:
            writer.flush()
            topics.broker.stop()
            with pytest.raises(PublishError, match=r"Batch 7 is committed.*start the query again"):
                impatient.add(7, "7-a", "late")
            backs.append(threading.Thread(target=topics.broker.start))
            backs[0].start()
        yield writer.message("b")

    try:
        assert writer.send(0, "0-a", sent_meanwhile)
    finally:
        for back in backs:
            back.join()
    assert values(topics, topic) == ["a", "b"]
    again = Writer(topics, topic, name=f"{topic}-2")
    assert again.newest is None and again.add(7, "7-a", "late")
    assert values(topics, topic) == ["a", "b", "late"]
    writer.close()
    again.close()


def test_a_broker_that_was_restarted_is_written_to_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is written, with a transaction that is about to be committed, and after it."""
    topic = topics.create("restarted")
    writer = Writer(topics, topic)
    assert writer.add(0, "0-a", "a")
    topics.restart_broker(topic)
    assert writer.add(1, "1-a", "b")

    reach, restarted = failpoints.reach, []

    def restarts(name: str) -> None:
        if name == "transaction-written" and not restarted:
            restarted.append(name)
            topics.broker.stop()
            topics.broker.start()
        reach(name)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", restarts)
        assert writer.add(2, "2-a", "c")
    assert restarted and writer.add(3, "3-a", "d") and not writer.add(3, "3-a", "never")
    writer.close()
    assert values(topics, topic) == ["a", "b", "c", "d"]


def test_a_transaction_that_the_broker_never_ends_is_named_as_what_it_may_be(
    topics: Topics,
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = topics.create("unended")
    name = f"braided/{topic}"
    servers = {"bootstrap.servers": topics.broker.address}
    other = Producer({**servers, "transactional.id": f"{topic}-other"})
    other.init_transactions()
    other.begin_transaction()
    group = Consumer({**servers, "group.id": name}).consumer_group_metadata()
    other.send_offsets_to_transaction([TopicPartition(topic, 0, 0, "0-a")], group)

    writer = Writer(topics, topic, delivery_timeout_ms="1500")
    with pytest.raises(PublishError, match=f"never ended a transaction of {name} .*find-hanging"):
        writer.add(1, "1-a", "b")
    other.abort_transaction()
    assert writer.add(1, "1-a", "b")
    writer.close()


def test_a_client_that_hangs_is_replaced(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that does not notice that the broker was restarted, whose client then waits for a
    coordinator that it believes gone.
    """

    class Deaf(Writer):
        def _on_error(self, error: object) -> None:
            pass

    topic = topics.create("hangs")
    writer = Deaf(topics, topic)
    assert writer.add(0, "0-a", "a")
    topics.restart_broker(topic)
    monkeypatch.setattr(kafka_transactions, "_MARK_S", 2.0)
    assert writer.add(1, "1-a", "b") and writer.add(2, "2-a", "c")
    writer.close()
    assert values(topics, topic) == ["a", "b", "c"]

"""The Kafka broker of the tests: one for all of them in a process, and what tests ask of it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from braided.bench.kafka_broker import KafkaBroker, missing, serve
from braided.bench.kafka_topics import all_is_marked
from support.stream_harness import wait_until

__all__ = ["Message", "Topics", "kafka_broker_for_tests"]

_PATIENCE_S = 180.0
_MARKED_S = 10.0
_POLL_S = 1.0


class Message(NamedTuple):
    """A message as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class Topics:
    """What tests do to topics, with a client of their own."""

    def __init__(self, broker: KafkaBroker) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.broker = broker
        self._settings = {"bootstrap.servers": broker.address, "log_level": 0}
        self._admin = AdminClient(self._settings)
        self._producer = Producer(self._settings)

    def create(
        self, name: str, partitions: int = 1, whole_name: bool = False, **settings: str
    ) -> str:
        """Makes a topic whose name begins like this, and says its whole name."""
        from confluent_kafka.admin import NewTopic

        topic = name if whole_name else f"{name}-{uuid.uuid4().hex[:8]}"
        made = self._admin.create_topics([NewTopic(topic, partitions, config=settings)])
        made[topic].result(_PATIENCE_S)
        return topic

    def add_partitions(self, topic: str, in_all: int) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import NewPartitions

        def known() -> bool:
            seen = self._admin.list_topics(topic, _PATIENCE_S).topics[topic]
            return len(seen.partitions) == in_all

        self._admin.create_partitions([NewPartitions(topic, in_all)])[topic].result(_PATIENCE_S)
        wait_until(known, f"{in_all} partitions of {topic}")
        # One that has sent to the topic believes for minutes that it has as many as before.
        self._producer = Producer(self._settings)

    def restart_broker(self, *topics: str) -> None:
        """Ends the broker at once and starts it again, when all that was committed to these topics
        has its marks.

        A broker that ends between the answer to a commit and the marks owes them. Kafka 4.3 never
        writes them: a partition without a leader, as all are while it starts, counts as deleted.
        """
        from confluent_kafka import TopicPartition

        places = [
            TopicPartition(topic, number)
            for topic in (*topics, "__consumer_offsets")  # where the numbers of batches are
            for number in self._admin.list_topics(topic, _PATIENCE_S).topics[topic].partitions
        ]
        assert all_is_marked(self._admin, places, _PATIENCE_S)
        self.broker.stop()
        self.broker.start()

    def send(self, topic: str, rows: Sequence[tuple[int, Any, Any]]) -> None:
        """Messages of partition, key and value; they are there when this returns."""
        for partition, key, value in rows:
            while True:
                try:
                    self._producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        assert self._producer.flush(_PATIENCE_S) == 0

    def read(self, *topics: str, committed: bool = True) -> list[Message]:
        """All that is in topics now: by partition, in order."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        level = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.address,
                "group.id": f"reader-{uuid.uuid4()}",
                "isolation.level": level,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        try:
            partitions = [
                TopicPartition(topic, number, OFFSET_BEGINNING)
                for topic in topics
                for number in consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions
            ]
            if committed:
                # Some tests leave a transaction open, so this does not take long.
                all_is_marked(self._admin, partitions, _MARKED_S)
            consumer.assign(partitions)
            found, left = [], len(partitions)
            end_s = time.monotonic() + _PATIENCE_S
            while left:
                assert time.monotonic() < end_s, "the broker does not answer"
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                if (error := message.error()) is None:
                    place = message.topic(), message.partition(), message.offset()
                    found.append(Message(*place, message.key(), message.value(), message.headers()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left -= 1
                else:  # what a broker says that has just been started again, and the client retries
                    assert not error.fatal(), error
            return sorted(found, key=lambda each: each[:3])
        finally:
            consumer.close()


@contextmanager
def kafka_broker_for_tests(
    paths: pytest.TempPathFactory, makes_topics: bool = False
) -> Iterator[KafkaBroker]:
    """A broker; where it is not installed its tests are skipped, but for those of CI."""
    lacking = missing()
    if lacking is not None:
        if os.environ.get("BRAIDED_TEST_KAFKA") == "required":
            raise RuntimeError(lacking)
        pytest.skip(lacking)
    with serve(paths.mktemp("kafka"), makes_topics=makes_topics) as broker:
        yield broker

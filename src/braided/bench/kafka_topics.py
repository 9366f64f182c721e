"""Topics of a Kafka broker: made, filled, and read up to what is committed.

Kafka's client is an extra, so it is imported where it is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import lt
from typing import TYPE_CHECKING, Any

from braided.bench.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient

__all__ = ["PARTITIONS", "PATIENCE_S", "BenchTopics", "all_is_marked", "rows_of"]

PARTITIONS = 2
PATIENCE_S = 120.0
_LOOK_S = 0.05


class BenchTopics:
    """What a benchmark asks of a broker."""

    def __init__(self, broker: KafkaBroker) -> None:
        from confluent_kafka.admin import AdminClient

        self.address = broker.address
        self._settings: dict[str, Any] = {"bootstrap.servers": broker.address, "log_level": 0}
        self._admin = AdminClient(self._settings)

    def create(self, topic: str) -> str:
        from confluent_kafka.cimpl import NewTopic

        made = self._admin.create_topics([NewTopic(topic, PARTITIONS)])
        made[topic].result(PATIENCE_S)
        return topic

    def producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer({**self._settings, "linger.ms": 5})

    def consumer(self, topic: str) -> Any:
        """One that sees what is committed, from the beginning on."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                **self._settings,
                "group.id": f"reader of {topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
        consumer.assign(places)
        return consumer

    def read(self, topic: str) -> Iterator[dict[str, Any]]:
        """All rows that are in a topic now; nobody may be writing to it."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        if not all_is_marked(self._admin, places, PATIENCE_S):
            raise RuntimeError(f"a transaction that wrote to {topic} does not end")
        consumer, ended = self.consumer(topic), set[int]()
        try:
            while len(ended) < PARTITIONS:
                yield from rows_of(consumer.consume(10_000, 1.0), ended)
        finally:
            consumer.close()


def rows_of(messages: Iterable[Any], ended: set[int]) -> Iterator[dict[str, Any]]:
    """The rows in messages; partitions whose end is among them are added to `ended`."""
    from confluent_kafka import KafkaError, KafkaException

    for message in messages:
        if (error := message.error()) is None:
            yield json.loads(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise KafkaException(error)


def all_is_marked(
    client: AdminClient, partitions: Sequence[TopicPartition], patience_s: float
) -> bool:
    """Waits until readers of what is committed come to the end of what is there.

    A broker may say that a transaction has ended before its marks are in the topics. Nor do readers
    come to the end while a transaction is open, and that looks the same from here: False if it
    took too long.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition, admin

    untyped: Any = admin  # whose types leave this one out
    newest = untyped.OffsetSpec.latest()
    places = [TopicPartition(each.topic, each.partition) for each in partitions]

    def ends(level: IsolationLevel) -> list[int]:
        wanted = dict.fromkeys(places, newest)
        told = client.list_offsets(wanted, isolation_level=level, request_timeout=patience_s)
        return [told[place].result(patience_s).offset for place in places]

    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        with suppress(KafkaException):  # it has just been started again
            until = ends(IsolationLevel.READ_UNCOMMITTED)
            if not any(map(lt, ends(IsolationLevel.READ_COMMITTED), until)):
                return True
        time.sleep(_LOOK_S)
    return False

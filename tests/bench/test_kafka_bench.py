"""The benchmark with Kafka: what it makes of what a broker says, and of one that is not there."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException

from braided.bench import kafka
from braided.bench.kafka_topics import rows_of
from braided.errors import DefinitionError


class Message(NamedTuple):
    """What a consumer gives out, as far as it is looked at."""

    said: Any
    place: int
    content: bytes | None = None

    def error(self) -> Any:
        return self.said

    def partition(self) -> int:
        return self.place

    def value(self) -> bytes | None:
        return self.content


def test_only_the_end_of_a_partition_is_one() -> None:
    ended: set[int] = set()
    end = Message(KafkaError(KafkaError._PARTITION_EOF), 1)
    assert list(rows_of([Message(None, 0, b'{"n": 1}'), end], ended)) == [{"n": 1}]
    assert ended == {1}
    with pytest.raises(KafkaException):
        list(rows_of([Message(KafkaError(KafkaError._ALL_BROKERS_DOWN), -1)], ended))
    assert ended == {1}


def test_the_benchmark_with_kafka_says_at_once_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what goes wrong with a broker that is there is not called a missing one."""
    monkeypatch.setattr(kafka, "missing", lambda: "there is none")
    with pytest.raises(DefinitionError, match="needs a Kafka broker: there is none"):
        kafka.run(True, print)

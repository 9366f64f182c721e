"""Exactly once under kill -9 in Kafka, for consumers that read what is committed, and two drivers
on one checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braided.bench.s3_server import S3Server
from support.kafka import Topics
from support.kill.crashes import Scene
from support.kill.exact import KAFKA_STEPS, OFTEN, ordered
from support.kill.oracle import random_batches, totals
from support.s3 import s3_server_for_tests

pytestmark = pytest.mark.together("kafka")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server_for_tests(tmp_path_factory) as server:
        yield server


def options(topics: Topics, topic: str) -> dict[str, str]:
    servers = topics.broker.address
    return {"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true"}


def seen(topics: Topics, topic: str, committed: bool = True) -> list[tuple[Any, ...]]:
    return ordered([json.loads(m.value or b"") for m in topics.read(topic, committed=committed)])


def test_a_driver_killed_at_each_step_leaves_every_row_once_in_kafka(
    tmp_path: Path, java: str, topics: Topics
) -> None:
    batches = random_batches(6)
    topic = topics.create("killed", 3)
    to_topic = {**OFTEN, **options(topics, topic)}
    scene = Scene(tmp_path, batches, "totals", sink="kafka", java=java, **to_topic)
    try:
        for point, behind in KAFKA_STEPS.items():
            scene.dies_at(point)
            committed = scene.committed_batch()
            assert committed < len(batches) - 1, "too little input for so many deaths"
            if point.startswith("transaction-written"):  # and is open: readers wait for its end
                assert len(seen(topics, topic, committed=False)) > 0
            assert seen(topics, topic) == ordered(totals(batches[: committed + 1 - behind])[0])
        scene.finishes()
        rows, state = totals(batches)
        assert scene.committed_batch() == scene.spark_batch() == len(batches) - 1
        assert seen(topics, topic) == ordered(rows)
        assert scene.state().records == state
        assert len(seen(topics, topic, committed=False)) > len(rows), "nothing was ever aborted"
    finally:
        scene.end_all()


def test_a_driver_that_was_taken_over_from_writes_nothing_more_to_kafka(
    tmp_path: Path, java: str, topics: Topics, s3_server: S3Server
) -> None:
    """It stands still when all rows of a batch are sent, and would commit them next."""
    batches = random_batches(4)
    topic = topics.create("zombie", 2)
    to_topic = options(topics, topic)
    scene = Scene(tmp_path, batches, "totals", sink="kafka", java=java, s3=s3_server, **to_topic)
    try:
        paused = scene.pauses_at("transaction-written:2")
        scene.takes_over()
        expected = ordered(totals(batches)[0])
        assert seen(topics, topic) == expected
        assert "FencedError" in (said := paused.goes_on()), said
        assert seen(topics, topic) == expected
        last = len(batches) - 1
        assert scene.committed_batch() == scene.spark_batch() == last
    finally:
        scene.end_all()

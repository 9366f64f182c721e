"""The exchange between Kafka, an object store and Delta tables, while each of them has its day."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from braided.bench.s3_server import S3Server
from braided.control.events import Measured, read
from support.kafka import Topics
from support.kill.crashes import Paused, Scene
from support.kill.exchange import TABLES, Order, expected, orders, table
from support.s3 import s3_server_for_tests
from support.stream_harness import wait_until

pytestmark = pytest.mark.together("kafka")

PARTITIONS = 3
STOCKS = [f"S{number:02d}" for number in range(12)]
NEW_STOCKS = ["N00", "N01", "N02", "N03"]
"""Whose orders are in the partition that is added."""
BATCH = 80
"""Orders that a batch takes at most."""
PATIENCE_S = 300.0
LONG = str(600_000)
"""What the broker and the driver wait for each other: as long as a slow machine takes."""


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server_for_tests(tmp_path_factory) as server:
        yield server


class Exchange:
    """Orders that were sent, and what is seen of them."""

    def __init__(self, scene: Scene, topics: Topics, incoming: str, outgoing: str) -> None:
        self._scene = scene
        self._topics = topics
        self._incoming = incoming
        self._outgoing = outgoing
        self.sent: list[Order] = []

    def send(self, count: int, stocks: Sequence[str]) -> None:
        """More orders; those of a stock in one partition, which it keeps."""
        more = orders(len(self.sent), count, stocks)
        self.sent += more
        place = {stock: number % PARTITIONS for number, stock in enumerate(STOCKS)}
        place.update(dict.fromkeys(NEW_STOCKS, PARTITIONS))
        self._topics.send(self._incoming, [(place[o.stock], o.stock, o.value) for o in more])

    def trades(self, committed: bool = True) -> dict[str, list[tuple[Any, ...]]]:
        """What a consumer sees, by stock and in order."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for message in self._topics.read(self._outgoing, committed=committed):
            row = tuple(json.loads(message.value or b"").values())
            found.setdefault((message.key or b"").decode(), []).append(row)
        return found

    def is_exact(self) -> bool:
        """Whether consumer and tables have what the orders come to, and nothing else."""
        due = expected(self.sent)
        seen = {name: table(self._scene.output, name) for name in TABLES}
        return self.trades() == due.trades and seen == due.tables

    def becomes_exact(self, driver: Paused) -> None:
        def is_exact() -> bool:
            driver.has_not_ended()
            return self.is_exact()

        wait_until(is_exact, f"what comes of {len(self.sent)} orders", PATIENCE_S)


def test_the_exchange_is_exact_though_its_broker_restarts_its_topic_grows_and_its_driver_dies(
    tmp_path: Path, java: str, topics: Topics, s3_server: S3Server
) -> None:
    """A transaction is open when the broker goes, and another one when the driver is killed."""
    incoming, outgoing = topics.create("orders", PARTITIONS), topics.create("trades", 2)
    servers = {"kafka.bootstrap.servers": topics.broker.address}
    source = {"subscribe": incoming, "startingOffsets": "earliest"}
    scene = Scene(
        tmp_path,
        [],
        "exchange",
        sink="exchange",
        java=java,
        s3=s3_server,
        source={**servers, **source, "maxOffsetsPerTrigger": str(BATCH)},
        **servers,
        **{"topic": outgoing, "exactlyOnce": "true"},
        **{"kafka.delivery.timeout.ms": LONG, "kafka.transaction.timeout.ms": LONG},
        **{"braided.scale": "ds2", "braided.channels.max": "4"},
    )
    exchange = Exchange(scene, topics, incoming, outgoing)
    try:
        exchange.send(2 * BATCH, STOCKS)
        driver = scene.pauses_at("transaction-written:2", endless=True)
        assert exchange.trades() != exchange.trades(committed=False)
        topics.broker.stop()
        driver.resumes()
        topics.broker.start()
        exchange.becomes_exact(driver)

        topics.add_partitions(incoming, PARTITIONS + 1)
        exchange.send(2 * BATCH, [*NEW_STOCKS, *STOCKS])
        exchange.becomes_exact(driver)

        driver.will_pause()
        exchange.send(3 * BATCH, [*STOCKS, *NEW_STOCKS])
        driver.is_reached()
        assert exchange.trades() != exchange.trades(committed=False)
        assert not exchange.is_exact()
        driver.dies()

        scene.finishes()
        due = expected(exchange.sent)
        assert exchange.trades() == due.trades
        assert {name: table(scene.output, name) for name in TABLES} == due.tables
        assert scene.committed_batch() == scene.spark_batch()
        events = (scene.checkpoint / "braided" / "events.jsonl").read_bytes().splitlines()
        watched = {event.operator for event in read(events) if isinstance(event, Measured)}
        assert watched == {"matcher", "ledger"}
    finally:
        scene.end_all()

"""A real Kafka broker on this machine, for benchmarks and tests: one node, which is its own
controller (KRaft).

`scripts/kafka.sh` installs its jars, and those with which Spark reaches it, below
`cache_directory()`. The broker listens on loopback only, and ends with whoever started it, however
that ends (`process_tree.py`). What it has written stays where it is until then, so it can be
stopped and started again, as a broker that is restarted is.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from braided.bench.free_port import free_port
from braided.bench.process_tree import keep
from braided.bench.s3_server import cache_directory
from braided.spark.version import SPARK

__all__ = ["KafkaBroker", "connector_jars", "missing", "serve"]

_START_S = 120.0
_JAVA = ["-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
auto.create.topics.enable={makes_topics}
num.partitions=4
# One that was killed is registered anew when the controller has missed it for so long.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def _broker_jars() -> Path:
    return cache_directory() / "kafka" / "broker"


def connector_jars() -> list[Path]:
    """What Spark needs for `format("kafka")`; none if it is not installed."""
    directory = "spark-4.1" if SPARK == (4, 1) else "spark"
    return sorted((cache_directory() / "kafka" / directory).glob("*.jar"))


def missing() -> str | None:
    """What there is to be installed first; None if all is there."""
    if not (cache_directory() / "kafka" / ".done-2").exists():
        return "the jars of Kafka are not installed: scripts/kafka.sh does it"
    if importlib.util.find_spec("confluent_kafka") is None:
        return "Kafka's client is not installed: pip install 'braided[kafka]' does it"
    if shutil.which("java") is None:
        return "there is no Java to run a Kafka broker with"
    return None


class KafkaBroker:
    """A broker that runs, or is stopped for a while."""

    def __init__(self, home: Path, port: int, makes_topics: bool) -> None:
        self.home = home
        self.address = f"127.0.0.1:{port}"
        """What clients are told, as `kafka.bootstrap.servers`."""
        self._settings = home / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                port=port,
                controller=free_port(),
                data=home / "data",
                makes_topics=str(makes_topics).lower(),
            )
        )
        self._keeper: subprocess.Popen[bytes] | None = None

    def format(self) -> None:
        """Prepares the directory, as a broker wants it before its first start."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # In one word: one in 64 begins with a dash, and would be taken for an option.
        command = _java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}")
        done = subprocess.run(
            [*command, "-c", str(self._settings)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"Kafka's storage can't be prepared: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Starts it and waits until clients can talk to it."""
        command = _java("kafka.Kafka", str(self._settings))
        self._keeper = keep(command, os.environ, self.home / "server.log")
        deadline = time.monotonic() + _START_S
        while not _answers(self.address):
            if self._keeper.poll() is not None or time.monotonic() > deadline:
                said = (self.home / "server.log").read_text()[-1000:]
                self.stop()
                raise RuntimeError(f"the Kafka broker does not start: {said}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it at once, as a machine that fails does; nothing happens if it does not run."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()


@contextmanager
def serve(home: Path, port: int = 0, makes_topics: bool = False) -> Iterator[KafkaBroker]:
    """A broker without topics, until the block ends; on a free port, if none is named."""
    lacking = missing()
    if lacking is not None:
        raise RuntimeError(lacking)
    broker = KafkaBroker(home, port or free_port(), makes_topics)
    try:
        broker.format()
        broker.start()
        yield broker
    finally:
        broker.stop()


def _java(*program: str) -> list[str]:
    return ["java", *_JAVA, "-cp", f"{_broker_jars()}/*", *program]


def _answers(address: str) -> bool:
    """Whether a broker knows itself there: it listens before it does."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False

"""The broker of tests and benchmarks."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from braided.bench.kafka_broker import KafkaBroker, missing


def test_a_broker_is_prepared_whatever_its_id_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's tool would take what begins with a dash for an option."""
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xfb" * 16))
    broker = KafkaBroker(tmp_path, 9, makes_topics=False)
    broker.format()
    assert "cluster.id=-_v7" in (tmp_path / "data" / "meta.properties").read_text()

"""What a scene has to be at any moment: the oracle's rows and the oracle's state."""

from __future__ import annotations

from typing import Any

from support.kill.crashes import Scene
from support.kill.oracle import InputRow, totals

__all__ = ["KAFKA_STEPS", "OFTEN", "TABLE_STEPS", "is_exact", "ordered"]

# Everything that happens now and then happens in almost every batch.
OFTEN = {
    "braided.snapshot.minBytes": "1",
    "braided.snapshot.factor": "0.01",
    "braided.snapshot.perTask": "3",
    "braided.retainedManifests": "2",
    "braided.fullManifestEvery": "2",
}

# Each step of a batch for tables, from the commit until Spark has recorded the batch. There are
# four of them, one after the other: from the second run on, the redelivered batch comes first.
TABLE_STEPS = {
    "manifest-linked:1": 0,
    "table-logged:1": 1,
    "publishing:4": 3,
    "table-logged:4": 4,
    "manifest-writing:2": 4,
    "after-publish:2": 4,
}
"""And how many of the tables then have what is committed."""

# The same where what is published is a transaction of Kafka's.
KAFKA_STEPS = {
    "manifest-linked:1": 1,
    "transaction-filling:1": 1,  # of the redelivered batch, as those that follow
    "transaction-written:1": 1,
    "transaction-committed:1": 0,
    "after-publish:2": 0,
}


def ordered(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows)


def is_exact(scene: Scene, batches: list[list[InputRow]], published: int, committed: int) -> None:
    """Readers see the oracle's rows up to one batch, the state is the oracle's at another."""
    rows, _ = totals(batches[: published + 1])
    assert ordered(scene.published()) == ordered(rows)
    _, state = totals(batches[: committed + 1])
    assert scene.state().records == state

"""What a scene has to be at any moment: the oracle's rows and the oracle's state."""

from __future__ import annotations

from typing import Any

from support.kill.crashes import Scene
from support.kill.oracle import InputRow, totals

__all__ = ["OFTEN", "is_exact", "ordered"]

# Everything that happens now and then happens in almost every batch.
OFTEN = {
    "braided.snapshot.minBytes": "1",
    "braided.snapshot.factor": "0.01",
    "braided.snapshot.perTask": "3",
    "braided.retainedManifests": "2",
    "braided.fullManifestEvery": "2",
}


def ordered(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows)


def is_exact(scene: Scene, batches: list[list[InputRow]], published: int, committed: int) -> None:
    """Readers see the oracle's rows up to one batch, the state is the oracle's at another."""
    rows, _ = totals(batches[: published + 1])
    assert ordered(scene.published()) == ordered(rows)
    _, state = totals(batches[: committed + 1])
    assert scene.state().records == state

"""Where a query's state is: what every stage tells its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from braided.store.durable.store import Store
from braided.store.slots.channel_state import SnapshotLimits

__all__ = ["StateLocation"]


@dataclass(frozen=True)
class StateLocation:
    """Where a query's state is."""

    flow: str
    store: Store
    cache: str
    limits: SnapshotLimits

"""Where a query's state is: what every stage tells its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from braided.store.durable.store import Store
from braided.store.slots.channel_state import SnapshotLimits

__all__ = ["CacheSetting", "StateLocation"]


@dataclass(frozen=True)
class CacheSetting:
    """Where each host keeps its copy of the state, and how much of it."""

    directory: str | None = None
    """None for where Spark keeps its own files on that host."""
    max_bytes: int | None = None
    """None for a part of the disk."""


@dataclass(frozen=True)
class StateLocation:
    """Where a query's state is."""

    flow: str
    store: Store
    cache: CacheSetting
    limits: SnapshotLimits

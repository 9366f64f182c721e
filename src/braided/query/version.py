"""What is true between two batches: the state, the tables and the watermark of the newest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from braided.control.routing.history import RoutingHistory
from braided.control.routing.table import RoutingTable
from braided.store.history.manifest import View

__all__ = ["Version"]


@dataclass(frozen=True)
class Version:
    """A query after a batch that is committed, or before its first."""

    view: View
    tables: Mapping[str, RoutingTable]
    watermark_ms: int
    """By which rows of the next batch are late."""
    history: RoutingHistory = field(default_factory=RoutingHistory)
    """The tables that were in effect up to here."""

    @property
    def batch(self) -> int:
        """The newest batch that has a manifest; -1 before the first."""
        return self.view.batch

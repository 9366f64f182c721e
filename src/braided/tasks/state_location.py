"""Where a query's state is: what every stage tells its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from braided.store.slots.channel_state import Limits

__all__ = ["StateLocation"]


@dataclass(frozen=True)
class StateLocation:
    """Where a query's state is."""

    flow: str
    root: str
    cache: str
    limits: Limits

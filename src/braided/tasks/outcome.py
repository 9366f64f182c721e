"""What the tasks of a batch came to, before it is made true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from braided.control.routing.table import RoutingTable
from braided.store.history.manifest import CarryFile, OperatorMeta, Prepared
from braided.tasks.first_state import FirstState
from braided.tasks.reports import ChannelReport

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a batch did, before it is made true."""

    batch: int
    batch_time_ms: int
    watermark_ms: int
    metas: Mapping[str, OperatorMeta]
    tables: Mapping[str, RoutingTable]
    reports: Mapping[str, list[ChannelReport]]
    outputs: tuple[Prepared, ...]
    fed_back: list[CarryFile]
    initial: Mapping[str, FirstState]
    """What operators in their first batch started with."""

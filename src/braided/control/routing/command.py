"""A command: what is to become of the tables, whatever they are when it is their turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from braided.control.routing.table import RoutingTable

__all__ = ["Command", "TableChange"]

TableChange = Callable[[RoutingTable, Any], RoutingTable]
"""A table and the load of its slots in, the next table out."""


@dataclass(frozen=True)
class Command:
    """What to make of the tables of some operators."""

    changes: Mapping[str, TableChange]
    channels: int = 0
    """The most that an operator will have, where that is known: so many workers are needed."""

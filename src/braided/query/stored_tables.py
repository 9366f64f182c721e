"""Routing tables as manifests hold them, and back: the only place that knows both forms."""

from __future__ import annotations

from typing import NamedTuple

from braided.control.routing.table import Pin, RoutingTable
from braided.store.history.manifest import OperatorVersion, PinnedKey, encode_table

__all__ = ["StoredTable", "stored_table", "table_of"]


class StoredTable(NamedTuple):
    """What a manifest has of a table, beside its epoch and the number of its channels."""

    slots: str
    pins: tuple[PinnedKey, ...]
    hosts: tuple[str, ...]


def stored_table(table: RoutingTable) -> StoredTable:
    pins = tuple(PinnedKey(pin.key, pin.hash, pin.check, pin.slot) for pin in table.pins)
    return StoredTable(encode_table(table.slots), pins, table.hosts)


def table_of(operator: OperatorVersion) -> RoutingTable:
    """The table that was in effect at a version."""
    pins = tuple(Pin(pin.key, pin.hash, pin.check, pin.slot) for pin in operator.pins)
    return RoutingTable(operator.epoch, operator.channels, operator.table, pins, operator.hosts)

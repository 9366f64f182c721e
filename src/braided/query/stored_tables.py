"""Routing tables as manifests hold them, and back: the only place that knows both forms."""

from __future__ import annotations

from typing import NamedTuple

from braided.control.routing.history import RoutingHistory
from braided.control.routing.table import Pin, RoutingTable
from braided.store.history.manifest import (
    Manifest,
    OperatorPart,
    OperatorVersion,
    PinnedKey,
    decode_table,
    encode_table,
)

__all__ = ["StoredHistory", "StoredTable", "stored_table", "table_of"]


class StoredTable(NamedTuple):
    """What a manifest has of a table, beside its epoch and the number of its channels."""

    slots: str
    pins: tuple[PinnedKey, ...]
    hosts: tuple[str, ...]


def stored_table(table: RoutingTable) -> StoredTable:
    pins = tuple(
        PinnedKey(pin.key, pin.hash, pin.check, pin.slot, pin.shares) for pin in table.pins
    )
    return StoredTable(encode_table(table.slots), pins, table.hosts)


def table_of(operator: OperatorVersion) -> RoutingTable:
    """The table that was in effect at a version."""
    pins = _pins_of(operator.pins)
    return RoutingTable(operator.epoch, operator.channels, operator.table, pins, operator.hosts)


class StoredHistory:
    """The tables that manifests have, which are shown to it in their order, a full one first."""

    def __init__(self) -> None:
        self.history = RoutingHistory()
        self._tables: dict[str, RoutingTable] = {}

    def see(self, manifest: Manifest) -> None:
        for name, part in manifest.operators.items():
            if part.table is not None:  # a delta has those that are new
                self._tables[name] = _table_of_part(part, part.table, self._tables.get(name))
        for name in manifest.dropped:
            self._tables.pop(name, None)
        self.history = self.history.noting(manifest.batch, self._tables)


def _table_of_part(part: OperatorPart, table: str, before: RoutingTable | None) -> RoutingTable:
    if part.meta is not None:
        slots = part.meta.slots
    else:
        assert before is not None  # the log has looked: an operator begins with what it is
        slots = before.slots.size
    pins = _pins_of(part.pins or ())
    return RoutingTable(
        part.epoch, part.channels, decode_table(table, slots), pins, part.hosts or ()
    )


def _pins_of(pinned: tuple[PinnedKey, ...]) -> tuple[Pin, ...]:
    return tuple(Pin(pin.key, pin.hash, pin.check, pin.slot, pin.shares) for pin in pinned)

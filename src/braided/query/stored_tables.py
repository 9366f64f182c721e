"""Routing tables as manifests hold them, and back: the only place that knows both forms.

Keys that are assigned to slots are in a file of their own, which a manifest names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from braided.control.routing.history import RoutingHistory
from braided.control.routing.key_assignment import NO_KEYS, KeyAssignment
from braided.control.routing.table import Pin, RoutingTable
from braided.store.history.assigned_keys import AssignedRows
from braided.store.history.manifest import (
    NO_FILE,
    AssignedFile,
    Manifest,
    OperatorPart,
    OperatorVersion,
    PinnedKey,
    View,
    decode_table,
    encode_table,
)
from braided.store.history.manifest_log import ManifestLog

__all__ = ["StoredHistory", "StoredTable", "store_assigned", "stored_table", "table_of"]


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


def store_assigned(
    manifests: ManifestLog, batch: int, tables: Mapping[str, RoutingTable], view: View
) -> dict[str, AssignedFile]:
    """The files of assigned keys that are not those of a view, by operator; durable now."""
    written = {}
    for name, table in tables.items():
        before, keys = view.operators.get(name), table.assigned
        if keys.digest == ("" if before is None else before.assigned.digest):
            continue
        if keys.count:
            rows = AssignedRows(keys.to_batch(), keys.digest)
            written[name] = manifests.write_assigned(name, batch, rows)
        else:
            written[name] = NO_FILE
    return written


def table_of(operator: OperatorVersion, manifests: ManifestLog) -> RoutingTable:
    """The table that was in effect at a version."""
    assigned = NO_KEYS
    if operator.assigned.name:
        assigned = KeyAssignment.of_batch(manifests.read_assigned(operator.assigned))
    return RoutingTable(
        operator.epoch,
        operator.channels,
        operator.table,
        _pins_of(operator.pins),
        operator.hosts,
        assigned,
    )


class StoredHistory:
    """The tables that manifests have, which are shown to it in their order, a full one first."""

    def __init__(self) -> None:
        self.history = RoutingHistory()
        self._tables: dict[str, RoutingTable] = {}

    def see(self, manifest: Manifest) -> None:
        for name, part in manifest.operators.items():
            if part.table is not None:  # a delta has those that are new
                before = self._tables.get(name)
                self._tables[name] = _table_of_part(part, part.table, before)
        for name in manifest.dropped:
            self._tables.pop(name, None)
        self.history = self.history.noting(manifest.batch, self._tables)


def _table_of_part(part: OperatorPart, table: str, before: RoutingTable | None) -> RoutingTable:
    if part.meta is not None:
        slots = part.meta.slots
    else:
        assert before is not None  # the log has looked: an operator begins with what it is
        slots = before.slots.size
    assigned = NO_KEYS if before is None else before.assigned
    if part.assigned is not None:
        assigned = KeyAssignment.outlined(part.assigned.keys, part.assigned.digest)
    return RoutingTable(
        part.epoch,
        part.channels,
        decode_table(table, slots),
        _pins_of(part.pins or ()),
        part.hosts or (),
        assigned,
    )


def _pins_of(pinned: tuple[PinnedKey, ...]) -> tuple[Pin, ...]:
    return tuple(Pin(pin.key, pin.hash, pin.check, pin.slot, pin.shares) for pin in pinned)

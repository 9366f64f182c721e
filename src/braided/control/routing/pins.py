"""Keys that are pinned or assigned to a slot: what a table becomes.

What then moves is in `key_moves.py`. A key that is pinned moves between slots of one channel, so
that the batch that pins it shifts no work from one channel to another; in the batch after, either
slot may go anywhere.

A key that is split has no state in the slots that its rows go to, so nothing has to move for it:
what its shares come to in a batch is merged into its state, where that is, when the batch is
committed (`query/merging.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from braided.control.routing.key_assignment import Hashes, KeyAssignment
from braided.control.routing.table import Pin, RoutingTable

__all__ = ["assign_keys", "hash_slot", "pin_key", "unpin_key", "unpinned_slot", "without_shares"]

_Hash = TypeVar("_Hash", int, Hashes)


def hash_slot(hash: _Hash, slots: int) -> _Hash:
    """Where a key of that hash is, if nobody pinned or assigned it: what `flow/route.py` says in
    SQL. State lies in slots by this rule, so it is a format.
    """
    return hash % slots


def unpinned_slot(table: RoutingTable, hash: int, check: int) -> int:
    """Where a key of these hashes is, if it is not pinned."""
    assigned = table.assigned.slot_of(hash, check)
    return hash_slot(hash, table.slots.size) if assigned is None else assigned


def assign_keys(table: RoutingTable, assigned: KeyAssignment, epoch: int) -> RoutingTable:
    """The table with these keys assigned, and no others; the same one if they are already. Those
    that are pinned stay where they are.
    """
    return table if assigned == table.assigned else replace(table, epoch=epoch, assigned=assigned)


def pin_key(table: RoutingTable, pin: Pin, epoch: int) -> RoutingTable:
    """The table with one more key pinned, or split into the shares that `pin` has; the same one if
    nothing would change.

    A key that is pinned already stays in its slot, and only its shares become those of `pin`.
    """
    home = unpinned_slot(table, pin.hash, pin.check)
    old = next((other for other in table.pins if other.key == pin.key), None)
    if old is not None:
        return table if old.shares == pin.shares else _reshared(table, old, pin.shares, epoch)
    if pin.slot == home and not pin.shares:
        return table
    return _with_pins(table, (*table.pins, pin), home, pin.slot, epoch)


def unpin_key(table: RoutingTable, key: bytes, epoch: int) -> RoutingTable:
    """The table with a key no longer pinned; the same one if it is not."""
    pin = next((other for other in table.pins if other.key == key), None)
    if pin is None:
        return table
    others = tuple(other for other in table.pins if other is not pin)
    return _with_pins(table, others, pin.slot, unpinned_slot(table, pin.hash, pin.check), epoch)


def without_shares(table: RoutingTable, epoch: int) -> RoutingTable:
    """The table with no key split; the same one if none is."""
    for pin in table.pins:
        if pin.shares:
            table = _reshared(table, pin, (), epoch)
    return table


def _reshared(table: RoutingTable, old: Pin, shares: tuple[int, ...], epoch: int) -> RoutingTable:
    """The table with other shares of a pinned key; one that has none and would be there
    without it is no pin.
    """
    is_pin = shares or old.slot != unpinned_slot(table, old.hash, old.check)
    pins = tuple(
        replace(pin, shares=shares) if pin is old else pin
        for pin in table.pins
        if is_pin or pin is not old
    )
    return replace(table, epoch=epoch, pins=pins)


def _with_pins(
    table: RoutingTable, pins: tuple[Pin, ...], donor: int, taker: int, epoch: int
) -> RoutingTable:
    """The table with other pins. The slot that the key goes to comes to the channel of the one that
    it leaves, unless it has keys that were to be where it is.
    """
    slots = table.slots.copy()
    if not (table.assigned.slots == taker).any():
        slots[taker] = slots[donor]
    return replace(table, epoch=epoch, slots=slots, pins=pins)

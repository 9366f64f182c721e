"""Keys that change slots: what a table becomes, and what has to move.

A key's state moves within one task: in the batch that pins it, the slot that it leaves and the one
it goes to have the same channel, and the task takes it from one to the other before the first row.
In the batch after, either slot may go anywhere.

A key that is split has no state in the slots that its rows go to, so nothing has to move for it:
what its shares come to in a batch is merged into its state, where that is, when the batch is
committed (`query/merging.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from braided.control.routing.table import Pin, RoutingTable

__all__ = ["KeyMove", "hash_slot", "moved_keys", "pin_key", "unpin_key", "without_shares"]


@dataclass(frozen=True)
class KeyMove:
    """A key's move from the slot that it leaves to another."""

    key: bytes
    donor: int
    taker: int


def hash_slot(hash: int, slots: int) -> int:
    """Where a key of that hash is, if nobody pinned it: what `flow/route.py` says in SQL. State
    lies in slots by this rule, so it is a format.
    """
    return hash % slots


def pin_key(table: RoutingTable, pin: Pin, epoch: int) -> RoutingTable:
    """The table with one more key pinned, or split into the shares that `pin` has; the same one if
    nothing would change.

    A key that is pinned already stays in its slot, and only its shares become those of `pin`.
    """
    home = hash_slot(pin.hash, table.slots.size)
    old = next((other for other in table.pins if other.key == pin.key), None)
    if old is not None:
        return table if old.shares == pin.shares else _reshared(table, old, pin.shares, epoch)
    if pin.slot == home and not pin.shares:
        return table
    return _together(table, (*table.pins, pin), home, pin.slot, epoch)


def unpin_key(table: RoutingTable, key: bytes, epoch: int) -> RoutingTable:
    """The table with a key back in the slot of its hash; the same one if it is there."""
    pin = next((other for other in table.pins if other.key == key), None)
    if pin is None:
        return table
    others = tuple(other for other in table.pins if other is not pin)
    return _together(table, others, pin.slot, hash_slot(pin.hash, table.slots.size), epoch)


def without_shares(table: RoutingTable, epoch: int) -> RoutingTable:
    """The table with no key split; the same one if none is."""
    for pin in table.pins:
        if pin.shares:
            table = _reshared(table, pin, (), epoch)
    return table


def moved_keys(before: RoutingTable, after: RoutingTable) -> list[KeyMove]:
    """The keys that are in another slot in `after` than in `before`."""
    slots = before.slots.size
    pins_before = {pin.key: pin for pin in before.pins}
    key_moves = []
    for pin in after.pins:
        old = pins_before.pop(pin.key, None)
        donor = hash_slot(pin.hash, slots) if old is None else old.slot
        if donor != pin.slot:
            key_moves.append(KeyMove(pin.key, donor, pin.slot))
    for pin in pins_before.values():
        taker = hash_slot(pin.hash, slots)
        if pin.slot != taker:
            key_moves.append(KeyMove(pin.key, pin.slot, taker))
    for moved in key_moves:
        if after.slots[moved.donor] != after.slots[moved.taker]:
            raise ValueError(
                f"a key moves from slot {moved.donor} to {moved.taker}, which have two channels"
            )
    return key_moves


def _reshared(table: RoutingTable, old: Pin, shares: tuple[int, ...], epoch: int) -> RoutingTable:
    """The table with other shares of a pinned key; one that has none and is at home is no pin."""
    is_pin = shares or old.slot != hash_slot(old.hash, table.slots.size)
    pins = tuple(
        replace(pin, shares=shares) if pin is old else pin
        for pin in table.pins
        if is_pin or pin is not old
    )
    return replace(table, epoch=epoch, pins=pins)


def _together(
    table: RoutingTable, pins: tuple[Pin, ...], donor: int, taker: int, epoch: int
) -> RoutingTable:
    slots = table.slots.copy()
    slots[taker] = slots[donor]
    return RoutingTable(epoch, table.channels, slots, pins, table.hosts)

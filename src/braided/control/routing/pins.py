"""Keys that change slots: what a table becomes, and what has to move.

A key's state moves within one task: in the batch that pins it, the slot that it leaves and the one
it goes to have the same channel, and the task takes it from one to the other before the first row.
In the batch after, either slot may go anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from braided.control.routing.table import Pin, RoutingTable

__all__ = ["KeyMove", "hash_slot", "moved_keys", "pin_key", "unpin_key"]


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
    """The table with one more key pinned; the same one if it is already, or would not move."""
    donor = hash_slot(pin.hash, table.slots.size)
    if donor == pin.slot or any(other.key == pin.key for other in table.pins):
        return table
    return _together(table, (*table.pins, pin), donor, pin.slot, epoch)


def unpin_key(table: RoutingTable, key: bytes, epoch: int) -> RoutingTable:
    """The table with a key back in the slot of its hash; the same one if it is there."""
    pin = next((other for other in table.pins if other.key == key), None)
    if pin is None:
        return table
    others = tuple(other for other in table.pins if other is not pin)
    return _together(table, others, pin.slot, hash_slot(pin.hash, table.slots.size), epoch)


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
    key_moves += [
        KeyMove(pin.key, pin.slot, hash_slot(pin.hash, slots)) for pin in pins_before.values()
    ]
    for moved in key_moves:
        if after.slots[moved.donor] != after.slots[moved.taker]:
            raise ValueError(
                f"a key moves from slot {moved.donor} to {moved.taker}, which have two channels"
            )
    return key_moves


def _together(
    table: RoutingTable, pins: tuple[Pin, ...], donor: int, taker: int, epoch: int
) -> RoutingTable:
    slots = table.slots.copy()
    slots[taker] = slots[donor]
    return RoutingTable(epoch, table.channels, slots, pins, table.hosts)

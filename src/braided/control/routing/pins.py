"""Keys that change slots: what a table becomes, and what has to move.

A key's state moves within one task: in the batch that pins it, the slot that it leaves and the one
it goes to have the same channel, and the task takes it from one to the other before the first row.
In the batch after, either slot may go anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from braided.control.routing.table import Pin, RoutingTable

__all__ = ["Moved", "hash_slot", "moved_keys", "pinned", "unpinned"]


@dataclass(frozen=True)
class Moved:
    """A key that leaves a slot for another."""

    key: bytes
    donor: int
    taker: int


def hash_slot(pin: Pin, slots: int) -> int:
    """Where a key is that nobody pinned."""
    return pin.hash % slots


def pinned(table: RoutingTable, pin: Pin, epoch: int) -> RoutingTable:
    """The table with one more key pinned; the same one if it is already, or would not move."""
    donor = hash_slot(pin, table.slots.size)
    if donor == pin.slot or any(known.key == pin.key for known in table.pins):
        return table
    return _together(table, (*table.pins, pin), donor, pin.slot, epoch)


def unpinned(table: RoutingTable, key: bytes, epoch: int) -> RoutingTable:
    """The table with a key back in the slot of its hash; the same one if it is there."""
    pin = next((known for known in table.pins if known.key == key), None)
    if pin is None:
        return table
    others = tuple(known for known in table.pins if known is not pin)
    return _together(table, others, pin.slot, hash_slot(pin, table.slots.size), epoch)


def moved_keys(before: RoutingTable, after: RoutingTable) -> list[Moved]:
    """The keys that are in another slot in `after` than in `before`."""
    slots = before.slots.size
    known = {pin.key: pin for pin in before.pins}
    found = []
    for pin in after.pins:
        old = known.pop(pin.key, None)
        donor = hash_slot(pin, slots) if old is None else old.slot
        if donor != pin.slot:
            found.append(Moved(pin.key, donor, pin.slot))
    found += [Moved(pin.key, pin.slot, hash_slot(pin, slots)) for pin in known.values()]
    for moved in found:
        if after.slots[moved.donor] != after.slots[moved.taker]:
            raise ValueError(
                f"a key moves from slot {moved.donor} to {moved.taker}, which have two channels"
            )
    return found


def _together(
    table: RoutingTable, pins: tuple[Pin, ...], donor: int, taker: int, epoch: int
) -> RoutingTable:
    slots = table.slots.copy()
    slots[taker] = slots[donor]
    return RoutingTable(epoch, table.channels, slots, pins)

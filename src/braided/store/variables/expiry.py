"""Takes out of a slot what has expired of its state variables.

When something with a time to live is new, a note of its expiry is made (variables.py). A sweep goes
through the notes of the past: what has expired goes, and for what was prolonged meanwhile another
note is made.
"""

from __future__ import annotations

from typing import Any

from braided.store.slots.slot import SlotState
from braided.store.variables.layout import (
    CHUNK,
    ENTRY,
    EXPIRY,
    VALUE,
    chunk_place,
    expiry_bound,
    expiry_parts,
    expiry_place,
    key_part,
    variable_of,
    variable_place,
)
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import expiry_of

__all__ = ["sweep"]


def sweep(slot: SlotState, key: OpenKey, now_ms: int) -> int:
    """Removes from a slot what has expired; how much that was. No key may be open."""
    removed = 0
    for noted, owner in list(slot.scan(EXPIRY, expiry_bound(now_ms + 1))):
        slot.delete(noted)
        place = expiry_parts(noted)
        key.open(slot, owner)
        expiry_ms = _swept(key, place, variable_of(place, owner), now_ms)
        if expiry_ms is None:
            removed += 1
        elif expiry_ms > now_ms:
            slot.put(expiry_place(expiry_ms, place), owner)
        key.close()
    return removed


def _swept(key: OpenKey, place: bytes, number: int, now_ms: int) -> int | None:
    """Removes what lies at a place if it has expired; else when it will, 0 if it is gone."""
    cell = key.cells.get(number)
    if cell is None:
        return 0
    if place[:1] == VALUE:
        if cell[0] > now_ms:
            return int(cell[0])
        del key.cells[number]
        if cell[1] is True:
            key.slot.delete(place)
        key.dirty = True
        return None
    data = key.slot.get(place)
    if data is None:
        return 0
    if expiry_of(data) > now_ms:
        return expiry_of(data)
    key.slot.delete(place)
    key.dirty = True
    if place[:1] == ENTRY:
        key.touch(variable_place(ENTRY, key_part(key.key), number), place)
        left: Any = cell - 1
    else:
        first, last = cell
        prefix = variable_place(CHUNK, key_part(key.key), number)
        while first < last and key.slot.get(chunk_place(prefix, first)) is None:
            first += 1
        left = [first, last] if first < last else None
    if left:
        key.cells[number] = left
    else:
        del key.cells[number]
    return None

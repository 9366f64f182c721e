"""A key that goes from one slot to another with all it has: record, timers, pieces, expiries."""

from __future__ import annotations

from braided.store.slots.keys import TIMER, record_key, timer_parts
from braided.store.slots.slot import SlotState
from braided.store.variables.layout import CHUNK, ENTRY, EXPIRY, VALUE, key_part

__all__ = ["move_key"]


def move_key(key: bytes, donor: SlotState, taker: SlotState) -> list[bytes]:
    """Leaves nothing of the key in `donor`; costs a look at each timer and expiry there.

    Gives back where in `taker` the pieces of its variables lie now.
    """
    record, _ = record_key(key)
    found = donor.get(record)
    places = [] if found is None else [(record, found)]
    part = key_part(key)
    pieces = [each for kind in (VALUE, CHUNK, ENTRY) for each in donor.scan(kind + part)]
    places += pieces
    places += [(at, value) for at, value in donor.scan(TIMER) if timer_parts(at, value)[1] == key]
    places += [(at, value) for at, value in donor.scan(EXPIRY) if value == key]
    for place, value in places:
        donor.delete(place)
        taker.put(place, value)
    return [place for place, _ in pieces]

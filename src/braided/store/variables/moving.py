"""A key that goes from one slot to another with all it has: record, timers, pieces, expiries."""

from __future__ import annotations

from braided.store.slots.layout import (
    CHUNK,
    ENTRY,
    EXPIRY,
    TIMER,
    VALUE,
    record_suffix,
    timer_parts,
)
from braided.store.slots.slot import SlotState
from braided.store.variables.layout import key_part

__all__ = ["move_key"]


def move_key(key: bytes, donor: SlotState, taker: SlotState) -> list[bytes]:
    """Leaves nothing of the key in `donor`; costs a look at each timer and expiry there.

    Gives back the suffixes under which the pieces of its variables lie in `taker` now.
    """
    suffix, _ = record_suffix(key)
    record = donor.get(suffix)
    part = key_part(key)
    pieces = [item for kind in (VALUE, CHUNK, ENTRY) for item in donor.scan(kind + part)]
    timers = [item for item in donor.scan(TIMER) if timer_parts(*item)[1] == key]
    expiries = [item for item in donor.scan(EXPIRY) if item[1] == key]
    records = [] if record is None else [(suffix, record)]
    for suffix, value in (*records, *pieces, *timers, *expiries):
        donor.delete(suffix)
        taker.put(suffix, value)
    return [suffix for suffix, _ in pieces]

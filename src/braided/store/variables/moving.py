"""All that keys have in a slot: records, timers, pieces, expiries; so that they can go to others.

Timers and expiries lie in the order of their times, so they are looked through once for all keys.
All else is found by the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

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

__all__ = ["Belongings", "belongings_of", "is_piece"]

Belongings: TypeAlias = Mapping[bytes, Sequence[tuple[bytes, bytes]]]
"""What each key has, as suffixes and values; a key that has nothing is not there."""

_PIECES = (VALUE, CHUNK, ENTRY)
_PIECE_BYTES = b"".join(_PIECES)


def belongings_of(keys: Sequence[bytes], slot: SlotState) -> Belongings:
    """What keys have in a slot. The slot is left as it is."""
    found: dict[bytes, list[tuple[bytes, bytes]]] = {}
    suffixes = [record_suffix(key)[0] for key in keys]
    for key, suffix, record in zip(keys, suffixes, slot.get_many(suffixes), strict=True):
        if record is not None:
            found[key] = [(suffix, record)]
    for kind in _PIECES:
        if slot.first(kind) is not None:
            for key in keys:
                pieces = list(slot.scan(kind + key_part(key)))
                if pieces:
                    found.setdefault(key, []).extend(pieces)
    wanted = frozenset(keys)
    for suffix, value in slot.scan(TIMER):
        key = timer_parts(suffix, value)[1]
        if key in wanted:
            found.setdefault(key, []).append((suffix, value))
    for suffix, key in slot.scan(EXPIRY):
        if key in wanted:
            found.setdefault(key, []).append((suffix, key))
    return found


def is_piece(suffix: bytes) -> bool:
    """Whether a piece of a variable lies there."""
    return suffix[0] in _PIECE_BYTES

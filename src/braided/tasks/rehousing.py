"""Keys that change slots do so before the first row: pinned, assigned, or no longer either.

The task of the slot that a key goes to reads all that the key has at the version before, in a slot
of its own or of another channel, and the task of the slot that it leaves removes it. Both are in
the changelogs of one batch, so the manifest makes them true together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from braided.store.variables.moving import Belongings, belongings_of, is_piece
from braided.tasks.channel import Channel

__all__ = ["RehousedKey", "rehouse_keys"]

_AT_ONCE = 256
"""Slots of other channels that are held open together."""


class RehousedKey(NamedTuple):
    key: bytes
    pieces: Sequence[bytes]
    """Where the pieces of its variables lie now."""


def rehouse_keys(channel: Channel) -> list[RehousedKey]:
    """Takes each key that comes to the channel, with all it has, and removes what has left."""
    moves = channel.moves()
    if moves is None:
        return []
    taken, given = moves.taken.triples(), moves.given.triples()
    touched = {donor for _, donor, _ in given} | {taker for _, _, taker in taken}
    channel.state.open_slots(touched)
    # Everything is read before anything is changed: slots may exchange keys.
    here = _by_donor((key, donor) for key, donor, _ in given)
    had = {donor: belongings_of(keys, channel.state.slot(donor)) for donor, keys in here.items()}
    brought = _brought(channel, _by_donor((k, donor) for k, donor, _ in taken if donor not in had))
    for donor, belongings in had.items():
        slot = channel.state.slot(donor)
        for items in belongings.values():
            for suffix, _ in items:
                slot.delete(suffix)
    rehoused = []
    for key, donor, taker in taken:
        items = (had if donor in had else brought)[donor].get(key, ())
        slot = channel.state.slot(taker)
        for suffix, value in items:
            slot.put(suffix, value)
        pieces = [suffix for suffix, _ in items if is_piece(suffix)]
        if pieces:
            rehoused.append(RehousedKey(key, pieces))
    # A timer that is due fires here, although the driver knows it in the other slot.
    channel.meter.touch(sorted(touched))
    return rehoused


def _brought(channel: Channel, keys: dict[int, list[bytes]]) -> dict[int, Belongings]:
    """What keys have in slots of other channels."""
    found: dict[int, Belongings] = {}
    if not keys:
        return found
    donors, guests = sorted(keys), channel.guests()
    for first in range(0, len(donors), _AT_ONCE):
        with guests.opened(donors[first : first + _AT_ONCE]) as slots:
            found |= {donor: belongings_of(keys[donor], slot) for donor, slot in slots.items()}
    return found


def _by_donor(pairs: Iterable[tuple[bytes, int]]) -> dict[int, list[bytes]]:
    keys: dict[int, list[bytes]] = {}
    for key, donor in pairs:
        keys.setdefault(donor, []).append(key)
    return keys

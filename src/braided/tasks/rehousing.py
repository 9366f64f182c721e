"""Keys that are pinned to another slot, or no longer, change slots before the first row."""

from __future__ import annotations

from typing import NamedTuple

from braided.store.variables.moving import move_key
from braided.tasks.channel import Channel

__all__ = ["RehousedKey", "rehouse_keys"]


class RehousedKey(NamedTuple):
    key: bytes
    pieces: list[bytes]
    """Where the pieces of its variables lie now."""


def rehouse_keys(channel: Channel) -> list[RehousedKey]:
    """Takes each key that the batch names, with all it has, from one slot to the other."""
    rehoused = []
    for move in channel.batch.rehoused.get(channel.name, {}).get(channel.number, ()):
        slots = (move.donor, move.taker)
        channel.state.open_slots(slots)
        donor, taker = map(channel.state.slot, slots)
        rehoused.append(RehousedKey(move.key, move_key(move.key, donor, taker)))
        # A timer that is due fires here, although the driver knows it in the other slot.
        channel.meter.touch(slots)
    return rehoused

"""Keys that change slots, as a task is told of them."""

from __future__ import annotations

import msgspec

from braided.control.routing.key_moves import KeyMoves
from braided.tasks.shipped_moves import ShippedMoves, _columns

__all__ = ["moved"]


def moved(triples: list[tuple[bytes, int, int]]) -> ShippedMoves:
    """Moves (key, donor, taker) of the one channel that there is."""
    columns = _columns(KeyMoves.of(*map(list, zip(*triples, strict=True))))
    return ShippedMoves([msgspec.msgpack.encode((columns, columns))])

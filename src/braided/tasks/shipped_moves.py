"""Keys that change slots in a batch, as the driver ships them to the tasks that have to do with it.

The task of the slot that a key goes to takes it, the task of the slot that it leaves removes it. So
each channel is told of its own part, and what the slots are made of that it reads and has not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from braided.control.routing.key_moves import KeyMoves
from braided.control.routing.table import RoutingTable
from braided.store.durable.store import Store
from braided.store.history.chains import Chains
from braided.store.history.shipped_chains import ShippedChains, pack_slots, ship_chains
from braided.store.history.shipped_parts import ShippedParts, ship_parts

__all__ = ["ChannelMoves", "ShippedMoves", "guest_slots", "ship_moves"]


class ChannelMoves(NamedTuple):
    """What a channel has to do with the moves of a batch."""

    taken: KeyMoves
    """Keys that come to its slots, from its own and from others."""
    given: KeyMoves
    """Keys that leave its slots."""


class _MoveColumns(msgspec.Struct, frozen=True, array_like=True):
    keys: list[bytes]
    donors: bytes
    takers: bytes


_decode = msgspec.msgpack.Decoder(tuple[_MoveColumns, _MoveColumns]).decode


class ShippedMoves(ShippedParts, frozen=True, omit_defaults=True):
    """What the tasks of one operator are told of keys that change slots."""

    guests: ShippedChains | None = None
    """What the slots are made of that are read by channels that do not have them; in one part for
    all. None where there are none, and in an operator's first batch, when every task knows all.
    """

    def of(self, files: Store, channel: int) -> ChannelMoves:
        what = f"which keys come to channel {channel} and leave it"
        return ChannelMoves(*map(_moves_of, _decode(self.part(files, channel, what))))

    def guest_chains(self, files: Store, slots: int) -> Chains | None:
        return None if self.guests is None else self.guests.chains(files, 0, slots)

    @property
    def written(self) -> list[str]:
        """The files that are there for the time of the batch."""
        files = [self.file, "" if self.guests is None else self.guests.file]
        return [name for name in files if name]


def ship_moves(
    files: Store,
    path: Callable[[str], str],
    moves: KeyMoves,
    table: RoutingTable,
    chains: Chains | None,
) -> ShippedMoves:
    """What is shipped of moves to the channels of a table; `chains` of all slots before the batch,
    if there was one. `path` makes a name of what is in a file.
    """
    donors, takers = table.slots[moves.donors], table.slots[moves.takers]
    packed = [
        msgspec.msgpack.encode(
            tuple(_columns(moves.where(side == channel)) for side in (takers, donors))
        )
        for channel in range(table.channels)
    ]
    shipped = ship_parts(ShippedMoves, files, path("moves"), packed)
    guests = guest_slots(moves, table)
    if chains is None or not guests.size:
        return shipped
    chained = ship_chains(files, path("guests"), [pack_slots(chains, guests.tolist())])
    return msgspec.structs.replace(shipped, guests=chained)


def guest_slots(moves: KeyMoves, table: RoutingTable) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The slots from which a key goes to another channel, ascending."""
    away = table.slots[moves.donors] != table.slots[moves.takers]
    return np.unique(moves.donors[away])


def _columns(moves: KeyMoves) -> _MoveColumns:
    return _MoveColumns(moves.keys.to_pylist(), moves.donors.tobytes(), moves.takers.tobytes())


def _moves_of(columns: _MoveColumns) -> KeyMoves:
    donors, takers = (np.frombuffer(each, np.int32) for each in (columns.donors, columns.takers))
    return KeyMoves(pa.array(columns.keys, pa.binary()), donors, takers)

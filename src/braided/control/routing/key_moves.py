"""The keys that are in another slot by one table than by the table before, all at once.

Where a key is, is one rule: in the slot of its pin, else in the one that it is assigned to, else in
the slot of its hash. State moves where the rule says another slot than before, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.control.routing.key_assignment import Hashes, KeyAssignment
from braided.control.routing.pins import hash_slot, unpinned_slot
from braided.control.routing.table import Pin, RoutingTable, Slots

__all__ = ["KeyMoves", "moved_keys", "slot_of_key"]


@dataclass(frozen=True, eq=False)
class KeyMoves:
    """Keys, the slot that each leaves and the one that it goes to."""

    keys: pa.Array
    """Their bytes, as a binary column."""
    donors: Slots
    takers: Slots

    @classmethod
    def of(cls, keys: Sequence[bytes], donors: Sequence[int], takers: Sequence[int]) -> KeyMoves:
        return cls(
            pa.array(keys, pa.binary()), np.array(donors, np.int32), np.array(takers, np.int32)
        )

    def where(self, kept: npt.NDArray[np.bool_]) -> KeyMoves:
        """Some of the moves."""
        return KeyMoves(self.keys.filter(kept), self.donors[kept], self.takers[kept])

    def triples(self) -> list[tuple[bytes, int, int]]:
        """Key, donor and taker of each."""
        columns = (self.keys.to_pylist(), self.donors.tolist(), self.takers.tolist())
        return list(zip(*columns, strict=True))

    def __len__(self) -> int:
        return int(self.donors.size)


def slot_of_key(table: RoutingTable, hash: int, check: int) -> int:
    """Where the state of a key of these hashes is."""
    for pin in table.pins:
        if pin.hash == hash and pin.check == check:
            return pin.slot
    return unpinned_slot(table, hash, check)


def moved_keys(before: RoutingTable, after: RoutingTable) -> KeyMoves:
    """The keys that are in another slot in `after` than in `before`."""
    if after.keeps_keys_of(before):
        return KeyMoves.of([], [], [])
    pins = {pin.key: pin for table in (before, after) for pin in table.pins}
    moves = [_moved_pins(list(pins.values()), before, after)]
    if before.assigned != after.assigned:
        hashes, checks = (
            np.array([getattr(pin, name) for pin in pins.values()], np.int64)
            for name in ("hash", "check")
        )
        # A key that is pinned, before or after, has been looked at.
        old, new = (each.assigned.without(hashes, checks) for each in (before, after))
        moves += _reassigned(old, new, before.slots.size)
    return KeyMoves(
        pa.concat_arrays([each.keys for each in moves]),
        np.concatenate([each.donors for each in moves]),
        np.concatenate([each.takers for each in moves]),
    )


def _moved_pins(pins: Sequence[Pin], before: RoutingTable, after: RoutingTable) -> KeyMoves:
    slots = [
        tuple(slot_of_key(table, pin.hash, pin.check) for table in (before, after)) for pin in pins
    ]
    moved = [(pin.key, *pair) for pin, pair in zip(pins, slots, strict=True) if pair[0] != pair[1]]
    return KeyMoves.of(*([list(each) for each in zip(*moved, strict=True)] or ([], [], [])))


def _reassigned(old: KeyAssignment, new: KeyAssignment, slots: int) -> list[KeyMoves]:
    """The moves of keys that are assigned, and of those that are no longer."""
    was, is_now = old.positions(new.hashes, new.checks), new.positions(old.hashes, old.checks)
    donors = _home(new.hashes, slots)
    known = was >= 0
    donors[known] = old.slots[was[known]]
    come = KeyMoves(new.keys, donors, new.slots)
    gone = KeyMoves(old.keys, old.slots, _home(old.hashes, slots)).where(is_now < 0)
    return [each.where(each.donors != each.takers) for each in (come, gone)]


def _home(hashes: Hashes, slots: int) -> Slots:
    """The slots of hashes: `hash_slot` of many."""
    return hash_slot(hashes, slots).astype(np.int32)

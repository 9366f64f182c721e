"""Many keys that each have a slot of their own choosing: tens of thousands of them, as columns.

A pin (`table.py`) is for the few keys that are too hot; an assignment is for keys that should be
near others. It is one value, made once and then passed around: equal to another if it says the
same, which a digest of its content tells. Keys are known by the two hashes of their rows, in the
order of which they stand, and their bytes say where their state is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["NO_KEYS", "Hashes", "KeyAssignment"]

Hashes = npt.NDArray[np.int64]
_Slots = npt.NDArray[np.int32]
_Positions = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.int32, np.int64)

_COLUMNS = ("hash", "check", "slot", "key")


class KeyAssignment:
    """Keys and the slot of each, ascending by both hashes. Immutable; `of` makes one.

    One that is an *outline* knows its digest and how many keys it has, and nothing else: enough to
    be compared, and small enough to be remembered.
    """

    __slots__ = ("__dict__", "_checks", "_hashes", "_keys", "_slots", "count", "digest")

    def __init__(
        self,
        count: int,
        digest: str,
        hashes: Hashes | None,
        checks: Hashes | None,
        slots: _Slots | None,
        keys: pa.Array | None,
    ) -> None:
        for column in (hashes, checks, slots):
            if column is not None:
                column.setflags(write=False)
        self.count = count
        self.digest = digest
        """Of the content; "" for no keys."""
        self._hashes = hashes
        self._checks = checks
        self._slots = slots
        self._keys = keys

    @classmethod
    def of(
        cls,
        keys: Sequence[bytes] | pa.Array,
        hashes: npt.ArrayLike,
        checks: npt.ArrayLike,
        slots: npt.ArrayLike,
    ) -> KeyAssignment:
        """Keys in any order, each once; both hashes of each, and its slot."""
        column = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        hash_column, check_column = (np.asarray(each, np.int64) for each in (hashes, checks))
        slot_column = np.asarray(slots, np.int32)
        if not len(column) == hash_column.size == check_column.size == slot_column.size:
            raise ValueError("every assigned key has bytes, two hashes and a slot")
        if slot_column.size and int(slot_column.min()) < 0:
            raise ValueError("a key is assigned to a slot below 0")
        order = np.lexsort((check_column, hash_column))
        return cls._sorted(
            hash_column[order], check_column[order], slot_column[order], column.take(order)
        )

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> KeyAssignment:
        """What `to_batch` gave."""
        hashes, checks = (_numbers(batch.column(name), np.int64) for name in _COLUMNS[:2])
        return cls.of(batch.column("key"), hashes, checks, _numbers(batch.column("slot"), np.int32))

    @classmethod
    def outlined(cls, count: int, digest: str) -> KeyAssignment:
        """The outline of one that is elsewhere."""
        return cls(count, digest, None, None, None, None) if count else NO_KEYS

    @classmethod
    def _sorted(
        cls, hashes: Hashes, checks: Hashes, slots: _Slots, keys: pa.Array
    ) -> KeyAssignment:
        if not slots.size:
            return cls(0, "", hashes, checks, slots, keys)
        if ((hashes[1:] == hashes[:-1]) & (checks[1:] == checks[:-1])).any():
            raise ValueError("a key is assigned twice, or two keys have the same hashes")
        digest = hashlib.blake2b(digest_size=16)
        ends = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
        for column in (hashes, checks, slots.astype(np.int64), np.diff(ends).astype(np.int64)):
            digest.update(column.tobytes())
        digest.update(keys.buffers()[2][int(ends[0]) : int(ends[-1])])
        return cls(slots.size, digest.hexdigest(), hashes, checks, slots, keys)

    @property
    def is_outline(self) -> bool:
        return self._hashes is None

    @property
    def hashes(self) -> Hashes:
        assert self._hashes is not None, "an outline has no keys to look at"
        return self._hashes

    @property
    def checks(self) -> Hashes:
        assert self._checks is not None, "an outline has no keys to look at"
        return self._checks

    @property
    def slots(self) -> _Slots:
        assert self._slots is not None, "an outline has no keys to look at"
        return self._slots

    @property
    def keys(self) -> pa.Array:
        """Their bytes, as a binary column."""
        assert self._keys is not None, "an outline has no keys to look at"
        return self._keys

    def outline(self) -> KeyAssignment:
        return self if self.is_outline else KeyAssignment.outlined(self.count, self.digest)

    def to_batch(self) -> pa.RecordBatch:
        columns = [*map(pa.array, (self.hashes, self.checks, self.slots)), self.keys]
        return pa.RecordBatch.from_arrays(columns, names=list(_COLUMNS))

    def positions(self, hashes: Hashes, checks: Hashes) -> _Positions:
        """Where keys of these hashes stand; -1 for those that are not assigned."""
        found = np.full(hashes.size, -1, dtype=np.int64)
        if not self.count:
            return found
        first = np.searchsorted(self.hashes, hashes, side="left")
        # Keys that differ in where they are null share a hash, so a few may have to be looked at.
        for further in range(self._alike):
            at = np.minimum(first + further, self.count - 1)
            is_it = (self.hashes[at] == hashes) & (self.checks[at] == checks)
            found[is_it] = at[is_it]
        return found

    def slot_of(self, hash: int, check: int) -> int | None:
        """The slot of one key; None if it is not assigned."""
        (at,) = self.positions(np.array([hash], np.int64), np.array([check], np.int64))
        return None if at < 0 else int(self.slots[at])

    def updated(self, other: KeyAssignment) -> KeyAssignment:
        """The keys of both; where both have one, it is where `other` says."""
        rest = self.without(other.hashes, other.checks)
        return KeyAssignment.of(
            pa.concat_arrays([rest.keys, other.keys]),
            np.concatenate([rest.hashes, other.hashes]),
            np.concatenate([rest.checks, other.checks]),
            np.concatenate([rest.slots, other.slots]),
        )

    def without(self, hashes: Hashes, checks: Hashes) -> KeyAssignment:
        """The keys that have other hashes than these."""
        kept = np.ones(self.count, dtype=bool)
        at = self.positions(hashes, checks)
        kept[at[at >= 0]] = False
        return self if kept.all() else self.where(kept)

    def where(self, kept: npt.NDArray[np.bool_]) -> KeyAssignment:
        """Some of the keys."""
        return KeyAssignment._sorted(
            self.hashes[kept], self.checks[kept], self.slots[kept], self.keys.filter(kept)
        )

    @cached_property
    def _alike(self) -> int:
        """How many keys share a hash, at most."""
        same = self.hashes[1:] == self.hashes[:-1]
        if not same.any():
            return 1
        return int(np.unique(self.hashes, return_counts=True)[1].max())

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyAssignment) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"KeyAssignment({self.count} keys, {self.digest[:8]})"


def _numbers(column: pa.Array, kind: type[_Number]) -> npt.NDArray[_Number]:
    # Not to_numpy(), which imports pandas.
    size = np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], kind, len(column), size * column.offset)


NO_KEYS = KeyAssignment.of([], [], [], [])
"""Of an operator whose keys are all in the slots of their hashes, but for pins."""

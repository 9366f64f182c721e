"""The difference between two versions of a slot, computed in bulk.

A batch may change a hundred thousand keys, so everything here works on whole lists and leaves the
loop per key to C where it can.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import compress
from operator import eq, not_
from typing import NamedTuple

from braided.store.history.run_blocks import size_of
from braided.store.slots.layout import TIMER, VALUE, count_records

__all__ = ["Changes", "changes_of"]


class Changes(NamedTuple):
    """What differs: suffixes ascending, their new and their old values (None: not there)."""

    suffixes: list[bytes]
    values: list[bytes | None]
    olds: list[bytes | None]
    keys_added: int
    bytes_added: int
    size: int
    """Of the suffixes and new values, in bytes."""

    @property
    def tally(self) -> tuple[int, int]:
        """How many rows of state were written, and how many are gone; timers are none."""
        timers = slice(bisect_left(self.suffixes, TIMER), bisect_left(self.suffixes, VALUE))
        gone = self.values.count(None) - self.values[timers].count(None)
        return len(self.suffixes) - (timers.stop - timers.start) - gone, gone


def changes_of(
    suffixes: list[bytes], values: list[bytes | None], olds: list[bytes | None]
) -> Changes:
    """The changes from `olds` to `values`; what is as it was is no change."""
    same = list(map(eq, values, olds))
    if True in same:
        differs = list(map(not_, same))
        suffixes = list(compress(suffixes, differs))
        values = list(compress(values, differs))
        olds = list(compress(olds, differs))
    growth = _growth(suffixes, values, olds)
    return Changes(suffixes, values, olds, *growth, size_of(suffixes, values))


def _growth(
    suffixes: list[bytes], values: list[bytes | None], olds: list[bytes | None]
) -> tuple[int, int]:
    """By how many keys and bytes a slot grows; no suffix has None for both values."""
    new: list[bytes] = []
    gone: list[bytes] = []
    if None in olds or None in values:
        for suffix, value, old in zip(suffixes, values, olds, strict=True):
            if old is None:
                new.append(suffix)
            elif value is None:
                gone.append(suffix)
    size = size_of(new, values) - size_of(gone, olds)
    return count_records(new) - count_records(gone), size

"""The keys that have most of a channel's rows.

Rows reach a task sorted by key, so a key's rows are one stretch, whose length is known without
counting. Only the stretches at the edges of a chunk can go on in the next one. So the heaviest keys
are found exactly, by looking at lengths of stretches and not at rows, where a sketch would estimate
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from braided.tasks.reports import KeyRows

__all__ = ["HeavyKeys"]

MOST = 4
"""Keys that a channel reports in a batch."""
LEAST_SHARE = 0.05
"""Of the channel's rows: a key with less is no trouble to anybody."""


class HeavyKeys:
    """Is given the chunks of one channel in their order, and tells its heaviest keys."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, int]] = {}

    def add(
        self,
        keys: Sequence[bytes],
        places: npt.NDArray[Any],
        starts: npt.NDArray[Any],
        rows: int,
    ) -> None:
        """A chunk: the keys, their places, where the rows of each begin, and how many there are."""
        lengths = np.diff(starts, append=rows)
        last = lengths.size - 1
        stretches = {0, last}
        if last >= MOST:
            stretches.update(np.argpartition(lengths, -MOST)[-MOST:].tolist())
        else:
            stretches.update(range(lengths.size))
        for stretch in stretches:
            key = keys[stretch]
            before = self._rows.get(key, (0, 0))[1]
            self._rows[key] = int(places[stretch]), before + int(lengths[stretch])

    def heaviest(self, rows: int) -> tuple[KeyRows, ...]:
        """The heaviest of a channel that had so many rows, heaviest first."""
        least = max(2.0, LEAST_SHARE * rows)
        heavy = [
            KeyRows(key, place, count)
            for key, (place, count) in self._rows.items()
            if count >= least
        ]
        heavy.sort(key=lambda each: (-each.rows, each.key))
        return tuple(heavy[:MOST])

"""The most frequent of many items, in bounded memory: which they are, and how often they came.

Space-Saving, for many items at once: summaries of parts are merged, so that numpy does all of it
and no step is taken for an item by itself. What is kept of an item is how often it was seen, which
is never too high, and how often it may have come at most: who is not known may have come as often
as the most frequent one that was let go. That is twice the total over the room at most. Those that
may have come most often are kept, so that one that begins to be frequent gets in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FrequentPairs"]

Counts = npt.NDArray[np.int64]


class FrequentPairs:
    """Items are whole numbers: `pairs` are those that are kept, and `counts` how often each was
    seen.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.pairs: Counts = np.zeros(0, dtype=np.int64)
        self.counts: Counts = np.zeros(0, dtype=np.int64)
        self._most = self.counts
        self.total = 0
        self.error = 0
        """By how much a count may be too low: of an item that is not there, all of it."""
        self._left = 0

    def choose(self, counts: Counts) -> Counts:
        """Which of items with such counts, each of them once, `add` should be told of. The others
        are taken for counted, and nobody has to know what they are.
        """
        self.total += int(counts.sum())
        if counts.size <= self._room:
            self._left = 0
            return np.arange(counts.size)
        order = np.argsort(-counts, kind="stable")
        self._left = int(counts[order[self._room]])
        return np.sort(order[: self._room])

    def add(self, pairs: Counts, counts: Counts) -> None:
        """Adds the items that were chosen."""
        every, at = np.unique(np.concatenate([self.pairs, pairs]), return_inverse=True)
        old, new = at[: self.pairs.size], at[self.pairs.size :]
        seen, most = np.zeros(every.size, dtype=np.int64), np.zeros(every.size, dtype=np.int64)
        seen[old], most[old] = self.counts, self._most - self.error
        seen[new] += counts
        most[new] += counts - self._left
        # Who is missing on one side may have been there as often as who was let go there.
        self.error += self._left
        most += self.error
        if every.size > self._room:
            order = np.lexsort((-seen, -most))
            self.error = int(most[order[self._room]])
            kept = np.sort(order[: self._room])
            every, seen, most = every[kept], seen[kept], most[kept]
        self.pairs, self.counts, self._most = every, seen, most

    def renumbered(self, pairs: Counts) -> None:
        """The same items by other numbers, in their order."""
        self.pairs = pairs

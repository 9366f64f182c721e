"""Statistics of pairs: which keys of two operators had rows in common, as channels report it.

A channel counts pairs in a sketch of bounded size and reports the most frequent ones, how many rows
it counted in all, and by how much a count may be too small. A part of the rows is held out instead:
every so many-th row, whatever its pair, is reported as it is and counted nowhere.

The driver adds up reports in a window. Its first half makes a table whose promise is judged by the
rows held out in the second: later ones, as those to come are. Then all of it makes the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from braided.control.locality.graph import Numbers
from braided.control.routing.table import Loads

__all__ = ["PairCounts", "PairSummary", "PairWindow"]

Pair = tuple[bytes, bytes]
_SLACK = 1.25
"""Between reports there may be so many times more pairs, so that not every report sorts them."""
HELD_MAX = 20_000
"""Held-out rows that are kept: enough to tell a share to within half a point."""


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Pairs of keys, as numbers of the keys here and there. The true count of a pair is at least
    what is counted and at most `error` more; a pair that is missing has at most `error`.
    """

    here: tuple[bytes, ...]
    there: tuple[bytes, ...]
    pairs: Numbers  # one row each: here, there
    weight: Loads
    total: float
    error: float
    held: Numbers
    """Pairs of held-out rows, one row each."""
    held_weight: float = 1.0
    """How many rows each of them stands for."""

    @classmethod
    def of_rows(
        cls, here: Iterable[bytes], there: Iterable[bytes], hold_every: int = 0
    ) -> PairCounts:
        """Exact counts of rows, given their two keys; every so many-th row is held out."""
        numbers: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})
        rows = np.array(
            [
                (
                    numbers[0].setdefault(a, len(numbers[0])),
                    numbers[1].setdefault(b, len(numbers[1])),
                )
                for a, b in zip(here, there, strict=True)
            ],
            dtype=np.int64,
        ).reshape(-1, 2)
        is_held = np.zeros(rows.shape[0], dtype=bool)
        if hold_every:
            is_held[hold_every - 1 :: hold_every] = True
        counted = rows[~is_held]
        pairs, count = np.unique(counted, axis=0, return_counts=True)
        return cls(
            tuple(numbers[0]),
            tuple(numbers[1]),
            pairs.reshape(-1, 2),
            count.astype(np.float64),
            float(counted.shape[0]),
            0.0,
            rows[is_held],
            float(hold_every or 1),
        )


class PairSummary:
    """The counts of many reports, of at most so many pairs."""

    def __init__(self, pairs_max: int) -> None:
        if pairs_max < 1:
            raise ValueError(f"a summary has room for a pair at least, not {pairs_max}")
        self.pairs_max = pairs_max
        self.weight: dict[Pair, float] = {}
        self.total = 0.0
        self.error = 0.0

    def add(self, counts: PairCounts) -> None:
        """One more report. What is too many is taken off all alike, as in Misra and Gries, so that
        what a count may lack stays known.
        """
        here, there, weight = counts.here, counts.there, self.weight
        for (a, b), more in zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True):
            pair = here[a], there[b]
            weight[pair] = weight.get(pair, 0.0) + more
        self.total += counts.total
        self.error += counts.error
        if len(weight) > _SLACK * self.pairs_max:
            self._shrink()

    def merge(self, other: PairSummary) -> None:
        for pair, more in other.weight.items():
            self.weight[pair] = self.weight.get(pair, 0.0) + more
        self.total += other.total
        self.error += other.error
        self._shrink()

    def _shrink(self) -> None:
        more = len(self.weight) - self.pairs_max
        if more <= 0:
            return
        counts = np.fromiter(self.weight.values(), np.float64, len(self.weight))
        least = float(np.partition(counts, more - 1)[more - 1])
        self.weight = {pair: n - least for pair, n in self.weight.items() if n > least}
        self.error += least


class PairWindow:
    """The reports of a period about one operator and the next."""

    def __init__(self, pairs_max: int = 200_000, held_max: int = HELD_MAX) -> None:
        self._pairs_max = pairs_max
        self._held: deque[tuple[bytes, bytes, float]] = deque(maxlen=held_max)
        self.reset()

    def reset(self) -> None:
        """All that is known is of another routing, or of another time."""
        self.batches = 0
        self.older = PairSummary(self._pairs_max)
        self.newer = PairSummary(self._pairs_max)
        self._held.clear()

    def add(self, reports: Iterable[PairCounts], is_late: bool) -> None:
        """The reports of a batch; `is_late` from the middle of the period on."""
        self.batches += 1
        summary = self.newer if is_late else self.older
        for counts in reports:
            summary.add(counts)
            if is_late:
                self._held.extend(
                    (counts.here[a], counts.there[b], counts.held_weight)
                    for a, b in counts.held.tolist()
                )

    def held(self) -> list[tuple[bytes, bytes, float]]:
        """Rows held out in the later half."""
        return list(self._held)

    def whole(self) -> PairSummary:
        """Both halves together."""
        both = PairSummary(self._pairs_max)
        both.merge(self.older)
        both.merge(self.newer)
        return both

"""What each slot costs: busy time and rows, with older batches counting less.

Tasks report per slot and batch. Every batch halves the weight of those before it `1/half_life`
times over, so that a new hotspot shows within a few batches and one slow batch does not. The
window is counted in batches because that is how often anything can be done about it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Loads

__all__ = ["SlotLoads"]

HALF_LIFE_BATCHES = 4.0


class SlotLoads:
    """The measured load of one operator's slots, as means per batch."""

    def __init__(self, slots: int, half_life_batches: float = HALF_LIFE_BATCHES) -> None:
        if slots < 1:
            raise ValueError(f"an operator has at least one slot, not {slots}")
        if not half_life_batches > 0:
            raise ValueError(f"a half-life is above 0 batches, not {half_life_batches}")
        self._keep = 0.5 ** (1 / half_life_batches)
        self._weight = 0.0
        self._busy_ns = np.zeros(slots)
        self._rows = np.zeros(slots)

    def begin_batch(self) -> None:
        """What is added from here on belongs to a new batch; what was added counts for less."""
        self._weight = self._weight * self._keep + 1.0
        self._busy_ns *= self._keep
        self._rows *= self._keep

    def add(self, slots: npt.ArrayLike, rows: npt.ArrayLike, busy_ns: npt.ArrayLike) -> None:
        """Adds one report: these slots took in so many rows and kept their channel busy so long."""
        if self._weight == 0.0:
            self.begin_batch()
        where = np.asarray(slots, dtype=np.int64)
        counted = np.asarray(rows, dtype=np.float64)
        busy = np.asarray(busy_ns, dtype=np.float64)
        if not where.shape == counted.shape == busy.shape:
            raise ValueError("a report has one row count and one busy time per slot")
        if where.size and not 0 <= where.min() <= where.max() < self._rows.size:
            raise ValueError(f"a report names slots outside 0 to {self._rows.size - 1}")
        # A clock that went back says nothing.
        np.add.at(self._busy_ns, where, np.maximum(busy, 0.0))
        np.add.at(self._rows, where, counted)

    def rows(self) -> Loads:
        """Rows per batch of each slot."""
        return self._rows / max(self._weight, 1.0)

    def busy_ns(self) -> Loads:
        """Busy nanoseconds per batch of each slot."""
        return self._busy_ns / max(self._weight, 1.0)

    def load(self) -> Loads:
        """What to balance: busy time, or rows while no time has been measured."""
        return self.busy_ns() if self._busy_ns.any() else self.rows()

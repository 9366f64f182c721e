"""What each slot of an operator is expected to cost, and the window that learns it from batches.

The window has one parameter, its length in batches: a short one follows spikes, a long one is calm.
Two things keep a long one from being slow and a short one from being nervous:

- Rows are counted, not timed, so the only noise in them is chance. A slot's *share* of the rows is
  averaged over the window until a batch shows one that chance does not explain: more than
  `SURPRISE` standard deviations of a Poisson count. Then that slot's window begins anew, and that
  of all slots where they are off together (the mean of their squared deviations, which chance
  makes 1, is above `UPHEAVAL`). So a moved hotspot and shuffled keys are known after one batch. A
  batch without rows says nothing about shares.
- Time is noisy: a pause of the machine falls on whatever slot was open. So time is kept as cost per
  row, pulled towards the operator's median where a slot had few rows, and a sample far above what
  the window expects counts in full only when the next one is like it. A few milliseconds too many
  are no pause: timers fire now in this slot and now in that one, and cut each time, their work
  would be missing from the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from braided.control.measure.window import LENGTH_BATCHES
from braided.control.routing.table import Loads

__all__ = ["SlotLoads", "SlotWindow"]

SURPRISE = 4.0
UPHEAVAL = 2.0
OUTLIER = 4.0
"""How many times the expected cost a sample may be before it has to be seen twice."""
PAUSE_S = 0.02
"""How much more than expected it is then at least: less is what work that comes in bursts takes."""
PRIOR_ROWS = 8.0
"""So many rows at the operator's usual cost stand behind every slot's own."""


@dataclass(frozen=True, eq=False)
class SlotLoads:
    """What is expected of one operator's slots: a value, which any thread may be handed."""

    share: Loads  # of the operator's rows; they sum to 1, or are all 0 before the first rows
    cost_s: Loads  # of one row
    rowless_s: Loads  # busy time per row of the operator, spent in batches without rows of the slot

    @classmethod
    def none(cls, slots: int) -> SlotLoads:
        """Of slots that have had no rows yet."""
        return cls(np.zeros(slots), np.zeros(slots), np.zeros(slots))

    @property
    def row_s(self) -> float:
        """What a row of the operator costs, whatever its slot."""
        return float(self.share @ self.cost_s)

    def load(self, rows_per_s: float = 1.0) -> Loads:
        """Busy seconds per second of each slot at that arrival rate; shares if nothing was timed.

        The sum is how many channels would be busy all the time. Who only compares slots with each
        other needs no rate.
        """
        return self.share * self.cost_s * rows_per_s if self.cost_s.any() else self.share

    def work(self) -> Loads:
        """How the slots compare with each other, by the time of their rows and of their timers."""
        return self.load() + self.rowless_s if self.rowless_s.any() else self.load()


class SlotWindow:
    """The last batches of one operator's slots."""

    def __init__(self, slots: int, length_batches: float = LENGTH_BATCHES) -> None:
        if slots < 1:
            raise ValueError(f"an operator has at least one slot, not {slots}")
        if not length_batches >= 1:
            raise ValueError(f"a window is at least one batch long, not {length_batches}")
        self._keep = 1.0 - 1.0 / length_batches
        self._rows = np.zeros(slots)
        self._of_rows = np.zeros(slots)  # all rows of the batches that a slot's window holds
        self._busy_s = np.zeros(slots)
        self._timed_rows = np.zeros(slots)
        self._suspect = np.zeros(slots, dtype=bool)
        self._rowless_s = np.zeros(slots)
        self._rows_per_batch = 0.0
        self._usual_cost_s = 0.0

    def add(self, rows: npt.ArrayLike, busy_s: npt.ArrayLike) -> None:
        """One batch: rows and busy time of every slot."""
        counted = np.asarray(rows, dtype=np.float64)
        busy = np.maximum(np.asarray(busy_s, dtype=np.float64), 0.0)
        if not counted.shape == busy.shape == self._rows.shape:
            raise ValueError(f"a batch has a row count and a time for {self._rows.size} slots")
        total = float(counted.sum())
        # Timers are work too, and a slot may have had no rows for long when they fire.
        self._rowless_s = self._keep * self._rowless_s + np.where(counted > 0, 0.0, busy)
        self._rows_per_batch = self._keep * self._rows_per_batch + total
        if total <= 0:
            return
        # First what the window expected, then what it learns.
        self._learn_cost(counted, self._believed(counted, busy))
        self._learn_share(counted, total)

    def loads(self) -> SlotLoads:
        """What the batches so far say about the next one."""
        return SlotLoads(
            self._share(), self._cost_s(), self._rowless_s / max(self._rows_per_batch, 1.0)
        )

    def _share(self) -> Loads:
        share = np.divide(
            self._rows, self._of_rows, out=np.zeros_like(self._rows), where=self._of_rows > 0
        )
        total = share.sum()
        return share / total if total > 0 else share

    def _cost_s(self) -> Loads:
        usual = PRIOR_ROWS * self._usual_cost_s
        return (self._busy_s + usual) / (self._timed_rows + PRIOR_ROWS)

    def _learn_share(self, counted: Loads, total: float) -> None:
        has_share = self._of_rows > 0
        expected = np.divide(self._rows, self._of_rows, out=np.zeros_like(counted), where=has_share)
        expected *= total
        off = (counted - expected) ** 2 / (expected + 1.0)
        news = off > SURPRISE**2
        if off.mean() > UPHEAVAL:
            news[:] = True
        keep = np.where(has_share & ~news, self._keep, 0.0)
        self._rows = keep * self._rows + counted
        self._of_rows = keep * self._of_rows + total

    def _believed(self, counted: Loads, busy: Loads) -> Loads:
        """The times, with those cut that are far from what was expected and come for once only."""
        if not self._timed_rows.any():
            return busy
        expected = counted * self._cost_s()
        far = (busy > OUTLIER * expected) & (busy - expected > PAUSE_S) & (counted > 0)
        once = far & ~self._suspect
        self._suspect = np.where(counted > 0, far, self._suspect)
        return np.where(once, expected, busy)

    def _learn_cost(self, counted: Loads, busy: Loads) -> None:
        has_rows = counted > 0
        keep = np.where(has_rows, self._keep, 1.0)
        self._busy_s = keep * self._busy_s + np.where(has_rows, busy, 0.0)
        self._timed_rows = keep * self._timed_rows + counted
        timed = self._timed_rows > 0
        if timed.any():
            self._usual_cost_s = float(np.median(self._busy_s[timed] / self._timed_rows[timed]))

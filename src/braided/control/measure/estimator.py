"""The one estimator of slot loads: reports of batches in, what slots are expected to cost out.

A query has one. Its engine adds every batch to it, once, in the batch's own thread; commands and
the progress ask it there, and the controller, in a thread of its own, is handed the values that
were true after its batch. The simulator's controller has no engine beside it and keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from braided.control.measure.slot_loads import SlotLoads, SlotWindow
from braided.control.measure.window import LENGTH_BATCHES
from braided.control.routing.table import Loads

__all__ = ["Estimator", "SlotTotals", "at_full_speed", "slot_totals"]


class SlotTotals(NamedTuple):
    """What the slots of an operator did in one batch, one entry per slot."""

    rows: Loads
    busy_s: Loads


def slot_totals(
    slots: int, reports: Iterable[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]]
) -> SlotTotals:
    """Adds up the reports of a batch: each has slots, their rows and their busy nanoseconds."""
    rows, busy_ns = np.zeros(slots), np.zeros(slots)
    for slots_of_report, rows_of_report, ns_of_report in reports:
        where = np.asarray(slots_of_report, dtype=np.int64)
        counted = np.asarray(rows_of_report, dtype=np.float64)
        timed = np.asarray(ns_of_report, dtype=np.float64)
        if not where.shape == counted.shape == timed.shape:
            raise ValueError("a report has one row count and one busy time per slot")
        if where.size and not 0 <= where.min() <= where.max() < slots:
            raise ValueError(f"a report names slots outside 0 to {slots - 1}")
        np.add.at(rows, where, counted)
        # A clock that went back says nothing.
        np.add.at(busy_ns, where, np.maximum(timed, 0.0))
    return SlotTotals(rows, busy_ns / 1e9)


def at_full_speed(totals: SlotTotals, speeds: Loads | None) -> SlotTotals:
    """What slots would have taken on the fastest host; `speeds` are those of the hosts on which
    each of them ran (`host_speed.py`), or None where all are as fast.
    """
    return totals if speeds is None else SlotTotals(totals.rows, totals.busy_s * speeds)


class Estimator:
    """The slots of all operators of one flow.

    `slots` names operators that are asked about before their first batch. The first
    `cold_batches` start workers and fill caches; they count only until an operator has rows in a
    later one.
    """

    def __init__(
        self,
        length_batches: float = LENGTH_BATCHES,
        slots: Mapping[str, int] | None = None,
        cold_batches: int = 0,
    ) -> None:
        self._length = length_batches
        self._cold_batches = cold_batches
        self._batches = 0
        self._windows: dict[str, SlotWindow] = {}
        self._cold: set[str] = set()  # operators whose window has rows of cold batches only
        self._loads = {name: SlotLoads.none(count) for name, count in (slots or {}).items()}

    def add(self, totals: Mapping[str, SlotTotals]) -> Mapping[str, SlotLoads]:
        """One batch, and what is expected of all operators after it."""
        is_cold = self._batches < self._cold_batches
        self._batches += 1
        for name, (rows, busy_s) in totals.items():
            window = self._windows.get(name)
            begins_anew = name in self._cold and not is_cold and bool(rows.any())
            if window is None or begins_anew:
                window = self._windows[name] = SlotWindow(rows.size, self._length)
                self._cold.discard(name)
            if is_cold:
                self._cold.add(name)
            window.add(rows, busy_s)
            self._loads[name] = window.loads()
        return self.loads()

    def loads(self) -> Mapping[str, SlotLoads]:
        """What is expected now, by operator."""
        return dict(self._loads)

    def load(self, name: str) -> Loads:
        """How the slots of an operator compare: what to balance by."""
        return self._loads[name].work()

"""Refinement where channels are not equally fast: loads are compared by the time that they take.

The rounds of `refine.py`, for channels of speeds sₖ. With H the highest time of a donor of load l
and r the load of a receiver, moving a slot of weight w leaves (l - w)/s and (r + w)/sᵣ. They are
equal at w = (l·sᵣ - r·s)/(s + sᵣ), half the gap where speeds are equal; above it the receiver is
the fuller one, below it the donor. With equal speeds the emptiest receiver is the best one. Here it
may be slow, and another, not as empty and fast, the better: all are looked at, in one go, and the
one is chosen that leaves the lower peak. Every move makes the sorted times smaller, as there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from braided.control.routing.refine import RefiningMove
from braided.control.routing.table import Loads, Slots

__all__ = ["refine_by_speed"]

_ROUNDING = 1e-9


def refine_by_speed(
    slots: Slots, weights: Loads, loads: Loads, speeds: Loads
) -> Iterator[RefiningMove]:
    """Gives the moves, each better than none, until there is no other; peaks are times."""
    movable = _SlotsByWeight(slots, weights)
    load = loads.copy()
    may_give = np.ones(load.size, dtype=bool)
    stuck = 0.0
    while may_give.any():
        times = load / speeds
        donor = int(np.where(may_give, times, -1.0).argmax())
        peak = float(times[donor])
        best = movable.best(donor, load, speeds)
        if best is None:
            may_give[donor] = False
            stuck = max(stuck, peak)
            continue
        weight, receiver = best
        slot = movable.move(donor, receiver, weight)
        low = float(times[receiver])
        load[donor] -= weight
        load[receiver] += weight
        yield RefiningMove(slot, receiver, peak, low, stuck)
        # What was too much for every receiver may have room now, where the donor is a fast one.
        may_give[:] = True
        stuck = 0.0


class _SlotsByWeight:
    """Each channel's slots that have weight, in order of it."""

    def __init__(self, slots: Slots, weights: Loads) -> None:
        self._slots = slots
        self._weights = weights
        self._of_channel: dict[int, tuple[Loads, Slots]] = {}

    def best(self, donor: int, load: Loads, speeds: Loads) -> tuple[float, int] | None:
        """The weight to move and to whom, so that the higher of both is lowest; None if no move is
        better than none.
        """
        weight, _ = self._laid_out_slots(donor)
        if not weight.size:
            return None
        equal = (load[donor] * speeds - load * speeds[donor]) / (speeds[donor] + speeds)
        above = np.searchsorted(weight, equal)
        candidates = weight[np.clip([above, above - 1], 0, weight.size - 1)]
        left = (load[donor] - candidates) / speeds[donor]
        higher = np.maximum(left, (load + candidates) / speeds)
        higher[:, donor] = np.inf
        which, receiver = np.unravel_index(int(higher.argmin()), higher.shape)
        # Better by what rounding makes is not better, and there would be no end to it.
        if higher[which, receiver] >= load[donor] / speeds[donor] * (1 - _ROUNDING):
            return None
        return float(candidates[which, receiver]), int(receiver)

    def move(self, donor: int, receiver: int, weight: float) -> int:
        """The slot of that weight, which changes channel."""
        weights, slots = self._laid_out_slots(donor)
        at = int(np.searchsorted(weights, weight))
        slot = int(slots[at])
        self._of_channel[donor] = (np.delete(weights, at), np.delete(slots, at))
        weights, slots = self._laid_out_slots(receiver)
        at = int(np.searchsorted(weights, weight))
        self._of_channel[receiver] = (np.insert(weights, at, weight), np.insert(slots, at, slot))
        return slot

    def _laid_out_slots(self, channel: int) -> tuple[Loads, Slots]:
        if channel not in self._of_channel:
            mine = np.flatnonzero((self._slots == channel) & (self._weights > 0)).astype(np.int32)
            mine = mine[np.argsort(self._weights[mine], kind="stable")]
            self._of_channel[channel] = self._weights[mine], mine
        return self._of_channel[channel]

"""Refinement: one slot after another from the most to the least loaded channel.

The round of Elasticutor 3.1, which rebalancing and rescaling share. With H the highest load of a
donor and L the lowest of a receiver, moving a slot of weight w leaves H - w and L + w. That is
better exactly if w < H - L, and best where w is nearest to half the gap.

Loads are compared as a sorted whole, highest first: with tied maxima no single move lowers the
maximum, yet each brings that nearer. Every move makes the whole smaller, so rounds come to an end.
A donor without a better move to the emptiest receiver has none to any, now or later, because the
lowest load only rises: it is stuck, and the next fullest has its turn.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from braided.control.routing.table import Loads, Slots

__all__ = ["RefiningMove", "refine"]

_MANY_CHANNELS = 128
_FEW_LOOKS = 4


class RefiningMove(NamedTuple):
    """A slot's move to a channel, and the loads that spoke for it."""

    slot: int
    channel: int
    peak: float  # of the donor before the move
    low: float  # of the receiver before the move
    stuck: float  # the highest of a donor without a move


def refine(
    slots: Slots,
    weights: Loads,
    loads: Loads,
    donors: Iterable[int],
    receivers: Iterable[int],
) -> Iterator[RefiningMove]:
    """Gives the moves, each better than none, until there is no other.

    `slots` is slot to channel, `weights` each slot's weight, where 0 means "leave it"; `loads` is
    each channel's load before the first move. Donors and receivers are the same channels or have
    none in common. Equal candidates are decided by the lower number.
    """
    movable = _MovableSlots(slots, weights, loads.size)
    load = loads.tolist()
    # Heaps of (load, channel) whose stale entries are dropped when they come up.
    fullest = [(-load[channel], channel) for channel in donors]
    emptiest = [(load[channel], channel) for channel in receivers]
    both = {channel for _, channel in fullest} & {channel for _, channel in emptiest}
    heapq.heapify(fullest)
    heapq.heapify(emptiest)
    stuck = 0.0
    while fullest and emptiest:
        peak, donor = -fullest[0][0], fullest[0][1]
        if peak != load[donor]:
            heapq.heappop(fullest)
            continue
        low, receiver = emptiest[0]
        if low != load[receiver]:
            heapq.heappop(emptiest)
            continue
        best = movable.take(donor, peak, low)
        if best is None:
            heapq.heappop(fullest)
            stuck = max(stuck, peak)
            continue
        weight, slot = best
        movable.put(receiver, weight, slot)
        load[donor], load[receiver] = peak - weight, low + weight
        heapq.heapreplace(fullest, (-load[donor], donor))
        heapq.heapreplace(emptiest, (load[receiver], receiver))
        if donor in both:
            heapq.heappush(emptiest, (load[donor], donor))
        if receiver in both:
            heapq.heappush(fullest, (-load[receiver], receiver))
        yield RefiningMove(slot, receiver, peak, low, stuck)


class _MovableSlots:
    """Each channel's movable slots, laid out when first asked for."""

    def __init__(self, slots: Slots, weights: Loads, channels: int) -> None:
        self._slots = slots
        self._weights = weights
        self._by_channel: dict[int, _WeightedSlots] = {}
        self._arrived: dict[int, list[tuple[float, int]]] = {}
        self._grouped: Slots | None = None
        self._ends = self._grouped
        if channels > _MANY_CHANNELS:
            # Sorting numbers of 16 bits is a matter of counting.
            few = slots.astype(np.uint16) if slots.max() < 1 << 16 else slots
            self._grouped = np.argsort(few, kind="stable").astype(np.int32)
            self._ends = np.cumsum(np.bincount(slots, minlength=channels)).astype(np.int32)

    def take(self, channel: int, peak: float, low: float) -> tuple[float, int] | None:
        """Removes and returns the best slot to move between these loads; None: none is better."""
        slots_of_channel = self._laid_out_slots(channel)
        weight = slots_of_channel.nearest((peak - low) / 2)
        # Said in the loads as they will be, which rounding may have made no better.
        if weight is None or peak - weight >= peak or low + weight >= peak:
            return None
        return weight, slots_of_channel.remove(weight)

    def put(self, channel: int, weight: float, slot: int) -> None:
        slots_of_channel = self._by_channel.get(channel)
        if slots_of_channel is not None:
            slots_of_channel.add(weight, slot)
        else:
            # Most receivers never give: no need to lay out what they have.
            self._arrived.setdefault(channel, []).append((weight, slot))

    def _laid_out_slots(self, channel: int) -> _WeightedSlots:
        slots_of_channel = self._by_channel.get(channel)
        if slots_of_channel is None:
            numbers = self._of_channel(channel)
            slots_of_channel = _WeightedSlots(numbers, self._weights[numbers])
            self._by_channel[channel] = slots_of_channel
            for weight, slot in self._arrived.pop(channel, ()):
                slots_of_channel.add(weight, slot)
        return slots_of_channel

    def _of_channel(self, channel: int) -> Slots:
        """The slots of a channel. Few are ever asked for, so they are looked up one by one, but
        where channels are many that takes longer than sorting out all slots at once.
        """
        if self._grouped is None or self._ends is None:
            return np.flatnonzero(self._slots == channel).astype(np.int32)
        start = int(self._ends[channel - 1]) if channel else 0
        slots: Slots = self._grouped[start : int(self._ends[channel])]
        return slots


class _WeightedSlots:
    """One channel's slots with weight, in which the one nearest to a weight is looked for.

    The first few looks go through all of them; who looks more often wants them in order.
    """

    __slots__ = ("_added", "_array", "_looks", "_slots", "_sorted")

    def __init__(self, slots: Slots, weight: Loads) -> None:
        self._slots = slots
        # What weighs nothing is left where it is: nan is neither above nor below anything.
        self._array = np.where(weight > 0, weight, np.nan)
        self._looks = 0
        self._added: list[tuple[float, int]] = []
        self._sorted: list[tuple[float, int]] | None = None

    def nearest(self, half: float) -> float | None:
        """The weight nearest to half the gap, the lower of two; None if there is none."""
        ordered = self._sorted
        if ordered is None:
            self._looks += 1
            if self._looks > _FEW_LOOKS or self._added:
                ordered = self._order()
            else:
                weight = self._array
                below = float(np.where(weight < half, weight, -np.inf).max(initial=-np.inf))
                above = float(np.where(weight >= half, weight, np.inf).min(initial=np.inf))
                best = below if half - below <= above - half else above
                return best if np.isfinite(best) else None
        at = bisect_left(ordered, (half, -1))
        # The candidates are the neighbours of half the gap: the next one up, the next one down.
        nearest = at if at < len(ordered) else at - 1
        if 0 < at < len(ordered) and half - ordered[at - 1][0] <= ordered[at][0] - half:
            nearest = at - 1
        return ordered[nearest][0] if nearest >= 0 else None

    def remove(self, weight: float) -> int:
        """The lowest slot of that weight, which is one of them."""
        if self._sorted is not None:
            return self._sorted.pop(bisect_left(self._sorted, (weight, -1)))[1]
        at = int((self._array == weight).argmax())
        self._array[at] = np.nan
        return int(self._slots[at])

    def add(self, weight: float, slot: int) -> None:
        if self._sorted is None:
            self._added.append((weight, slot))
        else:
            insort(self._sorted, (weight, slot))

    def _order(self) -> list[tuple[float, int]]:
        # Stable, so that among equal weights the lower slot is found first; nan is last.
        order = self._array.argsort(kind="stable")
        order = order[: self._array.size - int(np.isnan(self._array).sum())]
        weights, slots = self._array[order].tolist(), self._slots[order].tolist()
        self._sorted = list(zip(weights, slots, strict=True))
        for each in self._added:
            insort(self._sorted, each)
        return self._sorted

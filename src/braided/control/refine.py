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

from braided.control.table import Loads, Slots

__all__ = ["Move", "refine"]


class Move(NamedTuple):
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
) -> Iterator[Move]:
    """Gives the moves, each better than none, until there is no other.

    `slots` is slot to channel, `weights` each slot's weight, where 0 means "leave it"; `loads` is
    each channel's load before the first move. Donors and receivers are the same channels or have
    none in common. Equal candidates are decided by the lower number.
    """
    shelves = _Shelves(slots, weights)
    load = loads.tolist()
    # Heaps of (load, channel) whose stale entries are dropped when they come up.
    fullest = [(-load[channel], channel) for channel in donors]
    emptiest = [(load[channel], channel) for channel in receivers]
    both = {channel for _, channel in fullest} & {channel for _, channel in emptiest}
    heapq.heapify(fullest)
    heapq.heapify(emptiest)
    stuck = 0.0
    while fullest and emptiest:
        peak, giver = -fullest[0][0], fullest[0][1]
        if peak != load[giver]:
            heapq.heappop(fullest)
            continue
        low, taker = emptiest[0]
        if low != load[taker]:
            heapq.heappop(emptiest)
            continue
        found = shelves.take(giver, peak, low)
        if found is None:
            heapq.heappop(fullest)
            stuck = max(stuck, peak)
            continue
        weight, slot = found
        shelves.put(taker, weight, slot)
        load[giver], load[taker] = peak - weight, low + weight
        heapq.heapreplace(fullest, (-load[giver], giver))
        heapq.heapreplace(emptiest, (load[taker], taker))
        if giver in both:
            heapq.heappush(emptiest, (load[giver], giver))
        if taker in both:
            heapq.heappush(fullest, (-load[taker], taker))
        yield Move(slot, taker, peak, low, stuck)


class _Shelves:
    """Each channel's movable slots in order of weight, laid out when first asked for."""

    def __init__(self, slots: Slots, weights: Loads) -> None:
        # Sorting numbers of 16 bits is a matter of counting; sorting all weights would take longer
        # than everything else here, and few channels are ever asked for.
        few = slots.astype(np.uint16) if slots.max() < 1 << 16 else slots
        self._slots = np.argsort(few, kind="stable")
        self._ends = np.cumsum(np.bincount(slots))
        self._weights = weights
        self._shelves: dict[int, list[tuple[float, int]]] = {}

    def take(self, channel: int, peak: float, low: float) -> tuple[float, int] | None:
        """Removes and returns the best slot to move between these loads; None: none is better."""
        shelf = self._of(channel)
        half = (peak - low) / 2
        at = bisect_left(shelf, (half, -1))
        # The candidates are the neighbours of half the gap: the next one up, the next one down.
        best = at if at < len(shelf) else at - 1
        if 0 < at < len(shelf) and half - shelf[at - 1][0] <= shelf[at][0] - half:
            best = at - 1
        if best < 0:
            return None
        weight = shelf[best][0]
        # Said in the loads as they will be, which rounding may have made no better.
        if peak - weight >= peak or low + weight >= peak:
            return None
        first = bisect_left(shelf, (weight, -1))
        return shelf.pop(first)

    def put(self, channel: int, weight: float, slot: int) -> None:
        insort(self._of(channel), (weight, slot))

    def _of(self, channel: int) -> list[tuple[float, int]]:
        shelf = self._shelves.get(channel)
        if shelf is None:
            shelf = self._shelves[channel] = self._laid_out(channel)
        return shelf

    def _laid_out(self, channel: int) -> list[tuple[float, int]]:
        if channel >= self._ends.size:
            return []
        start = self._ends[channel - 1] if channel else 0
        mine = self._slots[start : self._ends[channel]]
        weight = self._weights[mine]
        # Stable, so that among equal weights the lower slot is found first.
        order = np.argsort(weight, kind="stable")
        order = order[np.searchsorted(weight[order], 0.0, side="right") :]
        return list(zip(weight[order].tolist(), mine[order].tolist(), strict=True))

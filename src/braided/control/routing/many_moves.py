"""Many slots at once: what rescaling does where to go slot by slot would take too long.

`refine` looks for the best slot of every single move. When a tenth of 262,144 slots change
channels, that is a second, and which of them go hardly matters. Here all channels give at the same
time: each what it has above the level that all shall have, its heaviest slots first, so that few
move. What is given is dealt out in rounds, each of which takes the channels that have least, the
heaviest slot to the emptiest.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Loads, Slots

__all__ = ["deal_out", "surplus"]

_PASSES = 4
"""Every pass but the first finds lighter slots for what a heavy one has left over."""
_LEVELS = 3
_NEAR = 0.0002
"""Of a level: what is nearer is the same."""
_FEW_RECEIVERS = 32
"""So few are looked at one by one: a round would be a handful of slots."""


def surplus(slots: Slots, weights: Loads, loads: Loads, channels: int) -> Slots:
    """The slots that channels have too many, the heaviest first, if there are to be `channels`.

    `loads` are those of the channels that give; what weighs nothing stays where it is.
    """
    # By channel, and within it by weight: sorting small numbers is a matter of counting.
    heavy_first = np.argsort(-weights)[: np.count_nonzero(weights)]
    of_heavy = slots[heavy_first]
    grouped = np.argsort(
        of_heavy.astype(np.uint16) if loads.size < 1 << 16 else of_heavy, kind="stable"
    )
    order, channel = heavy_first[grouped], of_heavy[grouped]
    weight = weights[order]
    heaviest = np.zeros(loads.size)
    first = np.flatnonzero(np.diff(channel, prepend=-1))
    heaviest[channel[first]] = weight[first]
    left, room = _excess(loads, heaviest, channels)
    is_given = np.zeros(order.size, dtype=bool)
    for _ in range(_PASSES):
        fits = np.flatnonzero(~is_given & (weight <= left[channel]))
        if not fits.size:
            break
        of_fits, sums = channel[fits], np.cumsum(weight[fits])
        # A channel's own sum is the sum of all so far less that of the channels before it.
        first = np.flatnonzero(np.diff(of_fits, prepend=-1))
        before = np.zeros(loads.size)
        before[of_fits[first]] = sums[first] - weight[fits[first]]
        given = fits[sums - before[of_fits] <= left[of_fits]]
        is_given[given] = True
        left -= np.bincount(channel[given], weights=weight[given], minlength=loads.size)
    # What is left is less than a slot. If nobody gave the last part, new ones would be short of all
    # of these parts: one more from those that have most, as long as that makes it better.
    room -= float(weight[is_given].sum())
    short = room / (channels - loads.size)
    spare = left[channel]
    others = np.flatnonzero(~is_given & (spare > 0) & (weight < spare + short))
    lightest = others[np.diff(channel[others], append=-1) != 0]
    lightest = lightest[np.argsort(-left[channel[lightest]], kind="stable")]
    is_given[lightest[np.cumsum(weight[lightest]) <= room]] = True
    chosen = order[is_given]
    return chosen[np.argsort(-weights[chosen])].astype(np.int32)


def deal_out(
    weights: Loads, chosen: npt.NDArray[np.integer], loads: Loads, receivers: Slots
) -> Slots:
    """A receiver for each of the chosen slots, which are the heaviest first; `loads` is what the
    receivers have.
    """
    if receivers.size <= _FEW_RECEIVERS:
        return receivers[_one_by_one(weights[chosen], loads)]
    to = np.empty(chosen.size, dtype=np.int32)
    load = loads.copy()
    # Half of them at a time: who has much already is passed over.
    at_once = receivers.size // 2
    for start in range(0, chosen.size, at_once):
        part = weights[chosen[start : start + at_once]]
        emptiest = np.argsort(load, kind="stable")[: part.size]
        load[emptiest] += part
        to[start : start + part.size] = receivers[emptiest]
    return to


def _one_by_one(weights: Loads, loads: Loads) -> list[int]:
    heap = [(load, number) for number, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    to = []
    for weight in weights.tolist():
        load, number = heap[0]
        to.append(number)
        heapq.heapreplace(heap, (load + weight, number))
    return to


def _excess(loads: Loads, heaviest: Loads, channels: int) -> tuple[Loads, float]:
    """What each channel gives, and what new ones have room for: as much as it has above the level,
    but where the old ones differ, only the fullest give, down to where they meet the new ones.
    """
    level = _level(loads, heaviest, channels)
    new = channels - loads.size

    def above(level: float) -> Loads:
        given: Loads = np.maximum(0.0, loads - np.maximum(level, heaviest))
        return given

    low = high = level
    if above(level).sum() > level * new:
        high = float(loads.max())
        while high - low > _NEAR * high:
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle).sum() > middle * new else (low, middle)
    return above(high), high * new


def _level(loads: Loads, heaviest: Loads, channels: int) -> float:
    """The load that all channels shall have, but for those that one slot alone keeps above it."""
    level = float(loads.sum()) / channels
    for _ in range(_LEVELS):
        is_stuck = heaviest > level
        others = channels - int(np.count_nonzero(is_stuck))
        if others <= 0:
            break
        level = float(loads.sum() - heaviest[is_stuck].sum()) / others
    return level

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
"""Among so few, a round would be a handful of slots."""
_HEAVY_SINGLY = 8
_LIGHT_SINGLY = 16
"""For each receiver: how many of the heaviest slots, and of the lightest, are looked at singly."""


def surplus(slots: Slots, weights: Loads, loads: Loads, channels: int) -> Slots:
    """The slots that channels have too many, the heaviest first, if there are to be `channels`.

    `loads` are those of the channels that give; what weighs nothing stays where it is.
    """
    # By channel, and within it by weight: sorting small numbers is a matter of counting.
    heavy_first = np.flatnonzero(weights)
    heavy_first = heavy_first[np.argsort(-weights[heavy_first])]
    of_heavy = slots[heavy_first]
    grouped = np.argsort(
        of_heavy.astype(np.uint16) if loads.size < 1 << 16 else of_heavy, kind="stable"
    )
    order, channel = heavy_first[grouped], of_heavy[grouped]
    weight = weights[order]
    heaviest = np.zeros(loads.size)
    first = _firsts(channel)
    heaviest[channel[first]] = weight[first]
    left, room = _excess(loads, heaviest, channels)
    is_given = np.zeros(order.size, dtype=bool)
    fits = np.arange(order.size)
    for _ in range(_PASSES):
        # Less is left after every pass: what did not fit, does not.
        fits = fits[weight[fits] <= left[channel[fits]]]
        if not fits.size:
            break
        of_fits, sums = channel[fits], np.cumsum(weight[fits])
        # A channel's own sum is the sum of all so far less that of the channels before it.
        first = _firsts(of_fits)
        before = np.zeros(loads.size)
        before[of_fits[first]] = sums[first] - weight[fits[first]]
        is_now = sums - before[of_fits] <= left[of_fits]
        if not is_now.any():
            break
        given, fits = fits[is_now], fits[~is_now]
        is_given[given] = True
        left -= np.bincount(channel[given], weights=weight[given], minlength=loads.size)
    # What is left is less than a slot. If nobody gave the last part, new ones would be short of all
    # of these parts: one more from those that have most, as long as that makes it better.
    room -= float(weight[is_given].sum())
    short = room / (channels - loads.size)
    spare = left[channel]
    others = np.flatnonzero(~is_given & (spare > 0) & (weight < spare + short))
    lightest = others[::-1][_firsts(channel[others][::-1])][::-1]
    lightest = lightest[np.argsort(-left[channel[lightest]], kind="stable")]
    is_given[lightest[np.cumsum(weight[lightest]) <= room]] = True
    is_chosen = np.zeros(slots.size, dtype=bool)
    is_chosen[order[is_given]] = True
    return heavy_first[is_chosen[heavy_first]].astype(np.int32)


def deal_out(
    weights: Loads, chosen: npt.NDArray[np.integer], loads: Loads, receivers: Slots
) -> Slots:
    """A receiver for each of the chosen slots, which are the heaviest first; `loads` is what the
    receivers have.
    """
    if receivers.size <= _FEW_RECEIVERS:
        return receivers[_among_few(weights[chosen], loads)]
    to = np.empty(chosen.size, dtype=np.int32)
    load = loads.copy()
    # Half of them at a time: who has much already is passed over. There are many rounds, and a
    # stable sort would take most of their time for an order among equals that nobody asks for.
    at_once = receivers.size // 2
    for start in range(0, chosen.size, at_once):
        part = weights[chosen[start : start + at_once]]
        emptiest = np.argsort(load)[: part.size]
        load[emptiest] += part
        to[start : start + part.size] = receivers[emptiest]
    return to


def _among_few(weights: Loads, loads: Loads) -> npt.NDArray[np.intp]:
    """A receiver's number for each weight. Of very many, the heaviest go one by one, the next ones
    in rounds of pieces, as large as what each receiver lacks of the level that all shall have, and
    the lightest one by one again: they even out what the ends of pieces have left.
    """
    if loads.size == 1:
        return np.zeros(weights.size, dtype=np.intp)
    heavy, light = _HEAVY_SINGLY * loads.size, _LIGHT_SINGLY * loads.size
    if weights.size <= heavy + 2 * light:
        return np.array(_one_by_one(weights, loads), dtype=np.intp)
    head, middle, tail = weights[:heavy], weights[heavy:-light], weights[-light:]
    load = loads.copy()
    first = _one_by_one(head, load)
    load += np.bincount(first, weights=head, minlength=load.size)
    # The level is what receivers would have if those below it were filled up to it.
    sums = np.cumsum(middle)
    rising = np.sort(load)
    filled = rising * np.arange(1, load.size + 1) - np.cumsum(rising)
    count = np.searchsorted(filled, sums[-1], side="right")
    level = (rising[:count].sum() + sums[-1]) / count
    room = np.cumsum(np.maximum(0.0, level - load))
    rounds = middle.size // light
    place = (sums - middle / 2) * rounds % sums[-1]
    pieces = np.minimum(np.searchsorted(room, place), load.size - 1)
    load += np.bincount(pieces, weights=middle, minlength=load.size)
    return np.concatenate([first, pieces, _one_by_one(tail, load)]).astype(np.intp)


def _one_by_one(weights: Loads, loads: Loads) -> list[int]:
    heap = [(load, number) for number, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    to, replace = [], heapq.heapreplace
    for weight in weights.tolist():
        load, number = heap[0]
        to.append(number)
        replace(heap, (load + weight, number))
    return to


def _firsts(grouped: Slots) -> npt.NDArray[np.intp]:
    """Where each group begins, of numbers that stand in groups."""
    begins = np.ones(grouped.size, dtype=bool)
    np.not_equal(grouped[1:], grouped[:-1], out=begins[1:])
    return np.flatnonzero(begins)


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

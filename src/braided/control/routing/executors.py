"""Executors: an operator's slots in fixed key ranges, each with channels of its own.

Elasticutor 2.2: the key space is split once among y executors, and what changes from second to
second is how many channels an executor has and which of them has which of its slots. That is the
fast loop: `divide_channels` gives channels to executors, `resize` names them, `balance_within`
spreads slots. The slow loop (`reshape`, the paper's appendix B) comes every ten minutes or so: it
splits executors that have outgrown a host and merges neighbours that have little to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from braided.control.routing.balance import apply_moves, balancing_moves
from braided.control.routing.rescale import reassign
from braided.control.routing.table import Loads, RoutingTable, Slots

__all__ = ["Layout", "balance_within", "divide_channels", "reshape", "resize"]


@dataclass(frozen=True)
class Layout:
    """Executor e has the slots from `bounds[e]` to before `bounds[e + 1]`, and `channels[e]`."""

    bounds: tuple[int, ...]
    channels: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.bounds) != len(self.channels) + 1 or self.bounds[0] != 0:
            raise ValueError("a layout has one range of slots per executor, from slot 0 on")
        if any(low >= high for low, high in pairwise(self.bounds)) or not all(self.channels):
            raise ValueError("every executor has at least one slot and one channel")
        if sorted(c for each in self.channels for c in each) != list(range(self.total)):
            raise ValueError("every channel belongs to one executor, and none is left out")

    @classmethod
    def even(cls, slots: int, executors: int, channels: int) -> Layout:
        """The first layout: ranges and channels as equal as they can be."""
        if not 1 <= executors <= min(slots, channels):
            raise ValueError(
                f"{slots} slots and {channels} channels can't be {executors} executors"
            )
        bounds = tuple(slots * e // executors for e in range(executors + 1))
        cuts = [channels * e // executors for e in range(executors + 1)]
        return cls(bounds, tuple(tuple(range(low, high)) for low, high in pairwise(cuts)))

    @cached_property
    def total(self) -> int:
        return sum(len(each) for each in self.channels)

    def over(self, channels: int) -> Layout:
        """The same ranges with more or fewer channels in all, in the shares they have now."""
        return resize(self, divide_channels(self.counts.astype(np.float64), channels))[0]

    def loads(self, load: Loads) -> Loads:
        """The load of each executor."""
        return np.add.reduceat(load, self.bounds[:-1])

    @cached_property
    def owners(self) -> Slots:
        """The executor of each channel."""
        owners = np.empty(self.total, dtype=np.int32)
        for executor, channels in enumerate(self.channels):
            owners[list(channels)] = executor
        return owners

    @cached_property
    def executor_of(self) -> Slots:
        """The executor of each slot."""
        return np.repeat(np.arange(len(self.channels), dtype=np.int32), np.diff(self.bounds))

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many channels each executor has."""
        return np.array([len(each) for each in self.channels])

    def is_within(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which slots are on a channel of their own executor."""
        within: npt.NDArray[np.bool_]
        if slots.max() < self.total:
            within = self.owners[slots] == self.executor_of
            return within
        has_channel = slots < self.total
        within = self.owners[np.where(has_channel, slots, 0)] == self.executor_of
        return within & has_channel

    def table(self) -> RoutingTable:
        """The first table: every executor's slots dealt out to its channels in turn."""
        slots = np.empty(self.bounds[-1], dtype=np.int32)
        for (low, high), channels in zip(pairwise(self.bounds), self.channels, strict=True):
            slots[low:high] = np.resize(np.array(channels, dtype=np.int32), high - low)
        return RoutingTable(0, self.total, slots)


def divide_channels(loads: Loads, channels: int) -> list[int]:
    """Channels for executors by load, at least one each, so that the busiest is as idle as can be.

    One after the other goes to whoever has most load per channel, which is optimal.
    """
    if channels < loads.size:
        raise ValueError(f"{loads.size} executors need a channel each, and there are {channels}")
    total = float(loads.sum())
    # What everybody is sure to get is given at once; the rest one by one.
    sure = np.floor(loads * (channels - loads.size) / total) if total > 0 else np.zeros_like(loads)
    counts = [max(1, int(n)) for n in sure]
    heap = [(-load / n, e) for e, (load, n) in enumerate(zip(loads.tolist(), counts, strict=True))]
    heapq.heapify(heap)
    for _ in range(channels - sum(counts)):
        executor = heap[0][1]
        counts[executor] += 1
        heapq.heapreplace(heap, (-float(loads[executor]) / counts[executor], executor))
    return counts


def resize(layout: Layout, counts: Sequence[int]) -> tuple[Layout, dict[int, int]]:
    """The layout with so many channels per executor, and old channel numbers that got new ones.

    Executors keep their channels, give up the last ones first and take what others gave up before
    new numbers. Where the total shrinks, the highest numbers fill the gaps.
    """
    if len(counts) != len(layout.channels) or min(counts) < 1:
        raise ValueError("every executor needs a number of channels of at least 1")
    if list(counts) == layout.counts.tolist():
        return layout, {}
    total = sum(counts)
    surplus = [c for each, n in zip(layout.channels, counts, strict=True) for c in each[n:]]
    free = sorted([*surplus, *range(layout.total, total)])
    after = []
    for before, count in zip(layout.channels, counts, strict=True):
        missing = max(0, count - len(before))
        after.append([*before[:count], *free[:missing]])
        del free[:missing]
    gaps = [c for c in free if c < total]
    high = sorted(c for each in after for c in each if c >= total)
    renamed = dict(zip(high, gaps, strict=True))
    channels = tuple(tuple(renamed.get(c, c) for c in each) for each in after)
    return Layout(layout.bounds, channels), renamed


def balance_within(
    layout: Layout,
    table: RoutingTable,
    load: Loads,
    theta: float,
    goal: float | None = None,
    speeds: Loads | None = None,
) -> RoutingTable:
    """The table in which executors have δ ≤ theta where it matters and where moves lead there.

    An operator takes as long as its busiest channel. So executors come in order of their peaks, and
    those are left alone whose peak is not above one that others keep anyway. Where there is
    something to do, it goes on to δ ≤ goal. Slots that are on a channel of another executor, after
    a change of the layout say, come back in any case. Where channels differ in speed, it is times
    that are evened out.
    """
    slots, owners = table.slots, layout.owners
    within = layout.is_within(slots)
    all_within = bool(within.all())
    # A slot outside its executor counts for nothing, wherever its channel is.
    of_channels: Loads = np.bincount(
        slots if all_within else np.minimum(slots, layout.total - 1),
        weights=load if all_within else np.where(within, load, 0.0),
        minlength=layout.total,
    ).astype(np.float64)
    fair = layout.loads(load) / layout.counts
    if speeds is not None:
        of_channels = of_channels / speeds
        fair = layout.loads(load) / np.bincount(owners, weights=speeds)
    peaks = np.zeros(len(layout.channels))
    np.maximum.at(peaks, owners, of_channels)
    misses_slots = np.zeros(peaks.size, dtype=bool)
    if not all_within:
        misses_slots[layout.executor_of[~within]] = True
    uneven = misses_slots | (peaks > theta * fair)
    if not uneven.any() and layout.total == table.channels:
        return table
    slots = slots.copy()
    kept_peak = float(peaks[~uneven].max(initial=0.0))
    order = np.flatnonzero(uneven)
    for executor in order[np.lexsort((order, -peaks[order], ~misses_slots[order]))].tolist():
        if not misses_slots[executor] and peaks[executor] <= kept_peak:
            break
        part = slice(layout.bounds[executor], layout.bounds[executor + 1])
        channels = layout.channels[executor]
        slots[part] = _spread(slots[part], load[part], channels, theta, goal, speeds)
        loads = np.bincount(slots[part], weights=load[part])
        peak = loads.max() if speeds is None else (loads / speeds[: loads.size]).max()
        kept_peak = max(kept_peak, float(peak))
    return table.next(slots, layout.total)


def _spread(
    slots: Slots,
    load: Loads,
    channels: tuple[int, ...],
    theta: float,
    goal: float | None,
    speeds: Loads | None,
) -> Slots:
    """One executor's slots over its own channels, which are numbered from 0 meanwhile."""
    count = len(channels)
    number = np.full(max(max(channels), int(slots.max())) + 1, count, dtype=np.int32)
    number[list(channels)] = np.arange(count)
    local = number[slots]
    if local.max() == count:  # a slot on a channel of another executor
        local = reassign(local, count, load)
    of_these = None if speeds is None else speeds[list(channels)]
    moves = balancing_moves(local, load, count, theta, goal=goal, speeds=of_these)
    return np.array(channels, dtype=np.int32)[apply_moves(local, moves)]


def reshape(
    layout: Layout, load: Loads, host_channels: int, split: float = 1.0, merge: float = 0.4
) -> tuple[Layout, list[str]]:
    """The slow loop: executors whose load outgrows a host are split, light neighbours merged.

    An executor that needs more than `split` hosts has remote channels for good; two neighbours
    that together need less than `merge` of one could share it. With `merge` at most half of
    `split`, what was merged is not split again at once.
    """
    if not 0 <= merge <= split / 2:
        raise ValueError(f"merging below {merge} and splitting above {split} would undo each other")
    ranges = [
        (low, high, list(channels))
        for (low, high), channels in zip(pairwise(layout.bounds), layout.channels, strict=True)
    ]
    reasons: list[str] = []
    ranges = _split(ranges, load, split * host_channels, reasons)
    ranges = _merge(ranges, load, merge * host_channels, reasons)
    bounds = (*(low for low, _, _ in ranges), layout.bounds[-1])
    return Layout(bounds, tuple(tuple(channels) for _, _, channels in ranges)), reasons


_Range = tuple[int, int, list[int]]


def _split(ranges: list[_Range], load: Loads, most: float, reasons: list[str]) -> list[_Range]:
    done: list[_Range] = []
    waiting = list(reversed(ranges))
    while waiting:
        low, high, channels = waiting.pop()
        weight = float(load[low:high].sum())
        if weight <= most or len(channels) < 2 or high - low < 2:
            done.append((low, high, channels))
            continue
        # Where the load is halved; a channel and a slot on either side.
        at = low + 1 + int(np.searchsorted(np.cumsum(load[low:high]), weight / 2))
        at = min(max(at, low + 1), high - 1)
        left = round(len(channels) * float(load[low:at].sum()) / weight)
        left = min(max(left, 1), len(channels) - 1)
        reasons.append(f"slots {low} to {high - 1} need {weight:.1f} channels: split at {at}")
        waiting += [(at, high, channels[left:]), (low, at, channels[:left])]
    return done


def _merge(ranges: list[_Range], load: Loads, least: float, reasons: list[str]) -> list[_Range]:
    weights = [float(load[low:high].sum()) for low, high, _ in ranges]
    while len(ranges) > 1:
        together = [a + b for a, b in pairwise(weights)]
        first = int(np.argmin(together))
        weight = together[first]
        if weight >= least:
            break
        (low, _, channels), (_, high, more) = ranges[first : first + 2]
        reasons.append(
            f"slots {low} to {high - 1} need {weight:.1f} channels in two executors: merged"
        )
        ranges[first : first + 2] = [(low, high, channels + more)]
        weights[first : first + 2] = [weight]
    return ranges

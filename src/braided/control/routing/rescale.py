"""Rescaling: more or fewer channels, and only what must move moves.

The monotonicity of consistent hashing (Gedik et al. 6.2): when channels are added, slots leave old
channels for new ones only; when channels are removed, only their slots leave. The balance is
better than a hash ring's, because the table is explicit: by load among slots that have some, and
by count among the others, so that slots of which nothing is known yet are not taken for free.
"""

from __future__ import annotations

import heapq
from typing import Literal

import numpy as np
import numpy.typing as npt

from braided.control.routing.balance import checked_load
from braided.control.routing.many_moves import deal_out, surplus
from braided.control.routing.refine import refine
from braided.control.routing.table import Loads, RoutingTable, Slots

__all__ = ["reassign", "rescale"]

_MANY_SLOTS = 4096
"""From here on, slots move all at once and not one after the other."""
_MANY_UNASSIGNED = 512

# Nearer than this, evening out moves many light slots for nothing one could measure.
_NEAR = 1.02


def rescale(table: RoutingTable, channels: int, load: npt.ArrayLike | None = None) -> RoutingTable:
    """The next table, with that many channels; the same one if it has them already."""
    if channels < 1:
        raise ValueError(f"an operator needs at least one channel, not {channels}")
    weights = checked_load(table, np.zeros(table.slots.size) if load is None else load)
    if channels == table.channels:
        return table
    if channels > table.channels:
        return table.next(_grow(table, channels, weights), channels)
    return table.next(reassign(table.slots, channels, weights), channels)


def _grow(table: RoutingTable, channels: int, weights: Loads) -> Slots:
    if table.slots.size >= _MANY_SLOTS:
        return _grow_at_once(table, channels, weights)
    old, new = range(table.channels), range(table.channels, channels)
    slots = table.slots.copy()
    loads = np.bincount(slots, weights=weights, minlength=channels).astype(np.float64)
    for move in refine(table.slots, weights, loads, old, new):
        if move.peak <= _NEAR * move.low:
            break
        slots[move.slot] = move.channel
    idle = (weights == 0).astype(np.float64)
    counts = np.bincount(slots, minlength=channels).astype(np.float64)
    for move in list(refine(slots, idle, counts, old, new)):
        slots[move.slot] = move.channel
    return slots


def _grow_at_once(table: RoutingTable, channels: int, weights: Loads) -> Slots:
    """The same for many slots: by load first, and those without load by count."""
    slots, new = table.slots.copy(), np.arange(table.channels, channels, dtype=np.int32)
    idle = (weights == 0).astype(np.float64)
    for each, everything in ((weights, weights), (idle, np.ones_like(weights))):
        if not each.any():
            continue
        loads = np.bincount(slots, weights=everything, minlength=channels).astype(np.float64)
        chosen = surplus(table.slots, each, loads[: table.channels], channels)
        slots[chosen] = deal_out(each, chosen, loads[table.channels :], new)
    return slots


def reassign(before: Slots, channels: int, weights: Loads) -> Slots:
    """Every slot on one of the channels below `channels`; only those move that are on none."""
    slots = before.copy()
    unassigned = np.flatnonzero(slots >= channels)
    # Stable, so that of equals the lower slot comes first; of many, which does hardly matters.
    kind: Literal["stable"] | None = "stable" if unassigned.size < _MANY_UNASSIGNED else None
    unassigned = unassigned[np.argsort(-weights[unassigned], kind=kind)]
    busy = np.count_nonzero(weights[unassigned])
    _assign(slots, unassigned[:busy], weights, channels)
    _assign(slots, unassigned[busy:], np.ones_like(weights), channels)
    return slots


def _assign(slots: Slots, unassigned: npt.NDArray[np.intp], weights: Loads, channels: int) -> None:
    """Puts each slot, heaviest first, where the load and then the count is lowest."""
    if not unassigned.size:
        return
    assigned = slots < channels
    loads = np.bincount(slots[assigned], weights=weights[assigned], minlength=channels)
    counts = np.bincount(slots[assigned], minlength=channels)
    if unassigned.size >= _MANY_UNASSIGNED:
        everybody = np.arange(channels, dtype=np.int32)
        slots[unassigned] = deal_out(weights, unassigned, loads.astype(np.float64), everybody)
        return
    heap = list(zip(loads.tolist(), counts.tolist(), range(channels), strict=True))
    heapq.heapify(heap)
    to = []
    for weight in weights[unassigned].tolist():
        load, count, channel = heap[0]
        to.append(channel)
        heapq.heapreplace(heap, (load + weight, count + 1, channel))
    slots[unassigned] = to

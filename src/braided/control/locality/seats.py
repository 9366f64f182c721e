"""From hosts to slots: a slot on its host for every key, with little to move and channels even.

A key that is on the right host stays in its slot. One whose hash leads to the right host goes back
there, and needs no entry in the table. All others are dealt out, heaviest first, to the channel of
the host that has least to do by then, and there to the slot with least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from braided.control.locality.graph import Numbers
from braided.control.routing.table import Loads, RoutingTable

__all__ = ["KeySlots", "host_numbers", "seat_keys"]


@dataclass(frozen=True, eq=False)
class KeySlots:
    """Slots of keys of one operator: where each should be, and which have to be written down."""

    slot: Numbers
    is_entry: npt.NDArray[np.bool_]
    """Not in the slot of its hash."""
    moves: npt.NDArray[np.bool_]
    """Not in the slot where it is now."""


def host_numbers(table: RoutingTable, hosts: Sequence[str]) -> Numbers:
    """The number of the host of every channel, -1 where it has none of these."""
    number = {name: n for n, name in enumerate(hosts)}
    names = table.hosts or ("",) * table.channels
    return np.array([number.get(name, -1) for name in names], dtype=np.int64)


def seat_keys(
    table: RoutingTable,
    channel_host: Numbers,
    key_host: Numbers,
    key_load: Loads,
    hash_slot: Numbers,
    now_slot: Numbers,
    slot_load: Loads,
) -> KeySlots:
    """Slots for keys that have hosts. A host that has no channel of the operator gets no key: what
    is sent there stays where it is. Where its channels have no slots, there is nowhere to put a
    key either: it goes where its hash leads.
    """
    host_of_slot = channel_host[table.slots]
    stays = (host_of_slot[now_slot] == key_host) | ~np.isin(key_host, channel_host)
    has_slots = np.isin(key_host, host_of_slot)
    returns = ~stays & ((host_of_slot[hash_slot] == key_host) | ~has_slots)
    slot = np.where(stays, now_slot, np.where(returns, hash_slot, -1))
    load = slot_load.astype(np.float64).copy()
    leaving = np.flatnonzero(~stays)
    np.subtract.at(load, now_slot[leaving], key_load[leaving])
    np.maximum(load, 0.0, out=load)
    np.add.at(load, slot[returns], key_load[returns])
    dealt = np.flatnonzero(slot < 0)
    for host in np.unique(key_host[dealt]).tolist():
        mine = dealt[key_host[dealt] == host]
        order = mine[np.lexsort((mine, -key_load[mine]))]
        slot[order] = _deal(table, np.flatnonzero(channel_host == host), key_load[order], load)
    return KeySlots(slot, slot != hash_slot, slot != now_slot)


def _deal(table: RoutingTable, channels: Numbers, weights: Loads, load: Loads) -> list[int]:
    """A slot for each weight, on these channels, in this order."""
    slots_of: list[list[tuple[float, int]]] = []
    totals: list[tuple[float, int]] = []
    for channel in channels.tolist():
        own = np.flatnonzero(table.slots == channel)
        if own.size:
            heap = list(zip(load[own].tolist(), own.tolist(), strict=True))
            heapify(heap)
            totals.append((float(load[own].sum()), len(slots_of)))
            slots_of.append(heap)
    heapify(totals)
    dealt = []
    for weight in weights.tolist():
        busy, number = totals[0]
        light, slot = slots_of[number][0]
        dealt.append(slot)
        heapreplace(slots_of[number], (light + weight, slot))
        heapreplace(totals, (busy + weight, number))
    return dealt

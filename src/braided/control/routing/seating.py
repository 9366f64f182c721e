"""Seats: a host for each of some channels, so that little state is read anew.

A transportation problem. `costs[c, h]` is what channel c costs on host h, a whole number, and
`seats[h]` is how many of them host h takes. First everybody chooses, those with most to lose first;
of hosts that cost the same, the emptiest. Whoever came late to a full host may be better off there
in exchange for others. So chains of moves that lower the sum are looked for, one channel from host
to host each, round in a circle or to a free seat, until there is none: then nothing is cheaper. If
everybody has what they would choose, and mostly they do, there is nothing to look for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Loads

__all__ = ["Costs", "Seats", "assign_seats"]

Costs = npt.NDArray[np.int64]
Seats = npt.NDArray[np.int64]

_NEVER = np.int64(1) << 60
_LOOKS = 1 << 22
"""How many costs are looked at in search of chains: as many as take a few hundredths of a second. A
batch waits for it, and for thousands of channels on a thousand hosts it would be seconds, for a
thousandth of what is read.
"""


def assign_seats(costs: Costs, seats: Seats, taken: Seats, room: Loads) -> Seats:
    """The host of each channel, at the least sum of costs, or near it where they are very many.

    `taken` is how many channels a host has beside these, and `room` how many it should have of
    equals: among hosts that cost the same, the one with fewest for its room is chosen.
    """
    channels = costs.shape[0]
    if int(seats.sum()) < channels:
        raise ValueError(f"{channels} channels can't have {int(seats.sum())} seats")
    if not channels:
        return np.zeros(0, dtype=np.int64)
    chosen, least = _by_choice(costs, seats, taken, room)
    if int(costs[np.arange(channels), chosen].sum()) > least:
        _exchange(costs, seats, chosen)
    return chosen


def _by_choice(costs: Costs, seats: Seats, taken: Seats, room: Loads) -> tuple[Seats, int]:
    """What everybody chooses in turn, and the sum that it would come to without the others."""
    every = np.arange(costs.shape[0])
    open_to = costs.copy()
    first = open_to.argmin(axis=1)
    least = open_to[every, first]
    # Whoever has no other host has nothing to lose.
    open_to[every, first] = _NEVER
    second = open_to.min(axis=1)
    regret = np.where(second == _NEVER, 0, second - least)
    open_to[every, first] = least
    open_to[:, seats <= 0] = _NEVER
    free, count = seats.tolist(), taken.tolist()
    weight = (taken + 1) / room
    chosen = np.full(every.size, -1, dtype=np.int64)
    for channel in np.lexsort((every, -regret)).tolist():
        cost = open_to[channel]
        best = (cost == cost.min()).nonzero()[0]
        host = int(best[0] if best.size == 1 else best[weight[best].argmin()])
        chosen[channel] = host
        free[host] -= 1
        count[host] += 1
        weight[host] = (count[host] + 1) / room[host]
        if not free[host]:
            open_to[:, host] = _NEVER
    return chosen, int(least.sum())


def _exchange(costs: Costs, seats: Seats, chosen: Seats) -> None:
    """Carries out chains of moves that lower the sum, while there are any and a batch can wait.

    There are no more of them than costs, so that this comes to an end.
    """
    channels, hosts = costs.shape
    for _ in range(min(channels * hosts, _LOOKS // costs.size)):
        cycles = _negative_cycles(_steps(costs, seats, chosen))
        if not cycles:
            return
        # No host is in two of them, so that nobody moves twice.
        moving: list[tuple[int, int]] = []
        for cycle in cycles:
            for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                if a < hosts and b < hosts:
                    mine = np.flatnonzero(chosen == a)
                    moving.append((int(mine[(costs[mine, b] - costs[mine, a]).argmin()]), b))
        for channel, host in moving:
            chosen[channel] = host


def _steps(costs: Costs, seats: Seats, chosen: Seats) -> Costs:
    """From host to host: what it costs to move the channel for which that is least. The last node
    is where free seats come from and go to.
    """
    hosts = costs.shape[1]
    by_host = np.argsort(chosen, kind="stable")
    owners = chosen[by_host]
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    change = costs[by_host]
    change -= costs[by_host, owners][:, None]
    step = np.full((hosts + 1, hosts + 1), _NEVER, dtype=np.int64)
    step[owners[firsts], :hosts] = np.minimum.reduceat(change, firsts, axis=0)
    step[:hosts, hosts] = np.where(np.bincount(chosen, minlength=hosts) < seats, 0, _NEVER)
    step[hosts, :hosts] = 0
    np.fill_diagonal(step, _NEVER)
    return step


def _negative_cycles(step: Costs) -> list[list[int]]:
    """Cycles of nodes whose steps sum to less than 0, in order, none of which have a node in
    common; none if there is no such cycle.
    """
    nodes = step.shape[0]
    distance = np.zeros(nodes, dtype=np.int64)
    before = np.full(nodes, -1, dtype=np.int64)
    for _ in range(nodes):
        reached = distance[:, None] + step
        nearest = reached.argmin(axis=0)
        nearer = reached[nearest, np.arange(nodes)]
        shorter = nearer < distance
        if not shorter.any():
            return []
        before[shorter] = nearest[shorter]
        distance[shorter] = nearer[shorter]
        # Whoever was reached by way of itself was so in steps that sum to less than 0.
        cycles = _cycles(before)
        if cycles:
            return cycles
    return []


def _cycles(before: Seats) -> list[list[int]]:
    """The cycles of nodes of which each knows the one before it, or -1."""
    nodes = before.size
    # As many steps back as there are nodes end in a cycle, or at the last one, before all others.
    back = np.append(np.where(before < 0, nodes, before), nodes)
    for _ in range(nodes.bit_length()):
        back = back[back]
    found: list[list[int]] = []
    seen: set[int] = set()
    for node in np.unique(back[back < nodes]).tolist():
        if node in seen:
            continue
        cycle = [node]
        while (at := int(before[cycle[-1]])) != node:
            cycle.append(at)
        seen.update(cycle)
        found.append(cycle[::-1])
    return found

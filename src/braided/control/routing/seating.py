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


def assign_seats(costs: Costs, seats: Seats, taken: Seats, room: Loads) -> Seats:
    """The host of each channel, at the least sum of costs.

    `taken` is how many channels a host has beside these, and `room` how many it should have of
    equals: among hosts that cost the same, the one with fewest for its room is chosen.
    """
    channels = costs.shape[0]
    if int(seats.sum()) < channels:
        raise ValueError(f"{channels} channels can't have {int(seats.sum())} seats")
    chosen = _by_choice(costs, seats, taken, room)
    least = costs.min(axis=1) if channels else np.zeros(0, dtype=np.int64)
    if int(costs[np.arange(channels), chosen].sum()) > int(least.sum()):
        _exchange(costs, seats, chosen)
    return chosen


def _by_choice(costs: Costs, seats: Seats, taken: Seats, room: Loads) -> Seats:
    channels, hosts = costs.shape
    free = seats.copy()
    count = taken.astype(np.float64)
    chosen = np.full(channels, -1, dtype=np.int64)
    if hosts > 1:
        lowest = np.partition(costs, 1, axis=1)[:, :2]
        regret = lowest[:, 1] - lowest[:, 0]
    else:
        regret = np.zeros(channels, dtype=np.int64)
    for channel in np.lexsort((np.arange(channels), -regret)).tolist():
        cost = np.where(free > 0, costs[channel], _NEVER)
        best = np.flatnonzero(cost == cost.min())
        host = int(best[np.argmin((count[best] + 1) / room[best])])
        chosen[channel] = host
        free[host] -= 1
        count[host] += 1
    return chosen


def _exchange(costs: Costs, seats: Seats, chosen: Seats) -> None:
    """Carries out chains of moves that lower the sum, as long as there are any."""
    channels, hosts = costs.shape
    for _ in range(channels * hosts):  # more than there are of them, so that this comes to an end
        # From host to host: the channel that it costs least to move. The last node is where free
        # seats come from and go to.
        step = np.full((hosts + 1, hosts + 1), _NEVER, dtype=np.int64)
        mover = np.full((hosts, hosts), -1, dtype=np.int64)
        for host in np.unique(chosen).tolist():
            mine = np.flatnonzero(chosen == host)
            change = costs[mine] - costs[mine, host][:, None]
            first = change.argmin(axis=0)
            step[host, :hosts] = change[first, np.arange(hosts)]
            mover[host] = mine[first]
        has_seat = np.bincount(chosen, minlength=hosts) < seats
        step[:hosts, hosts] = np.where(has_seat, 0, _NEVER)
        step[hosts, :hosts] = 0
        np.fill_diagonal(step, _NEVER)
        cycle = _negative_cycle(step)
        if not cycle:
            return
        for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            if a < hosts and b < hosts:
                chosen[mover[a, b]] = b


def _negative_cycle(step: Costs) -> list[int]:
    """Nodes of a cycle whose steps sum to less than 0, in order; empty if there is none."""
    nodes = step.shape[0]
    distance = np.zeros(nodes, dtype=np.int64)
    before = np.full(nodes, -1, dtype=np.int64)
    changed = np.zeros(0, dtype=np.int64)
    for _ in range(nodes):
        reached = distance[:, None] + step
        nearest = reached.argmin(axis=0)
        shorter = reached[nearest, np.arange(nodes)] < distance
        changed = np.flatnonzero(shorter)
        if not changed.size:
            return []
        before[changed] = nearest[changed]
        distance[changed] = reached[nearest[changed], changed]
    # After as many rounds as there are nodes, whoever still changes is behind a cycle.
    node = int(changed[0])
    for _ in range(nodes):
        node = int(before[node])
    cycle = [node]
    while (at := int(before[cycle[-1]])) != node:
        cycle.append(at)
    return cycle[::-1]

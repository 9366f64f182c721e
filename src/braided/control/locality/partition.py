"""Which host each key should be on: few rows between hosts, and no host with too much to do.

METIS cuts the graph, parts are given to the hosts that have most of their state already, and then
single keys move, in two ways that take turns, operator by operator:

    relieve    a host with more than α times its part of an operator's load gives keys away, those
               first that lose the fewest rows for the load that they take along
    improve    a key goes where more of its rows are, if there is room for it

Keys of one operator have no edge between them, so as long as only theirs move, what each gains does
not depend on the others. Every operator has its own bound (Caneill et al. 3.1): `limit` below.

The bound holds whenever no key of an operator weighs more than (α - 1) times the smallest part that
a host may have of its load, and no host has more than its limit by what is fixed. Then the host
with least for its part is not above it, and takes any key without going beyond its limit; so
relieving goes on until all are within theirs. Where a key is heavier, a host may be over by that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from braided.control.locality.graph import ALPHA, HostRoom, KeyGraph, Numbers, host_loads
from braided.control.locality.metis import cut_graph
from braided.control.routing.seating import assign_seats
from braided.control.routing.table import Loads

__all__ = ["bound_holds", "limits", "match_parts", "partition", "refine_hosts"]

_ROUNDS = 8
_SLACK = 1e-9
"""What sums of loads may be off by rounding."""


def partition(
    graph: KeyGraph,
    room: HostRoom,
    alpha: float = ALPHA,
    seed: int = 0,
    state_bytes: Loads | None = None,
    now: Numbers | None = None,
) -> Numbers:
    """The host of each key. `now` is where its state is, -1 for nowhere, and `state_bytes` how much
    that is: among partitions that differ by names only, the one that moves least is taken.
    """
    if not alpha >= 1:
        raise ValueError(f"alpha is how uneven hosts may be, at least 1, not {alpha}")
    size = np.ones(graph.keys) if state_bytes is None else state_bytes
    at = np.full(graph.keys, -1, dtype=np.int64) if now is None else now
    host_of = np.zeros(graph.keys, dtype=np.int64)
    for keys, hosts in _zones(graph, room, alpha, seed, size, at):
        part = cut_graph(_within(graph, keys), _free_shares(graph, room, hosts), alpha, seed)
        host_of[keys] = hosts[_match(graph, room, keys, part, hosts, size, at)]
    return refine_hosts(graph, room, alpha, host_of)


def refine_hosts(graph: KeyGraph, room: HostRoom, alpha: float, host_of: Numbers) -> Numbers:
    """The hosts with single keys moved, until all is within the bounds and nothing is gained."""
    state = _Refinement(graph, room, alpha, host_of)
    for _ in range(_ROUNDS):
        if not sum(state.relieve(o) + state.improve(o) for o in range(graph.operators)):
            break
    for operator in range(graph.operators):
        state.relieve(operator)
    return state.host_of


def limits(graph: KeyGraph, room: HostRoom, alpha: float) -> Loads:
    """What each host may have of each operator."""
    total = room.fixed.sum(axis=1) + np.bincount(graph.operator_of, graph.load, graph.operators)
    return np.asarray(alpha * room.capacity * total[:, None])


def bound_holds(graph: KeyGraph, room: HostRoom, alpha: float) -> bool:
    """Whether the bound is certain to be kept: the condition above."""
    limit = limits(graph, room, alpha)
    if (room.fixed > limit * (1 + _SLACK)).any():
        return False
    heaviest = np.zeros(graph.operators)
    np.maximum.at(heaviest, graph.operator_of, graph.load)
    smallest = np.where(room.capacity > 0, limit, np.inf).min(axis=1)
    return bool((heaviest <= (alpha - 1) / alpha * smallest).all())


# -- from parts to hosts -----------------------------------------------------------------------


def match_parts(kept_bytes: Loads, overload: Loads) -> Numbers:
    """The host of each part: first as little over the limits as can be, then with most state kept.

    Both have a row per part and a column per host.
    """
    hosts = kept_bytes.shape[1]
    kept = _whole(kept_bytes, 1_000_000)
    over = _whole(overload, 1000)
    costs = over * (int(kept.max(initial=0)) * hosts + 1) - kept
    ones = np.ones(hosts, dtype=np.int64)
    seats = assign_seats(costs - int(costs.min(initial=0)), ones, 0 * ones, np.ones(hosts))
    return np.asarray(seats, dtype=np.int64)


def _whole(values: Loads, scale: int) -> Numbers:
    most = float(values.max(initial=0.0))
    return np.rint(values / (most or 1.0) * scale).astype(np.int64)


def _match(
    graph: KeyGraph,
    room: HostRoom,
    keys: Numbers,
    part: Numbers,
    hosts: Numbers,
    size: Loads,
    at: Numbers,
) -> Numbers:
    count = hosts.size
    number = np.full(room.hosts + 1, -1, dtype=np.int64)  # the last is for -1, nowhere
    number[hosts] = np.arange(count)
    here = number[at[keys]]
    stays = here >= 0
    where = part[stays] * count + here[stays]
    kept = np.bincount(where, size[keys][stays], count * count).astype(np.float64)
    loads = np.zeros((graph.operators, count))
    np.add.at(loads, (graph.operator_of[keys], part), graph.load[keys])
    total = loads.sum(axis=1) + room.fixed[:, hosts].sum(axis=1)
    total = np.where(total > 0, total, 1.0)
    free = room.capacity[:, hosts] - room.fixed[:, hosts] / total[:, None]
    excess = loads[:, :, None] / total[:, None, None] - free[:, None, :]
    # A tenth of a fair part over is what moving single keys makes good.
    over = np.maximum(excess - 0.1 / room.hosts, 0.0).sum(axis=0)
    return match_parts(kept.reshape(count, count), over)[part]


def _zones(
    graph: KeyGraph, room: HostRoom, alpha: float, seed: int, size: Loads, at: Numbers
) -> Iterator[tuple[Numbers, Numbers]]:
    """Keys and the hosts that share them: all of them, or zone by zone where there are zones. What
    is cut between zones is the most expensive, so that comes first.
    """
    every = np.arange(graph.keys, dtype=np.int64)
    if not room.has_zones:
        yield every, np.arange(room.hosts, dtype=np.int64)
        return
    zones, zone_of = np.unique(np.array(room.zone_of), return_inverse=True)
    operators = range(graph.operators)
    merged = HostRoom(
        np.array([np.bincount(zone_of, room.capacity[o], zones.size) for o in operators]),
        np.array([np.bincount(zone_of, room.fixed[o], zones.size) for o in operators]),
    )
    zone_at = np.where(at >= 0, zone_of[at], -1)
    zone = partition(graph, merged, alpha, seed, size, zone_at)
    for number in range(zones.size):
        hosts = np.flatnonzero(zone_of == number)
        yield every[zone == number], hosts


def _free_shares(graph: KeyGraph, room: HostRoom, hosts: Numbers) -> Loads:
    """What the keys of each host should weigh, as METIS weighs them: all operators alike."""
    limit = limits(graph, room, 1.0)[:, hosts]
    free = np.maximum(limit - room.fixed[:, hosts], 0.0)
    total = free.sum(axis=1, keepdims=True)
    even = np.full_like(free, 1.0 / hosts.size)
    share = np.divide(free, total, out=even, where=total > 0)
    return np.asarray(share.mean(axis=0))


def _within(graph: KeyGraph, keys: Numbers) -> KeyGraph:
    """The graph of some keys alone."""
    if keys.size == graph.keys:
        return graph
    number = np.full(graph.keys, -1, dtype=np.int64)
    number[keys] = np.arange(keys.size)
    ends = number[graph.ends]
    inside = (ends >= 0).all(axis=1)
    return KeyGraph(
        graph.operators,
        graph.operator_of[keys],
        graph.load[keys],
        ends[inside],
        graph.weight[inside],
    )


# -- single keys -------------------------------------------------------------------------------


class _Refinement:
    """Hosts of keys while they change."""

    def __init__(self, graph: KeyGraph, room: HostRoom, alpha: float, host_of: Numbers) -> None:
        self.graph = graph
        self.room = room
        self.host_of = host_of.copy()
        self.limit = limits(graph, room, alpha) * (1 + _SLACK)
        self.load = host_loads(graph, room, self.host_of)
        self._keys = [np.flatnonzero(graph.operator_of == o) for o in range(graph.operators)]
        self._edges = [self._edges_of(o) for o in range(graph.operators)]

    def _edges_of(self, operator: int) -> tuple[Numbers, Numbers, Loads]:
        """An operator's edges: the number of its key among its own, the other key, the weight."""
        graph, keys = self.graph, self._keys[operator]
        number = np.full(graph.keys, -1, dtype=np.int64)
        number[keys] = np.arange(keys.size)
        near = number[graph.ends]
        first, second = near[:, 0] >= 0, near[:, 1] >= 0
        own = np.concatenate([near[first, 0], near[second, 1]])
        others = np.concatenate([graph.ends[first, 1], graph.ends[second, 0]])
        return own, others, np.concatenate([graph.weight[first], graph.weight[second]])

    def _rows_by_host(self, operator: int) -> Loads:
        """What each key of an operator would have on each host: rows that stay, or stay close."""
        own, others, weight = self._edges[operator]
        hosts, keys = self.room.hosts, self._keys[operator].size
        where = own * hosts + self.host_of[others]
        rows: Loads = np.bincount(where, weight, keys * hosts).astype(np.float64)
        rows = rows.reshape(keys, hosts)
        return rows @ self.room.closeness if self.room.has_zones else rows

    def improve(self, operator: int) -> int:
        """Moves keys to where more of their rows are, most rows first; says how many."""
        keys, load, limit = self._keys[operator], self.load[operator], self.limit[operator]
        rows = self._rows_by_host(operator)
        here = rows[np.arange(keys.size), self.host_of[keys]]
        gain = rows.max(axis=1, initial=0.0) - here
        wanting = np.flatnonzero(gain > _SLACK * (1.0 + here))
        order = wanting[np.argsort(-gain[wanting], kind="stable")]
        moved = 0
        for number in order.tolist():
            weight = self.graph.load[keys[number]]
            fits = (load + weight <= limit) & (self.room.capacity[operator] > 0)
            target = int(np.where(fits, rows[number], -1.0).argmax())
            if fits[target] and rows[number, target] > here[number] * (1 + _SLACK):
                self._move(operator, int(keys[number]), target)
                moved += 1
        return moved

    def relieve(self, operator: int) -> int:
        """Moves keys away from hosts with too much, fewest rows for their load first."""
        load, limit = self.load[operator], self.limit[operator]
        open_hosts = self.room.capacity[operator] > 0
        full = np.flatnonzero((load > limit) | ~open_hosts)
        keys = self._keys[operator]
        leaving = np.flatnonzero(np.isin(self.host_of[keys], full))
        if not leaving.size:
            return 0
        rows = self._rows_by_host(operator)[leaving]
        keys = keys[leaving]
        own = self.host_of[keys]
        elsewhere = rows.copy()
        elsewhere[np.arange(keys.size), own] = -1.0
        lost = rows[np.arange(keys.size), own] - elsewhere.max(axis=1)
        weight = self.graph.load[keys]
        price = lost / np.maximum(weight, _SLACK * max(float(weight.max()), 1e-300))
        moved = 0
        for number in np.lexsort((keys, price)).tolist():
            host, key = int(own[number]), int(keys[number])
            heavy = float(weight[number])
            if open_hosts[host] and (load[host] <= limit[host] or heavy <= 0):
                continue
            fits = open_hosts & (load + heavy <= limit)
            fits[host] = False
            if fits.any():
                target = int(np.where(fits, rows[number], -1.0).argmax())
            else:
                # No room for it anywhere: better where it is less of a burden, if that is so.
                filled = np.where(open_hosts, (load + heavy) / np.maximum(limit, 1e-300), np.inf)
                target = int(filled.argmin())
                if open_hosts[host] and filled[target] >= load[host] / limit[host]:
                    continue
            self._move(operator, key, target)
            moved += 1
        return moved

    def _move(self, operator: int, key: int, target: int) -> None:
        weight = self.graph.load[key]
        self.load[operator, self.host_of[key]] -= weight
        self.load[operator, target] += weight
        self.host_of[key] = target

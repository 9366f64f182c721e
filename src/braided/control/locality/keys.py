"""From statistics to a graph: keys get numbers, loads and places.

A key's load is time. Of its slot's load it has the part that it has of the slot's rows, so a key
whose rows take long weighs more than its rows alone; what is left of the slot is the fixed load of
keys that nobody counted. Its state is an even part of its slot's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.locality.forecast import HeldOut, KeyCosts
from braided.control.locality.graph import HostRoom, KeyGraph, Numbers
from braided.control.locality.seats import host_numbers
from braided.control.locality.statistics import PairSummary
from braided.control.measure.view import OperatorView
from braided.control.routing.table import Loads

__all__ = ["CountedKeys", "Edge", "counted_keys", "held_rows", "host_room"]

Edge = tuple[str, str]
"""An operator and one that it feeds."""


@dataclass(frozen=True, eq=False)
class CountedKeys:
    """The keys that statistics know, by number: those of an operator are next to each other."""

    operators: tuple[str, ...]
    keys: tuple[tuple[bytes, ...], ...]  # of each operator
    first: tuple[int, ...]  # the number of an operator's first key
    graph: KeyGraph
    state_bytes: Loads
    hash_slot: Numbers
    now_slot: Numbers
    costs: KeyCosts

    def of(self, operator: int) -> slice:
        return slice(self.first[operator], self.first[operator] + len(self.keys[operator]))

    def numbers(self, operator: str) -> dict[bytes, int]:
        """The number of each key of an operator."""
        place = self.operators.index(operator)
        return {key: self.first[place] + n for n, key in enumerate(self.keys[place])}

    def now_host(self, channel_hosts: Sequence[Numbers], views: Sequence[OperatorView]) -> Numbers:
        """The host that each key is on by the tables of now, -1 where that is none of them."""
        host = np.full(self.graph.keys, -1, dtype=np.int64)
        for operator, view in enumerate(views):
            mine = self.of(operator)
            host[mine] = channel_hosts[operator][view.table.slots[self.now_slot[mine]]]
        return host


def counted_keys(
    views: Mapping[str, OperatorView],
    summaries: Mapping[Edge, PairSummary],
    hash_slots: Mapping[str, Mapping[bytes, int]],
    entries: Mapping[str, Mapping[bytes, int]],
    leave: Mapping[str, frozenset[bytes]],
    rates: Mapping[Edge, float],
    least_rows_per_s: float = 0.0,
) -> CountedKeys:
    """The graph of the pairs of these summaries.

    `entries` are the slots of keys that have one in the table now; the others are where their hash
    leads (`hash_slots`; a key that is not in it is left out). `leave` are keys that others dispose
    of: hot ones, and those that are split. `rates` are the rows per second of each edge. A key with
    fewer rows than `least_rows_per_s` is left where it is: to move it would never pay.
    """
    operators = tuple(dict.fromkeys(name for edge in summaries for name in edge))
    rows: dict[str, dict[bytes, float]] = {name: {} for name in operators}
    for name in operators:
        inward = [edge for edge in summaries if edge[1] == name]
        # Rows that come in say what a key has to do; for who has none counted, those that go out.
        for edge in inward or [edge for edge in summaries if edge[0] == name]:
            _add_rows(rows[name], summaries[edge], edge.index(name), rates[edge])
    known = {
        name: tuple(
            key
            for key in sorted(rows[name])
            if rows[name][key] >= least_rows_per_s
            and key in hash_slots[name]
            and key not in leave[name]
        )
        for name in operators
    }
    counts = [len(known[name]) for name in operators]
    first = tuple(np.cumsum([0, *counts])[:-1].tolist())
    number = {
        name: {key: first[n] + i for i, key in enumerate(known[name])}
        for n, name in enumerate(operators)
    }
    ends, weights = [], []
    for edge, summary in summaries.items():
        here, there = number[edge[0]], number[edge[1]]
        scale = rates[edge] / summary.total if summary.total else 0.0
        for (a, b), weight in summary.weight.items():
            if a in here and b in there:
                ends.append((here[a], there[b]))
                weights.append(weight * scale)
    loads, sizes, homes, nows, per_row = [], [], [], [], []
    for name in operators:
        home = np.array([hash_slots[name][key] for key in known[name]], dtype=np.int64)
        at = entries[name]
        now = np.array([at.get(key, hash_slots[name][key]) for key in known[name]], dtype=np.int64)
        key_rows = np.array([rows[name][key] for key in known[name]])
        loads.append(_key_loads(views[name], now, key_rows))
        per_row.append(loads[-1] / np.maximum(key_rows, 1e-12))
        per_key = views[name].state_bytes / np.maximum(views[name].keys, 1.0)
        sizes.append(per_key[now])
        homes.append(home)
        nows.append(now)
    graph = KeyGraph(
        len(operators),
        np.repeat(np.arange(len(operators)), counts),
        np.concatenate(loads) if loads else np.zeros(0),
        np.array(ends, dtype=np.int64).reshape(-1, 2),
        np.array(weights, dtype=np.float64),
    )
    return CountedKeys(
        operators,
        tuple(known[name] for name in operators),
        first,
        graph,
        np.concatenate(sizes) if sizes else np.zeros(0),
        np.concatenate(homes) if homes else np.zeros(0, dtype=np.int64),
        np.concatenate(nows) if nows else np.zeros(0, dtype=np.int64),
        KeyCosts(
            np.concatenate(per_row) if per_row else np.zeros(0),
            np.array([float(each.sum()) for each in loads]),
        ),
    )


def _add_rows(rows: dict[bytes, float], summary: PairSummary, side: int, rate: float) -> None:
    scale = rate / summary.total if summary.total else 0.0
    for pair, weight in summary.weight.items():
        rows[pair[side]] = rows.get(pair[side], 0.0) + weight * scale


def _key_loads(view: OperatorView, slot: Numbers, rows: Loads) -> Loads:
    """Each key's part of the load of its slot."""
    total = float(rows.sum())
    share = view.share
    if share is None or not view.arrival_rate > 0:
        # Nobody knows what slots have in rows: then a row is a row.
        loads = rows * (view.total_load / total if total else 0.0)
    else:
        slot_rows = share[slot] * view.arrival_rate
        part = np.divide(rows, slot_rows, out=np.zeros_like(rows), where=slot_rows > 0)
        loads = np.minimum(part, 1.0) * view.load[slot]
    # Statistics and loads are of different batches: together keys have no more than their slot.
    used = np.bincount(slot, loads, view.load.size).astype(np.float64)
    fits = np.divide(view.load, used, out=np.ones_like(used), where=used > view.load)
    return np.asarray(loads * fits[slot])


def host_room(
    counted: CountedKeys,
    views: Sequence[OperatorView],
    hosts: Sequence[str],
    zone_of: tuple[int, ...] = (),
) -> HostRoom:
    """What the hosts can take of each operator, and what they have whatever becomes of its keys."""
    capacity = np.zeros((len(views), len(hosts)))
    fixed = np.zeros_like(capacity)
    for operator, view in enumerate(views):
        channel_host = host_numbers(view.table, hosts)
        placed = channel_host >= 0
        speeds = np.ones(view.channels) if view.speeds is None else view.speeds
        capacity[operator] = np.bincount(channel_host[placed], speeds[placed], len(hosts))
        mine = counted.of(operator)
        keys = np.bincount(counted.now_slot[mine], counted.graph.load[mine], view.load.size)
        rest = np.maximum(view.load - keys, 0.0)
        at = channel_host[view.table.slots]
        fixed[operator] = np.bincount(at[at >= 0], rest[at >= 0], len(hosts))
    total = capacity.sum(axis=1, keepdims=True)
    capacity = np.divide(capacity, total, out=np.zeros_like(capacity), where=total > 0)
    return HostRoom(capacity, fixed, zone_of)


def held_rows(
    counted: CountedKeys, held: Mapping[Edge, Sequence[tuple[bytes, bytes, float]]]
) -> list[HeldOut]:
    """Held-out rows with the numbers of their keys."""
    found = []
    for (here, there), rows in held.items():
        first, second = counted.numbers(here), counted.numbers(there)
        keys = np.array([(first.get(a, -1), second.get(b, -1)) for a, b, _ in rows], dtype=np.int64)
        operators = counted.operators.index(here), counted.operators.index(there)
        weight = np.array([each[2] for each in rows], dtype=np.float64)
        found.append(HeldOut(operators, keys.reshape(-1, 2), weight))
    return found

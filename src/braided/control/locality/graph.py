"""The graph that is partitioned: keys of several operators, and how often they occur together.

A vertex is a key of one operator and weighs what the key costs in time. An edge joins a key with
one of the next operator and weighs the rows that have both. No edge joins two keys of one operator,
whatever the operators are to each other: a chain, a branch, or one that several feed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Loads

__all__ = ["ALPHA", "HostRoom", "KeyGraph", "Numbers", "host_loads", "local_share"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeyGraph:
    """Keys by number. `ends` has the two keys of each edge, a row each."""

    operators: int
    operator_of: Numbers
    load: Loads
    ends: Numbers
    weight: Loads

    def __post_init__(self) -> None:
        keys = self.operator_of.size
        if self.load.size != keys or (keys and self.operator_of.max() >= self.operators):
            raise ValueError("every key has a load, and an operator that there is")
        if self.ends.shape != (self.weight.size, 2):
            raise ValueError("an edge has two ends and a weight")
        if self.weight.size:
            if self.ends.min() < 0 or self.ends.max() >= keys:
                raise ValueError("an edge leads to a key that is not there")
            both = self.operator_of[self.ends]
            if (both[:, 0] == both[:, 1]).any():
                raise ValueError("an edge joins two keys of one operator")

    @property
    def keys(self) -> int:
        return int(self.operator_of.size)


@dataclass(frozen=True, eq=False)
class HostRoom:
    """What hosts can take, one row per operator and one column per host.

    `capacity` is each host's part of an operator's load, by its channels and their speed; the parts
    of an operator sum to 1, and a host without a channel of it has 0. `fixed` is the load that is
    there whatever becomes of the keys in the graph: that of keys which go by their hash.
    `closeness` is 1 for a host and itself, 0 for hosts far from each other, and between them for
    two of a zone.
    """

    capacity: Loads
    fixed: Loads
    zone_of: tuple[int, ...] = ()
    closeness: Loads = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        if self.capacity.shape != self.fixed.shape or self.capacity.ndim != 2:
            raise ValueError("capacity and fixed load have a row per operator, a column per host")
        if not self.capacity.shape[1]:
            raise ValueError("there is no host")
        if self.zone_of and len(self.zone_of) != self.hosts:
            raise ValueError(f"{self.hosts} hosts have {len(self.zone_of)} zones")
        if not self.closeness.size:
            object.__setattr__(self, "closeness", closeness_of(self.zone_of or range(self.hosts)))

    @property
    def hosts(self) -> int:
        return int(self.capacity.shape[1])

    @property
    def has_zones(self) -> bool:
        """Whether hosts differ in how far they are from each other."""
        return 1 < len(set(self.zone_of)) < self.hosts

    @classmethod
    def even(cls, operators: int, hosts: int) -> HostRoom:
        """Of hosts that are alike and have nothing to do."""
        shape = (operators, hosts)
        return cls(np.full(shape, 1.0 / hosts), np.zeros(shape))

    def spread(self) -> Loads:
        """How the keys that go by their hash are spread over the hosts, by operator."""
        total = self.fixed.sum(axis=1, keepdims=True)
        known = np.divide(self.fixed, total, out=np.zeros_like(self.fixed), where=total > 0)
        return np.where(total > 0, known, self.capacity)


ALPHA = 1.03
"""How much more than its part of an operator's load a host may have: METIS's own default."""
SAME_ZONE = 0.5
"""What a row between two hosts of one zone is worth; one that stays on its host is worth 1."""


def closeness_of(zone_of: tuple[int, ...] | range) -> Loads:
    """How close hosts are to each other."""
    zones = np.array(list(zone_of))
    close = np.where(zones[:, None] == zones[None, :], SAME_ZONE, 0.0)
    np.fill_diagonal(close, 1.0)
    return close


def host_loads(graph: KeyGraph, room: HostRoom, host_of: Numbers) -> Loads:
    """The load of every host, by operator: what is fixed, and the keys that are there."""
    where = graph.operator_of * room.hosts + host_of
    loads = np.bincount(where, graph.load, graph.operators * room.hosts)
    return room.fixed + loads.reshape(graph.operators, room.hosts)


def local_share(graph: KeyGraph, host_of: Numbers, closeness: Loads | None = None) -> float:
    """The share of the edges' weight whose ends are on one host; what is close counts in part
    where closeness is given.
    """
    total = float(graph.weight.sum())
    if total <= 0:
        return 1.0
    at = host_of[graph.ends]
    if closeness is None:
        return float(graph.weight[at[:, 0] == at[:, 1]].sum()) / total
    return float((graph.weight * closeness[at[:, 0], at[:, 1]]).sum()) / total

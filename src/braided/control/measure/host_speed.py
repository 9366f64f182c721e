"""How fast hosts are, compared with each other, by what rows cost on them.

A slow host makes its channels slow, and that is not the fault of their slots. Who takes the time of
slots as it is finds them heavy, moves them to a fast host, finds them light there and moves others.
So a slot's time is taken at full speed, time times the speed of the host (`at_full_speed` in
`estimator.py`), and balancers are told the speeds of channels.

A batch gives a cost per row for every slot, on the host where it ran. Against what the slot should
cost, that is the host's slowness, and a host is as slow as the median of its slots. What should it
cost? What it would on another host, if it has been on one: then slot and host are told apart. Slots
that have left a host speak of it in the same way. Where all these are too few, it is what slots of
the operator usually cost: keys are hashed, so the slots of one host are as dear as those of
another. Several operators say more than one, and each is compared with itself only.

Clocks are noisy, and whatever is said here moves slots. So a host is as slow as in the median of
its last three batches, one that was just met is not judged, less than a fifth slower is as fast as
any, and what was said stays until it is off by a tenth. Nobody is slower than a tenth of the
fastest, which is 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads

__all__ = ["SPEED_MIN", "HostSpeeds", "SlotRuns"]

SPEED_MIN = 0.1
_SAME = 0.2
"""How much slower a host has to be before it counts as slow."""
_SURELY_SLOW = 0.6
"""A speed that two batches in three are enough for."""
_OFF = 0.1
"""How far off what was said has to be before it is said anew."""
_ROUNDS = 12
"""In which hosts are compared with each other: each brings them half of the way nearer."""
_NEAR = 0.005
_ROWS_MIN = 4.0
"""Of a slot in a batch; with fewer, its time is what opening it took."""
_SLOTS_MIN = 8
"""Slots that a median needs."""
_BATCHES_MIN = 3
"""With rows, before a host is judged: the first ones start workers and fill caches."""
_MEMORY_BATCHES = 600
"""How long it is remembered what a slot cost on the host before."""
_LATELY_BATCHES = 64
"""How long the speed of a host is remembered that has no slots any more."""


_Numbers = npt.NDArray[np.int64]


class SlotRuns(NamedTuple):
    """What the slots of an operator did in a batch, and on which host each of them ran."""

    rows: Loads
    busy_s: Loads
    ran_on: Residence


class _HostRecord:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.recent: deque[float] = deque(maxlen=_BATCHES_MIN)  # slowness, as a logarithm
        self.slowness = 0.0
        self.seen = 0
        self.speed = 1.0

    def add(self, slowness: float, batch: int) -> None:
        self.recent.append(slowness)
        self.slowness = median(self.recent)
        self.seen = batch


class _OperatorCosts:
    """The cost of a row of each slot where it is, and where it was before, as logarithms."""

    def __init__(self, slots: int) -> None:
        self.host = np.full(slots, -1, dtype=np.int64)
        self.cost = np.full(slots, np.nan)
        self.host_before = np.full(slots, -1, dtype=np.int64)
        self.cost_before = np.full(slots, np.nan)
        self.left = np.zeros(slots, dtype=np.int64)

    def add(self, slots: _Numbers, host: _Numbers, cost: Loads, batch: int, hosts: int) -> None:
        """One batch. The first of a slot on a host does not count: its state may have been read."""
        stays = self.host[slots] == host
        moved = slots[~stays]
        known = moved[~np.isnan(self.cost[moved])]
        self.host_before[known], self.cost_before[known] = self.host[known], self.cost[known]
        self.left[known] = batch
        self.host[moved], self.cost[moved] = host[~stays], np.nan
        staying, sample = slots[stays], cost[stays]
        change = sample - self.cost[staying]
        is_first = np.isnan(change)
        of_host = _medians(host[stays][~is_first], change[~is_first])
        # What all slots of a host show is followed at once, and what one shows slowly.
        known_change = np.zeros(hosts)
        known_change[of_host.key] = of_host.median
        shared = known_change[host[stays]]
        followed = self.cost[staying] + shared + (change - shared) / 2
        self.cost[staying] = np.where(is_first, sample, followed)
        # What a slot would cost by now where it was: those that are there have shown how that host
        # has changed. Of one that has no slots, as far as all have.
        change_before = np.full(hosts + 1, _common(of_host.median))
        change_before[of_host.key] = of_host.median
        self.cost_before += change_before[self.host_before]


class _Groups(NamedTuple):
    """Values in groups: each group's key, median and weight."""

    key: _Numbers
    median: Loads
    weight: Loads


_NOTHING = _Groups(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


def _medians(keys: _Numbers, values: Loads, weights: Loads | None = None) -> _Groups:
    """The median of each group, of values that stand for as many as they weigh.

    Groups are few and small and this is asked for many times a batch, so what counts is how many
    calls of NumPy it takes.
    """
    if not keys.size:
        return _NOTHING
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    is_first = np.empty(keys.size, dtype=bool)
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    start = is_first.nonzero()[0]
    # Where half of the weight lies between two values, it is in the middle of them.
    if weights is None:
        count = _to_next(start, keys.size)
        low, high = start + (count - 1) // 2, start + count // 2
        return _Groups(keys[start], (values[low] + values[high]) / 2, count.astype(np.float64))
    weights = weights[order]
    below = weights.cumsum()
    before = below[start] - weights[start]
    weight = _to_next(before, below[-1])
    half = before + weight / 2
    low, high = below.searchsorted(half), below.searchsorted(half, side="right")
    return _Groups(keys[start], (values[low] + values[high]) / 2, weight)


def _to_next(starts: npt.NDArray[Any], end: float) -> npt.NDArray[Any]:
    """How far it is from each to the next one, and from the last one to the end."""
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = end - starts[-1]
    return lengths


def _common(changes: Loads) -> float:
    """The least change that is seen on every host."""
    if not changes.size or changes.min() < 0 < changes.max():
        return 0.0
    return float(changes[np.abs(changes).argmin()])


class _Evidence(NamedTuple):
    """What slots say of their hosts, in medians of logarithms.

    `usual` has what rows cost, by operator and host. `same` has how much dearer slots are on one
    host than on another, by these two, of slots that have been on both.
    """

    usual: _Groups
    same: _Groups


class HostSpeeds:
    """The speeds of the hosts of one query."""

    def __init__(self) -> None:
        self._batch = 0
        self._numbers: dict[str, int] = {}
        self._hosts: list[_HostRecord] = []
        self._operators: dict[str, _OperatorCosts] = {}

    def add(self, samples: Mapping[str, SlotRuns]) -> None:
        """One batch, by operator."""
        self._batch += 1
        for runs in samples.values():
            for host in runs.ran_on.hosts:
                self._number(host)
        hosts = len(self._hosts)
        parts = [self._evidence(name, runs) for name, runs in samples.items()]
        usual = [_keyed(each.usual, n * hosts) for n, each in enumerate(parts)]
        evidence = _Evidence(_joined(usual), _joined([each.same for each in parts]))
        comparison = _Comparison(evidence, hosts)
        present = set(comparison.host.tolist())
        slowness = np.array([record.slowness for record in self._hosts])
        for _ in range(_ROUNDS if len(present) > 1 else 0):
            judged, found = comparison.slowness(slowness)
            change = (found - slowness[judged]) / 2
            slowness[judged] += change
            if np.abs(change).max(initial=0.0) < _NEAR:
                break
        for number, record in enumerate(self._hosts):
            if number in present:
                record.add(float(slowness[number]), self._batch)
            elif self._batch - record.seen >= _LATELY_BATCHES:
                record.forget()
        self._judge()

    def speed(self, host: str) -> float:
        """1 for the fastest, and for hosts of which nothing is known."""
        number = self._numbers.get(host)
        return 1.0 if number is None else self._hosts[number].speed

    def of_channels(self, hosts: Sequence[str]) -> Loads | None:
        """The speed of each channel by its host; None where all are as fast."""
        speeds = np.array([self.speed(host) for host in hosts])
        return speeds if (speeds < 1).any() else None

    def of_slots(self, ran_on: Residence) -> Loads | None:
        """The speed at which each slot ran; None where all were as fast."""
        speeds = np.array([*(self.speed(host) for host in ran_on.hosts), 1.0])
        return speeds[ran_on.of_slot] if (speeds < 1).any() else None

    def _evidence(self, name: str, runs: SlotRuns) -> _Evidence:
        numbers = np.array([self._number(host) for host in runs.ran_on.hosts], dtype=np.int64)
        timed = (runs.rows >= _ROWS_MIN) & (runs.busy_s > 0) & (runs.ran_on.of_slot >= 0)
        slots = np.flatnonzero(timed)
        host = numbers[runs.ran_on.of_slot[slots]] if slots.size else np.empty(0, dtype=np.int64)
        costs = self._operators.setdefault(name, _OperatorCosts(runs.rows.size))
        cost = np.log(runs.busy_s[slots] / runs.rows[slots])
        hosts = len(self._hosts)
        costs.add(slots, host, cost, self._batch, hosts)
        counts = ~np.isnan(costs.cost[slots])
        slots, host, cost = slots[counts], host[counts], costs.cost[slots][counts]
        before = costs.host_before[slots]
        both = (before >= 0) & (self._batch - costs.left[slots] < _MEMORY_BATCHES)
        here, there = host[both], before[both]
        dearer = cost[both] - costs.cost_before[slots][both]
        # Who is here and was there says as much of the one as of the other.
        pairs = np.concatenate([here * hosts + there, there * hosts + here])
        return _Evidence(_medians(host, cost), _medians(pairs, np.concatenate([dearer, -dearer])))

    def _judge(self) -> None:
        known = [record for record in self._hosts if record.recent]
        fastest = min((record.slowness for record in known), default=0.0)
        for record in known:
            if len(record.recent) < _BATCHES_MIN:
                continue
            speed = max(SPEED_MIN, float(np.exp(fastest - record.slowness)))
            # A host on the edge is not slow one day and fast the next, and one that was not slow
            # and is not by much has to be in every batch.
            edge = 1 - _SAME if record.speed == 1 else 1 - _SAME / 2
            at_best = float(np.exp(fastest - min(record.recent)))
            is_unsure = record.speed == 1 and speed > _SURELY_SLOW and at_best >= edge
            if speed >= edge or is_unsure:
                record.speed = 1.0
            elif abs(speed - record.speed) > _OFF * record.speed:
                record.speed = speed

    def _number(self, host: str) -> int:
        number = self._numbers.setdefault(host, len(self._hosts))
        if number == len(self._hosts):
            self._hosts.append(_HostRecord())
        return number


class _Comparison:
    """Hosts compared with each other by what their slots say, given how slow each is held to be."""

    def __init__(self, evidence: _Evidence, hosts: int) -> None:
        self._hosts = hosts
        self._usual, self._same = evidence
        operator, self.host = np.divmod(self._usual.key, max(1, hosts))
        self._operator = operator
        # Who is alone is as fast as itself, which says nothing.
        is_first = np.ones(operator.size, dtype=bool)
        np.not_equal(operator[1:], operator[:-1], out=is_first[1:])
        self._place = is_first.cumsum() - 1  # groups come by operator
        self._counts = np.bincount(self._place)[self._place] > 1
        self._here, self._there = np.divmod(self._same.key, max(1, hosts))

    def slowness(self, held: Loads) -> tuple[_Numbers, Loads]:
        """Hosts, and how slow they are by their slots, given how slow the others are.

        The fastest has 0. The medians of groups stand for all slots in them.
        """
        usual, same, counts = self._usual, self._same, self._counts
        at_full_speed = _medians(self._operator, usual.median - held[self.host], usual.weight)
        slower = usual.median - at_full_speed.median[self._place]
        found = np.full(self._hosts, np.nan)
        for each in (
            _medians(self.host[counts], slower[counts], usual.weight[counts]),
            _medians(self._here, same.median + held[self._there], same.weight),
        ):
            enough = each.weight >= _SLOTS_MIN
            found[each.key[enough]] = each.median[enough]
        number = np.flatnonzero(~np.isnan(found))
        return number, found[number] - (found[number].min() if number.size else 0.0)


def _keyed(groups: _Groups, offset: int) -> _Groups:
    return groups._replace(key=groups.key + offset)


def _joined(groups: Sequence[_Groups]) -> _Groups:
    columns = zip(_NOTHING, *groups, strict=True)
    key, middle, weight = (np.concatenate(column) for column in columns)
    return _Groups(key, middle, weight)

"""Locality simulated: what hash, one table for good, and a new table each period come to.

Rows are those of `correlated.py`. Where keys go is decided by the very code that a running query
has (`control/locality`): pairs are counted, a part of the rows is held out, and a plan is made of
that. What became of it is counted row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from braided.control.locality.forecast import Record
from braided.control.locality.gain import RemotePrices
from braided.control.locality.planner import LocalityPlan, PlanInput, plan_locality
from braided.control.locality.statistics import PairCounts, PairWindow
from braided.control.measure.view import OperatorView
from braided.control.routing.table import RoutingTable
from braided.sim.correlated import CorrelatedPairs, Numbers
from braided.sim.keys import hashed

__all__ = [
    "LocalityPeriod",
    "TableFigures",
    "Trial",
    "count_edges",
    "locality_by_hash",
    "run_periods",
]

_HERE, _THERE = "location", "hashtag"
_EDGE = (_HERE, _THERE)
_HOLD_EVERY = 16
_PRICES = RemotePrices(row_bytes=4096.0, horizon_s=600.0)
"""Rows are large and a table holds for long, as in the paper, where it was a week."""
_STATE_BYTES = 100.0  # of a key
_ROW_S = 1e-4
_PERIOD_S = 60.0
_CHANNELS_PER_HOST = 2
_SLOTS_PER_CHANNEL = 16


@dataclass(frozen=True)
class TableFigures:
    """What a table did with the rows of a period."""

    locality: float
    imbalance: float


@dataclass(frozen=True)
class LocalityPeriod:
    """One period: hash, the first table kept for good, and the newest one."""

    number: int
    hash: TableFigures
    offline: TableFigures
    online: TableFigures
    fitted: float
    """The locality that the table has on the rows that it was made of."""
    promised: float
    """What was expected of it for the period to come."""
    moved_keys: int
    entries: int


@dataclass(frozen=True)
class Trial:
    """What is simulated."""

    hosts: int = 6
    periods: int = 12
    rows: int = 150_000
    rows_of: CorrelatedPairs = field(default_factory=CorrelatedPairs)
    edges_max: int | None = None
    """Pairs that statistics have room for; all there are without it."""
    alpha: float = 1.03
    only_what_pays: bool = False
    """Whether a table has to be worth its moves; the paper takes a new one every period."""


class _KeyPlaces:
    """Where keys are: their slots by hash, and those that the table has for them."""

    def __init__(self, trial: Trial) -> None:
        channels = trial.hosts * _CHANNELS_PER_HOST
        slots = channels * _SLOTS_PER_CHANNEL
        table = RoutingTable.initial(slots, channels)
        names = tuple(f"host-{channel // _CHANNELS_PER_HOST:02d}" for channel in range(channels))
        self.table = RoutingTable(0, channels, table.slots, hosts=names)
        self.hosts = tuple(dict.fromkeys(names))
        self.entries: dict[str, dict[bytes, int]] = {_HERE: {}, _THERE: {}}
        self._host_of_slot = self.table.slots // _CHANNELS_PER_HOST

    def hash_slots(self, name: str, keys: Numbers) -> Numbers:
        # Two operators have keys of different kinds, which do not hash alike.
        return hashed(2 * keys + (name == _THERE), self.table.slots.size)

    def slots(self, name: str, keys: Numbers) -> Numbers:
        unique, place = np.unique(keys, return_inverse=True)
        slots, entries = self.hash_slots(name, unique), self.entries[name]
        if entries:
            at = [entries.get(b"%d" % key, -1) for key in unique.tolist()]
            explicit = np.array(at, dtype=np.int64)
            slots = np.where(explicit >= 0, explicit, slots)
        return slots[place]

    def measure(self, here: Numbers, there: Numbers) -> TableFigures:
        at = [self._host_of_slot[self.slots(*each)] for each in ((_HERE, here), (_THERE, there))]
        loads = [np.bincount(hosts, minlength=len(self.hosts)) for hosts in at]
        fullest = max(float(load.max()) / float(load.mean()) for load in loads)
        return TableFigures(float((at[0] == at[1]).mean()), fullest)

    def view(self, name: str, keys: Numbers) -> OperatorView:
        slots = self.table.slots.size
        rows = np.bincount(self.slots(name, keys), minlength=slots).astype(np.float64)
        unique = np.bincount(self.slots(name, np.unique(keys)), minlength=slots).astype(np.float64)
        rate = keys.size / _PERIOD_S
        return OperatorView(
            name=name,
            table=self.table,
            load=rows / _PERIOD_S * _ROW_S,
            keys=unique,
            state_bytes=unique * _STATE_BYTES,
            arrival_rate=rate,
            throughput=rate,
            true_rate=1 / _ROW_S,
            selectivity=1.0,
            backlog_rows=0.0,
            congestion=0.0,
            channel_load=np.zeros(self.table.channels),
            share=rows / max(1, keys.size),
        )


def run_periods(trial: Trial) -> list[LocalityPeriod]:
    """Period by period: rows come in by the tables of before, then new ones are made of them."""
    online, offline, plain = _KeyPlaces(trial), _KeyPlaces(trial), _KeyPlaces(trial)
    record, plan = Record(), None
    fitted = promised = 1.0 / trial.hosts
    moved = 0
    periods = []
    for number in range(trial.periods):
        here, there = trial.rows_of.period(number, trial.rows)
        came = online.measure(here, there)
        if plan is not None:
            record.add(plan.promised.locality, came.locality)
        periods.append(
            LocalityPeriod(
                number,
                plain.measure(here, there),
                offline.measure(here, there),
                came,
                fitted,
                promised,
                moved,
                sum(map(len, online.entries.values())),
            )
        )
        plan = _plan(trial, online, here, there, record)
        moved = 0
        if plan is None or (trial.only_what_pays and not plan.gain.pays):
            plan, fitted, promised = None, came.locality, came.locality
            continue
        online.entries = {name: each.as_dict() for name, each in plan.assignments.items()}
        if number == 0:
            offline.entries = online.entries
        fitted, promised = online.measure(here, there).locality, plan.expected
        moved = plan.moved_keys
    return periods


def locality_by_hash(trial: Trial) -> float:
    """The share of rows that stay where all keys go by their hash, over all periods."""
    plain = _KeyPlaces(trial)
    periods = (trial.rows_of.period(number, trial.rows) for number in range(trial.periods))
    return float(np.mean([plain.measure(here, there).locality for here, there in periods]))


def _plan(
    trial: Trial, routing: _KeyPlaces, here: Numbers, there: Numbers, record: Record
) -> LocalityPlan | None:
    window = PairWindow(trial.edges_max or 10_000_000)
    half = here.size // 2
    window.add([_counts(here[:half], there[:half])], is_late=False)
    window.add([_counts(here[half:], there[half:])], is_late=True)
    keys = {_HERE: np.unique(here), _THERE: np.unique(there)}
    given = PlanInput(
        views={_HERE: routing.view(_HERE, here), _THERE: routing.view(_THERE, there)},
        windows={_EDGE: window},
        hash_slots={name: _by_key(each, routing, name) for name, each in keys.items()},
        entries=routing.entries,
        rates={_EDGE: here.size / _PERIOD_S},
        hosts=routing.hosts,
        alpha=trial.alpha,
        entries_max=100_000,
    )
    return plan_locality(given, _PRICES, record)


def _by_key(keys: Numbers, routing: _KeyPlaces, name: str) -> Mapping[bytes, int]:
    slots = routing.hash_slots(name, keys).tolist()
    return {b"%d" % key: slot for key, slot in zip(keys.tolist(), slots, strict=True)}


def _counts(here: Numbers, there: Numbers) -> PairCounts:
    """Exact counts of these rows; every so many-th is held out."""
    first, a = np.unique(here, return_inverse=True)
    second, b = np.unique(there, return_inverse=True)
    rows = np.stack([a, b], axis=1).astype(np.int64)
    is_held = np.zeros(here.size, dtype=bool)
    is_held[_HOLD_EVERY - 1 :: _HOLD_EVERY] = True
    code, count = np.unique(a[~is_held] * second.size + b[~is_held], return_counts=True)
    return PairCounts(
        tuple(b"%d" % key for key in first.tolist()),
        tuple(b"%d" % key for key in second.tolist()),
        np.stack([code // second.size, code % second.size], axis=1).astype(np.int64),
        count.astype(np.float64),
        float((~is_held).sum()),
        0.0,
        rows[is_held],
        float(_HOLD_EVERY),
    )


def count_edges(trial: Trial) -> int:
    """The number of different pairs of the first period."""
    here, there = trial.rows_of.period(0, trial.rows)
    return int(np.unique(here * (int(there.max()) + 1) + there).size)

"""The plan: pairs in, a slot for every key that should have one out, and whether that pays.

Two tables are tried: one cut anew, and one that the table of now becomes when single keys move.
The first finds more, the second moves less, and what is worth more is taken. How good each will be
is judged as if it had been made half a period ago, by rows that came since and were held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from braided.control.locality.forecast import Forecast, Record, forecast
from braided.control.locality.gain import Gain, RemotePrices, weigh_gain
from braided.control.locality.graph import ALPHA, HostRoom, Numbers
from braided.control.locality.keys import (
    CountedKeys,
    Edge,
    counted_keys,
    held_rows,
    host_room,
)
from braided.control.locality.partition import partition, refine_hosts
from braided.control.locality.seats import KeySlots, host_numbers, seat_keys
from braided.control.locality.statistics import PairSummary, PairWindow
from braided.control.measure.view import OperatorView
from braided.control.routing.table import Loads

__all__ = ["LocalityPlan", "PlanInput", "PlannedSlots", "plan_locality"]

_DEAD_PERIODS = 8
"""An entry whose key had no row that was counted in so many periods is one that nobody needs: one
row in so many is counted, so that a key that is only rare is seen now and then.
"""
_FOR_THE_DEAD = 0.5
"""Of what a plan saves, the part that it may take to clear the table of such entries."""


@dataclass(frozen=True, eq=False)
class PlannedSlots:
    """The keys of an operator that are not to be where their hash leads, and their slots."""

    keys: tuple[bytes, ...]
    slots: Numbers

    def as_dict(self) -> dict[bytes, int]:
        return dict(zip(self.keys, self.slots.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class PlanInput:
    """What a plan is made of; mappings by operator, or by operator and the one that it feeds."""

    views: Mapping[str, OperatorView]
    windows: Mapping[Edge, PairWindow]
    hash_slots: Mapping[str, Mapping[bytes, int]]
    entries: Mapping[str, Mapping[bytes, int]]
    rates: Mapping[Edge, float]
    hosts: tuple[str, ...]
    zone_of: tuple[int, ...] = ()
    leave: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    alpha: float = ALPHA
    seed: int = 0
    entries_max: int = 100_000
    """Of an operator: keys with fewest rows go by their hash where there would be more."""
    unseen: Mapping[str, Mapping[bytes, int]] = field(default_factory=dict)
    """For how many periods no row of a key that has an entry was counted."""


@dataclass(frozen=True, eq=False)
class LocalityPlan:
    """Tables of keys for several operators, to take effect together, and what is said of them."""

    assignments: Mapping[str, PlannedSlots]
    now: Forecast
    promised: Forecast
    """As judged by held-out rows, before what earlier promises were off by is taken off."""
    expected: float
    """The locality that is expected, after that."""
    moved_keys: int
    moved_bytes: float
    gain: Gain
    how: str
    """`anew`, or `by single keys`."""
    anchors: Mapping[str, Loads]
    """What each slot would cost more on another host, in seconds per second: its rows that stay."""
    anchors_now: Mapping[str, Loads]
    """The same by the tables of now."""


def plan_locality(
    given: PlanInput, prices: RemotePrices, record: Record | None = None
) -> LocalityPlan | None:
    """The better of two plans; None where there are no statistics to go by."""
    older = {edge: window.older for edge, window in given.windows.items()}
    whole = {edge: window.whole() for edge, window in given.windows.items()}
    held = {edge: window.held() for edge, window in given.windows.items()}
    if not any(summary.weight for summary in older.values()) or not any(held.values()):
        return None
    past = _Candidates(given, older, prices)
    present = _Candidates(given, whole, prices)
    rows = held_rows(past.counted, held)
    # Where keys are now is known of all of them, and was not fitted to any row.
    now = forecast(
        held_rows(present.counted, held), present.now_host, present.room, present.counted.costs
    )
    if now is None:
        return None
    plans = []
    for how in ("anew", "by single keys"):
        judged = forecast(rows, past.hosts(how), past.room, past.counted.costs)
        if judged is not None:
            plans.append(_plan(given, present, how, now, judged, prices, record or Record()))
    return max(plans, key=lambda plan: (plan.gain.pays, plan.gain.net_s), default=None)


def _plan(
    given: PlanInput,
    made: _Candidates,
    how: str,
    now: Forecast,
    promised: Forecast,
    prices: RemotePrices,
    record: Record,
) -> LocalityPlan:
    host_of = made.hosts(how)
    expected = record.corrected(promised.locality)
    # If more came than was promised, the table of now did better too, so that is no gain over it.
    less = min(0.0, expected - promised.locality)
    after = replace(promised, closeness=promised.closeness + less)

    def weighed(moved_keys: int, moved_bytes: float) -> Gain:
        rows_per_s, hosts = sum(given.rates.values()), len(given.hosts)
        return weigh_gain(
            now, after, rows_per_s, hosts, made.views, moved_keys, moved_bytes, prices
        )

    assignments, moved_keys, moved_bytes = _assign(given, made, host_of, {})
    gain = weighed(moved_keys, moved_bytes)
    dead = _dead(given, made, prices, _FOR_THE_DEAD * gain.net_s) if gain.pays else {}
    if dead:
        assignments, moved_keys, moved_bytes = _assign(given, made, host_of, dead)
        gain = weighed(moved_keys, moved_bytes)
    row_s = prices.remote_row_s / len(given.hosts)
    return LocalityPlan(
        assignments,
        now,
        promised,
        expected,
        moved_keys,
        moved_bytes,
        gain,
        how,
        _anchors(made, _slots(made, assignments), host_of, row_s),
        _anchors(made, made.counted.now_slot, made.now_host, row_s),
    )


class _Candidates:
    """The keys of some statistics, and the hosts that they could have."""

    def __init__(
        self, given: PlanInput, summaries: Mapping[Edge, PairSummary], prices: RemotePrices
    ) -> None:
        self._given = given
        leave = {name: given.leave.get(name, frozenset()) for name in given.views}
        self.counted: CountedKeys = counted_keys(
            given.views,
            summaries,
            given.hash_slots,
            given.entries,
            leave,
            given.rates,
            prices.least_rows_per_s(len(given.hosts)),
        )
        self.views: Sequence[OperatorView] = [given.views[name] for name in self.counted.operators]
        self.room: HostRoom = host_room(self.counted, self.views, given.hosts, given.zone_of)
        self.channel_hosts = [host_numbers(view.table, given.hosts) for view in self.views]
        self.now_host = self.counted.now_host(self.channel_hosts, self.views)

    def hosts(self, how: str) -> Numbers:
        graph, given = self.counted.graph, self._given
        if how == "anew":
            return partition(
                graph, self.room, given.alpha, given.seed, self.counted.state_bytes, self.now_host
            )
        start = np.where(self.now_host >= 0, self.now_host, 0)
        return refine_hosts(graph, self.room, given.alpha, start)


def _dead(
    given: PlanInput, made: _Candidates, prices: RemotePrices, within_s: float
) -> dict[str, frozenset[bytes]]:
    """By operator, keys that have had no row for so long that their entries may go: those longest
    without first, as many as move within that time.
    """
    unseen = [
        (-periods, name, key)
        for name in made.counted.operators
        for key, periods in given.unseen.get(name, {}).items()
        if periods >= _DEAD_PERIODS and key in given.entries[name]
    ]
    dead: dict[str, set[bytes]] = {}
    for _, name, key in sorted(unseen):
        view, slot = given.views[name], given.entries[name][key]
        size = float(view.state_bytes[slot] / max(view.keys[slot], 1.0))
        moving_s = prices.moving_s(1, size)
        if moving_s <= within_s:
            within_s -= moving_s
            dead.setdefault(name, set()).add(key)
    return {name: frozenset(keys) for name, keys in dead.items()}


def _assign(
    given: PlanInput,
    made: _Candidates,
    host_of: Numbers,
    dead: Mapping[str, frozenset[bytes]],
) -> tuple[dict[str, PlannedSlots], int, float]:
    """The entries of every operator, without those that are dead, and how many keys and bytes have
    to move for them.
    """
    counted = made.counted
    assignments, moved_keys, moved_bytes = {}, 0, 0.0
    for operator, view in enumerate(made.views):
        name, mine = counted.operators[operator], counted.of(operator)
        hash_slot, now_slot = counted.hash_slot[mine], counted.now_slot[mine]
        load, channel_host = counted.graph.load[mine], made.channel_hosts[operator]
        seats: KeySlots = seat_keys(
            view.table, channel_host, host_of[mine], load, hash_slot, now_slot, view.load
        )
        entries = np.flatnonzero(seats.is_entry)
        if entries.size > given.entries_max:
            heaviest = np.argsort(-load[entries], kind="stable")[: given.entries_max]
            entries = np.sort(entries[heaviest])
        slot = hash_slot.copy()
        slot[entries] = seats.slot[entries]
        host_of_slot = channel_host[view.table.slots]
        moves = slot != now_slot
        reads = moves & (host_of_slot[slot] != host_of_slot[now_slot])
        # Keys that have an entry and few rows by now stay where they are while there is room: to
        # move them back would cost as much as to have moved them. Of too many, those longest
        # without a row go.
        keys, unseen = counted.keys[operator], given.unseen.get(name, {})
        others = sorted(
            set(given.entries[name]).difference(keys), key=lambda key: (unseen.get(key, 0), key)
        )
        leaving = dead.get(name, frozenset())
        kept = [key for key in others if key not in leaving][: given.entries_max - entries.size]
        gone = sorted(set(others).difference(kept))
        per_key = view.state_bytes / np.maximum(view.keys, 1.0)
        moved_keys += int(moves.sum()) + len(gone)
        moved_bytes += float(counted.state_bytes[mine][reads].sum())
        moved_bytes += sum(float(per_key[given.entries[name][key]]) for key in gone)
        kept_slots = np.array([given.entries[name][key] for key in kept], dtype=np.int64)
        assignments[name] = PlannedSlots(
            (*(keys[n] for n in entries.tolist()), *kept),
            np.concatenate([slot[entries], kept_slots]),
        )
    return assignments, moved_keys, moved_bytes


def _slots(made: _Candidates, assignments: Mapping[str, PlannedSlots]) -> Numbers:
    """The slot of every key by these entries."""
    counted = made.counted
    slots = counted.hash_slot.copy()
    for operator, name in enumerate(counted.operators):
        entries = assignments[name].as_dict()
        for n, key in enumerate(counted.keys[operator], counted.first[operator]):
            slots[n] = entries.get(key, slots[n])
    return slots


def _anchors(made: _Candidates, slots: Numbers, host_of: Numbers, row_s: float) -> dict[str, Loads]:
    """By slot, the seconds per second that rows save which stay on the host because of it, for keys
    in these slots and on these hosts.
    """
    counted, graph = made.counted, made.counted.graph
    at = host_of[graph.ends]
    stays = (at[:, 0] == at[:, 1]) & (at[:, 0] >= 0)
    saved = np.bincount(
        graph.ends[stays].ravel(), np.repeat(graph.weight[stays], 2) * row_s, graph.keys
    )
    anchors = {}
    for operator, view in enumerate(made.views):
        name, mine = counted.operators[operator], counted.of(operator)
        anchor = np.bincount(slots[mine], saved[mine], view.load.size)
        anchors[name] = anchor.astype(np.float64)
    return anchors

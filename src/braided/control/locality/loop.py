"""Locality over time: statistics add up for a period, then a plan is made, asked for, and judged.

    collect    reports of pairs, batch by batch
    plan       at the end of a period: `due` says that it is time, and for which keys the slots of
               their hashes have to be looked up, which is not done here
    judge      at the end of the next: what stayed on its host, against what was promised

When somebody else changes which key is where, what was counted stays true of the rows, but what was
promised is moot. A plan that does not pay is dropped, and said once; the next period counts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from braided.control.events import (
    Event,
    Judged,
    Located,
    pack_loads,
    unjudged,
    unpack_loads,
)
from braided.control.locality.forecast import Record
from braided.control.locality.gain import RemotePrices
from braided.control.locality.graph import ALPHA
from braided.control.locality.keys import Edge
from braided.control.locality.planner import (
    LocalityPlan,
    PlanInput,
    PlannedSlots,
    plan_locality,
)
from braided.control.locality.statistics import PairCounts, PairWindow
from braided.control.measure.view import FlowView, OperatorView
from braided.control.routing.table import Loads

__all__ = ["LocalityLoop", "LocalityRule"]

_TOLERANCE = 0.05
"""A promise that is off by more points than this has not come true."""


@dataclass(frozen=True)
class LocalityRule:
    """How locality is pursued."""

    period_batches: int = 60
    alpha: float = ALPHA
    seed: int = 0
    pairs_max: int = 200_000
    entries_max: int = 100_000
    zones: Mapping[str, str] = field(default_factory=dict)
    prices: RemotePrices = field(default_factory=RemotePrices)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.period_batches < 2:
            raise ValueError("a period has a batch to learn from and one to judge by, at least")

    def zone_of(self, hosts: Sequence[str]) -> tuple[int, ...]:
        """A number for the zone of each host; one that has no label is a zone of its own."""
        if not self.zones:
            return ()
        names = [self.zones.get(host, f"\0{host}") for host in hosts]
        number = {name: n for n, name in enumerate(dict.fromkeys(names))}
        return tuple(number[name] for name in names)


class _Promise(NamedTuple):
    """A plan that was asked for, the number of that decision, and the hosts that there were."""

    plan: LocalityPlan
    decision: int
    hosts: tuple[str, ...]


class LocalityLoop:
    """Decides where keys of one flow should be. `number` gives the next decision its number."""

    def __init__(
        self,
        rule: LocalityRule,
        number: Callable[[], int],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        memory = memory or {}
        self.rule = rule
        self._number = number
        self._windows: dict[Edge, PairWindow] = {}
        self._batches = 0
        self._record = Record([(float(a), float(b)) for a, b in memory.get("record", [])])
        self._unseen: dict[str, dict[bytes, int]] = {}
        """By operator, for how many periods an entry of its table has had no row that was counted.
        A restart forgets it: then entries go later.
        """
        self._promise: _Promise | None = None
        self._told_later: list[tuple[str, int, str]] = []  # operators, decision, why none is judged
        self.plan: LocalityPlan | None = None
        """The last one that was asked for."""
        self._plan_before: LocalityPlan | None = None
        self._anchors: Mapping[str, Loads] = {
            name: unpack_loads(each) for name, each in memory.get("anchors", {}).items()
        }
        """Of the keys as they are or, where a table was asked for, as they will be."""
        self._anchors_before: Mapping[str, Loads] = self._anchors

    def memory(self) -> dict[str, Any]:
        """What a restart needs, in JSON's own types."""
        return {
            "record": [list(each) for each in self._record.past()],
            # Packed, because the manifest of every batch has them.
            "anchors": {name: pack_loads(anchor) for name, anchor in self._anchors.items()},
        }

    def collect(self, reports: Mapping[Edge, Sequence[PairCounts]]) -> None:
        """What the channels of a batch have counted. One in which nothing was, because no row left
        an operator, is no part of the period: half of one has to have rows to judge by.
        """
        if not any(reports.values()):
            return
        is_late = 2 * self._batches >= self.rule.period_batches
        for edge, counts in reports.items():
            window = self._windows.setdefault(edge, PairWindow(self.rule.pairs_max))
            window.add(counts, is_late)
        self._batches += 1

    def reset(self) -> None:
        """Forgets what was counted of the period, which begins anew."""
        self._batches = 0
        for window in self._windows.values():
            window.reset()

    def superseded(self) -> None:
        """Somebody else's table of keys is in effect: nothing that was promised holds."""
        # What was counted does: pairs are of keys and not of slots, as rows have them by whatever
        # table. Our own table begins a period with it (`decide`), for the sake of the forecast.
        self._anchors = {}  # until `decide` has seen where keys are
        self._drop_promise("another table of keys took effect")

    def withdrawn(self) -> None:
        """What was decided last could not be asked for: all is as it was before it."""
        self.plan, self._anchors = self._plan_before, self._anchors_before
        self._drop_promise("it could not be asked for")

    def anchored(self, view: OperatorView) -> OperatorView:
        """The view, with what its slots would cost more elsewhere: by the table that was asked for
        last or, where none was, as keys were when a period ended; whoever put them there. What was
        found for other slots than there are says nothing.
        """
        anchor = self._anchors.get(view.name)
        if anchor is None or anchor.size != view.load.size:
            return view
        return replace(view, anchor=anchor)

    def shown(self) -> dict[str, Any]:
        """What the progress says of it."""
        halves = [half for each in self._windows.values() for half in (each.older, each.newer)]
        shown: dict[str, Any] = {
            "batches": self._batches,
            "rowsCounted": int(sum(half.total for half in halves)),
            "pairs": sum(len(half.weight) for half in halves),
        }
        if self.plan is not None:
            shown["expected"] = round(self.plan.expected, 4)
            shown["before"] = round(self.plan.now.locality, 4)
        return shown

    def due(self) -> dict[str, set[bytes]]:
        """The keys that a plan needs the slots of, by operator; none before the period is over."""
        if self._batches < self.rule.period_batches:
            return {}
        return self._counted()

    def _counted(self) -> dict[str, set[bytes]]:
        """The keys that had rows in the period, by operator."""
        keys: dict[str, set[bytes]] = {}
        for (here, there), window in self._windows.items():
            for summary in (window.older, window.newer):
                keys.setdefault(here, set()).update(a for a, _ in summary.weight)
                keys.setdefault(there, set()).update(b for _, b in summary.weight)
        return keys

    def decide(
        self,
        view: FlowView,
        hash_slots: Mapping[str, Mapping[bytes, int]],
        entries: Mapping[str, Mapping[bytes, int]],
        prices: RemotePrices | None = None,
    ) -> tuple[Mapping[str, PlannedSlots], list[Event]]:
        """Tables of keys to ask for, all in one epoch, and lines for the log. `entries` is what the
        tables have by now, without keys that have a slot for their heat.
        """
        events: list[Event] = [unjudged(view.batch, *told) for told in self._told_later]
        self._told_later = []
        self._age(entries)
        given = self._plan_input(view, hash_slots, entries)
        # The next period counts anew, in windows of its own: the plan is made of these.
        self._batches = 0
        self._windows = {edge: PairWindow(self.rule.pairs_max) for edge in self._windows}
        if given is None:
            return {}, events
        plan = plan_locality(given, self._until_next(view, prices), self._record)
        if plan is None:
            return {}, events
        events += self._judge(view.batch, plan, given.hosts)
        # Anchors are noted even if no table is taken: an earlier table, one of before a restart or
        # a user's may have brought the keys together.
        self._anchors_before = self._anchors = plan.anchors_now
        held = "" if plan.gain.pays else "it does not pay"
        if not held and self.rule.dry_run:
            held = "a dry run"
        event = _located(view.batch, plan, self._number(), held)
        events.append(event)
        if held:
            return {}, events
        self._plan_before, self.plan, self._anchors = self.plan, plan, plan.anchors
        self._promise = _Promise(plan, event.decision, given.hosts)
        return plan.assignments, events

    def _age(self, entries: Mapping[str, Mapping[bytes, int]]) -> None:
        """One more period is over, in which some of the keys that have entries had rows."""
        seen = self._counted()
        self._unseen = {
            name: {
                key: 0 if key in seen.get(name, ()) else self._unseen.get(name, {}).get(key, 0) + 1
                for key in keys
            }
            for name, keys in entries.items()
        }

    def _plan_input(
        self,
        view: FlowView,
        hash_slots: Mapping[str, Mapping[bytes, int]],
        entries: Mapping[str, Mapping[bytes, int]],
    ) -> PlanInput | None:
        names = {name for edge in self._windows for name in edge}
        if not names or not names <= set(view.operators) or not names <= set(hash_slots):
            return None
        views = {name: view.operators[name] for name in view.operators if name in names}
        hosts = _hosts(views)
        if len(hosts) < 2 or not all(any(each.table.hosts) for each in views.values()):
            return None
        return PlanInput(
            views=views,
            windows=self._windows,
            hash_slots=hash_slots,
            entries={name: entries.get(name, {}) for name in names},
            rates=_rates(views, list(self._windows)),
            hosts=hosts,
            zone_of=self.rule.zone_of(hosts),
            leave={name: each.pinned for name, each in views.items()},
            unseen=self._unseen,
            alpha=self.rule.alpha,
            seed=self.rule.seed,
            entries_max=self.rule.entries_max,
        )

    def _until_next(self, view: FlowView, prices: RemotePrices | None) -> RemotePrices:
        """The prices, for a table that does until the next one may come: a period, at least."""
        prices = prices or self.rule.prices
        period_s = self.rule.period_batches * view.period_s
        return replace(prices, horizon_s=max(prices.horizon_s, period_s))

    def _drop_promise(self, why: str) -> None:
        """Nothing will come of the last promise; the log has it when a period is over."""
        if self._promise is not None:
            plan, decision, _ = self._promise
            self._told_later.append((", ".join(plan.assignments), decision, why))
        self._promise = None

    def _judge(self, batch: int, plan: LocalityPlan, hosts: tuple[str, ...]) -> list[Event]:
        """What came of the last promise: `plan.now` is what the table of now does."""
        if self._promise is None:
            return []
        promise, decision, made_for = self._promise
        self._promise = None
        if made_for != hosts:
            # Slots went to hosts that nobody counted on, which says nothing of promises to come.
            why = "its operators run on other hosts by now"
            return [unjudged(batch, ", ".join(promise.assignments), decision, why)]
        self._record.add(promise.promised.locality, plan.now.locality)
        is_kept = plan.now.locality >= promise.expected - _TOLERANCE
        return [
            Judged(
                batch=batch,
                operator=", ".join(promise.assignments),
                decision=decision,
                verdict="effective" if is_kept else "ineffective",
                metric="locality",
                before=promise.now.locality,
                expected=promise.expected,
                observed=plan.now.locality,
            )
        ]


def _located(batch: int, plan: LocalityPlan, decision: int, held: str) -> Located:
    return Located(
        batch=batch,
        operators=tuple(plan.assignments),
        decision=decision,
        reason=f"{plan.gain.reason} ({plan.how})",
        locality=plan.now.locality,
        promised=plan.promised.locality,
        expected=plan.expected,
        imbalance=plan.now.imbalance,
        imbalance_expected=plan.promised.imbalance,
        known=plan.promised.known,
        entries=sum(len(each.keys) for each in plan.assignments.values()),
        moved_keys=plan.moved_keys,
        moved_bytes=plan.moved_bytes,
        locality_s=plan.gain.locality_s,
        balance_s=plan.gain.balance_s,
        moving_s=plan.gain.moving_s,
        held=held,
    )


def _rates(views: Mapping[str, OperatorView], edges: Sequence[Edge]) -> dict[Edge, float]:
    """The rows per second from an operator to the next: what the one gives out, and no more than
    the other takes in. What is dropped between them crosses no network; it is taken to be an even
    part of all of them.
    """
    given = {
        (here, there): views[here].arrival_rate * views[here].selectivity for here, there in edges
    }
    rates = {}
    for edge, rate in given.items():
        into = sum(each for other, each in given.items() if other[1] == edge[1])
        taken = min(1.0, views[edge[1]].arrival_rate / into) if into > 0 else 0.0
        rates[edge] = max(rate * taken, 1e-9)
    return rates


def _hosts(views: Mapping[str, OperatorView]) -> tuple[str, ...]:
    """The hosts of all channels, in the order of their names."""
    return tuple(sorted({name for view in views.values() for name in view.table.hosts if name}))

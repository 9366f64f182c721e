"""The loop: measure, judge, decide, plan. Samples in, tables and events out.

`Controller.step` is called once per batch with what the batch showed, and reads as its verbs. It
has no clock, no I/O and no randomness, so that it runs the same way live, in the simulator and over
a recorded log. What a restart needs of it is `memory()`, to be kept where the tables are.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from braided.control.events import Decided, Event, Measured, pack_loads, unjudged
from braided.control.hot_keys import KeyToSplit, PinChange, balance_bound, load_if_split
from braided.control.locality.gain import RemotePrices
from braided.control.locality.keys import Edge
from braided.control.locality.loop import LocalityLoop
from braided.control.locality.planner import PlannedSlots
from braided.control.locality.statistics import PairCounts
from braided.control.measure.estimator import Estimator, SlotTotals, at_full_speed
from braided.control.measure.measurer import Measurer
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import FlowSample, FlowView, OperatorSample
from braided.control.operator_loop import OperatorLoop
from braided.control.outlook import Outlook
from braided.control.policy import Memory, Wish
from braided.control.routing.balance import imbalance
from braided.control.routing.executors import Layout
from braided.control.routing.table import RoutingTable
from braided.control.settings import Settings
from braided.control.worth import Prices

__all__ = ["Controller", "Cycle"]

_Change = TypeVar("_Change")


@dataclass(frozen=True, eq=False)
class Cycle:
    """What one step came to: tables that changed, keys to pin, unpin and split, and lines for the
    log.
    """

    view: FlowView
    tables: Mapping[str, RoutingTable]
    pin: Mapping[str, tuple[bytes, ...]]
    unpin: Mapping[str, tuple[bytes, ...]]
    events: tuple[Event, ...]
    split: Mapping[str, tuple[KeyToSplit, ...]] = field(default_factory=dict)
    whole: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """Split keys that are to be whole again."""
    keys: Mapping[str, PlannedSlots] = field(default_factory=dict)
    """For the sake of locality: all keys that are not to be where their hash leads, hot ones apart,
    and their slots. Those of all operators are to take effect in one batch, and in one that no
    other change of their tables is in.
    """


class Controller:
    """Keeps one flow balanced and right-sized."""

    def __init__(
        self, settings: Settings | None = None, memory: Mapping[str, Any] | None = None
    ) -> None:
        memory = memory or {}
        self.settings = settings or Settings()
        self._estimator = Estimator(self.settings.window_batches)
        self._measurer = Measurer(self.settings.window_batches, self.settings.limits.cpus)
        self._now_s = float(memory.get("now_s", 0.0))
        self._limits = self.settings.limits
        self._policy: Memory = dict(memory.get("policy", {}))
        self._decisions = int(memory.get("decisions", 0))
        self._batches_with_rows = 0
        self._asked: int | None = None  # the batch after which the scale policy was asked last
        self._outlook: Outlook | None = None
        self._locality: LocalityLoop | None = None
        if self.settings.locality is not None:
            self._locality = LocalityLoop(
                self.settings.locality, self._number, memory.get("locality")
            )
        self._operators = {
            name: OperatorLoop(self.settings, self._number, remembered)
            for name, remembered in memory.get("operators", {}).items()
        }

    def step(
        self,
        sample: FlowSample,
        slot_loads: Mapping[str, SlotLoads] | None = None,
        prices: Prices | None = None,
        cores: int | None = None,
        pairs: Mapping[Edge, Sequence[PairCounts]] | None = None,
    ) -> Cycle:
        """One cycle after one batch.

        `slot_loads` is what a running query's estimator expects after the batch; without it, the
        controller estimates by its samples. `prices` are what moving costs by now, where that is
        measured, and `cores` is how many channels can run at once by now, where hosts come and go;
        without them, what the settings say holds. `pairs` are the keys that rows of the batch had
        in operators that follow each other.
        """
        if cores is not None:
            self._limits = replace(self._limits, cores=cores)
        view = self.measure(sample, slot_loads)
        if self._locality is not None:
            self._locality.collect(pairs or {})
            anchored = {
                name: self._locality.anchored(each) for name, each in view.operators.items()
            }
            view = replace(view, operators=anchored)
        self._now_s += sample.collected_s
        events = [*self._summaries(sample, view), *self.judge(view)]
        self._batches_with_rows += any(operator.rows.any() for operator in sample.operators)
        if self._batches_with_rows <= self.settings.settle_batches:
            for name, operator in view.operators.items():
                events += self._operators[name].settling(view.batch, operator)
            return Cycle(view, {}, {}, {}, tuple(events))
        cycle = self.decide(view, prices)
        useful = {
            name: self._operators[name].useful(
                view, operator, self._limits.of(name, operator.channels)
            )
            for name, operator in view.operators.items()
        }
        self._outlook = Outlook(
            view,
            view.collected_s,
            self.settings.scale,
            self._limits,
            self._policy,
            {name: bound.channels for name, bound in useful.items() if bound is not None},
            frozenset(
                name
                for name in view.operators
                if self._operators[name].cooling(view.batch, self._limits, self._now_s)
            ),
            self._now_s,
            {
                name: since_s
                for name in view.operators
                if (since_s := self._operators[name].more_wanted_since_s) is not None
            },
            frozenset(
                name
                for name, bound in useful.items()
                if bound is not None and bound.factor == "overhead"
            ),
        )
        return replace(cycle, events=(*events, *cycle.events))

    def measure(
        self, sample: FlowSample, slot_loads: Mapping[str, SlotLoads] | None = None
    ) -> FlowView:
        """The view of the flow after one more batch."""
        if slot_loads is None:
            slot_loads = self._estimator.add(
                {each.name: _full_speed_totals(each) for each in sample.operators}
            )
        layouts = {}
        for operator in sample.operators:
            loop = self._operators.setdefault(
                operator.name, OperatorLoop(self.settings, self._number)
            )
            layout = loop.observe(operator.table)
            if layout is not None:
                layouts[operator.name] = layout
        view = self._measurer.view(sample, slot_loads, layouts)
        if self.settings.hot_keys.may_split:
            return view
        # Then a key is a bound on useful channels again, too.
        whole = {name: replace(each, can_split=False) for name, each in view.operators.items()}
        return replace(view, operators=whole)

    def judge(self, view: FlowView) -> list[Event]:
        """What has come of the decisions before."""
        return [
            event
            for name, operator in view.operators.items()
            if not operator.pauses
            for event in self._operators[name].judge(view.batch, operator, view.interval_s)
        ]

    def decide(self, view: FlowView, prices: Prices | None = None) -> Cycle:
        """Wishes of the scale policy, tables of the balance policy, plans that pay."""
        wishes = {} if _pauses(view) else self._wishes(view)
        tables: dict[str, RoutingTable] = {}
        repin: dict[str, PinChange] = {}
        events: list[Event] = []
        for name, operator in view.operators.items():
            if operator.pauses:
                continue
            loop, wish = self._operators[name], wishes.get(name)
            overhead = view.overhead_s / view.period_s if view.period_s > 0 else 0.0
            if not loop.is_settled(operator):
                events += loop.limited(view.batch, operator, wish, self._limits, overhead)
                continue
            repin[name], repinned = loop.pins(view.batch, operator, prices or self.settings.prices)
            for split in repin[name].split:
                # Slots are dealt out as they will be then.
                operator = replace(operator, load=load_if_split(operator, split))
            table, planned = loop.plan(
                view, operator, wish, self._limits, prices or self.settings.prices, self._now_s
            )
            events += planned
            events += repinned
            if table is None or table.channels == operator.channels:
                events += loop.limited(
                    view.batch, operator, wish, self._limits, overhead, moves=table is not None
                )
            if table is not None:
                tables[name] = table
        return Cycle(
            view,
            tables,
            {n: tuple(key.key for key in change.pin) for n, change in repin.items() if change.pin},
            {name: change.unpin for name, change in repin.items() if change.unpin},
            tuple(events),
            {name: change.split for name, change in repin.items() if change.split},
            {name: change.whole for name, change in repin.items() if change.whole},
        )

    def locality(self) -> dict[str, Any] | None:
        """What is known of locality, for the progress; None where nobody asks for it."""
        return None if self._locality is None else self._locality.shown()

    def keys_due(self) -> Mapping[str, set[bytes]]:
        """The keys whose slots by hash `locate` has to know, by operator; none where it is not time
        to look at locality. They are looked up elsewhere, because hashes are Spark's.
        """
        return {} if self._locality is None else self._locality.due()

    def keys_superseded(self) -> None:
        """What is in effect is not what was asked for keys: what was promised of it is moot."""
        if self._locality is not None:
            self._locality.superseded()

    def keys_unknown(self) -> None:
        """The slots of the keys that are due can't be had: a period begins anew, so that nobody is
        asked for the same again, which may fail for what was counted.
        """
        if self._locality is not None:
            self._locality.reset()

    def keys_withdrawn(self) -> None:
        """What `locate` wanted for keys could not be asked for."""
        if self._locality is not None:
            self._locality.withdrawn()

    def locate(
        self,
        cycle: Cycle,
        hash_slots: Mapping[str, Mapping[bytes, int]],
        entries: Mapping[str, Mapping[bytes, int]],
        prices: RemotePrices | None = None,
    ) -> Cycle:
        """The cycle with tables of keys that bring together what occurs together, if they pay.

        `entries` are the keys that have a slot for that reason now. Where keys change slots, all
        other changes of the tables wait: they were made for keys as they are.
        """
        if self._locality is None:
            return cycle
        wanted, events = self._locality.decide(cycle.view, hash_slots, entries, prices)
        for name in wanted:
            why = "keys change slots for the sake of locality, and it was made for keys as they are"
            events += self._operators[name].withdraw(cycle.view.batch, name, why)
        cycle = replace(cycle, events=(*cycle.events, *events))
        if not wanted:
            return cycle
        kept = {name: table for name, table in cycle.tables.items() if name not in wanted}
        return replace(
            cycle,
            tables=kept,
            pin=_without(cycle.pin, wanted),
            unpin=_without(cycle.unpin, wanted),
            split=_without(cycle.split, wanted),
            whole=_without(cycle.whole, wanted),
            keys=wanted,
        )

    def outlook(self) -> Outlook | None:
        """What the next batch can be sized by; None as long as nothing is decided."""
        return self._outlook

    def foreseen(
        self, batch: int, view: FlowView, name: str, wish: Wish, table: RoutingTable
    ) -> tuple[Decided, list[Event]]:
        """The lines for a batch that was given more channels, and so that table, by the outlook on
        it, which went by that view; to be asked for before the step with that batch, which judges
        what came of it where that can be told.
        """
        operator, loop = view.operators[name], self._operators[name]
        lines = loop.unforeseen(batch, name)
        # The decision after the batch before would have been in effect as soon.
        loop.scaled(batch - 1, self._now_s)
        decision = Decided(
            batch=batch,
            operator=name,
            decision=self._number(),
            kind="scale-up",
            reason=wish.reason,
            channels_before=operator.channels,
            channels_after=wish.channels,
        )
        expectation = loop.foreseen(decision.decision, operator, table, view.period_s)
        if expectation is None:
            why = (
                "it was for the input that this batch had, and nobody knows it with fewer channels"
            )
            return decision, [*lines, unjudged(batch, name, decision.decision, why)]
        promised = msgspec.structs.replace(
            decision,
            metric=expectation.metric,
            before=expectation.before,
            expected=expectation.expected,
        )
        return promised, lines

    def bound(self, operator: str) -> str:
        """Why more channels would not help an operator whose policy asks for more."""
        return self._operators[operator].bound

    def layout(self, operator: str) -> Layout | None:
        """An operator's executors, as of the last decision; None where there is only one."""
        return self._operators[operator].layout

    def memory(self) -> dict[str, Any]:
        """What a restart needs, in JSON's own types: to be kept in the manifest."""
        return {
            "policy": self._policy,
            "decisions": self._decisions,
            "now_s": self._now_s,
            "operators": {name: loop.memory() for name, loop in self._operators.items()},
            **({} if self._locality is None else {"locality": self._locality.memory()}),
        }

    def _wishes(self, view: FlowView) -> Mapping[str, Wish]:
        every, asked = self.settings.scale_every_batches, self._asked
        if asked is not None and view.batch // every == asked // every:
            return {}
        self._asked = view.batch
        limits = self._limits
        wishes, self._policy = self.settings.scale.scale(view, limits, self._policy)
        wishes = {name: wish for name, wish in wishes.items() if name not in limits.excluded}
        if limits.total_max is None:
            return wishes
        # Who gets fewer channels gets them later: until then they are not free for others.
        room = limits.room(sum(o.channels for o in view.operators.values()))
        granted = {}
        for name, wish in wishes.items():
            now = view.operators[name].channels
            more = min(max(0, wish.channels - now), room)
            room -= more
            granted[name] = replace(wish, channels=min(wish.channels, now + more))
        return granted

    def _summaries(self, sample: FlowSample, view: FlowView) -> list[Event]:
        rows = {operator.name: float(operator.rows.sum()) for operator in sample.operators}
        return [
            Measured(
                batch=view.batch,
                operator=name,
                upstream=tuple(view.upstream.get(name, ())),
                interval_s=view.interval_s,
                collected_s=sample.collected_s,
                duration_s=sample.duration_s,
                overhead_s=view.overhead_s,
                latency_s=view.latency_s,
                epoch=operator.table.epoch,
                channels=operator.channels,
                rows=rows[name],
                arrival_rate=operator.arrival_rate,
                throughput=operator.throughput,
                true_rate=operator.true_rate,
                selectivity=operator.selectivity,
                backlog_rows=operator.backlog_rows,
                congestion=operator.congestion,
                imbalance=imbalance(operator.table, operator.load, operator.speeds),
                bound=balance_bound(operator.load, operator.channels, operator.heavy),
                state_bytes=float(operator.state_bytes.sum()),
                slots=pack_loads(operator.load),
                timer_load=operator.timer_load,
            )
            for name, operator in view.operators.items()
        ]

    def _number(self) -> int:
        self._decisions += 1
        return self._decisions


def _pauses(view: FlowView) -> bool:
    """Whether a batch says nothing new of anybody."""
    return all(operator.pauses for operator in view.operators.values())


def _without(changes: Mapping[str, _Change], names: Container[str]) -> dict[str, _Change]:
    return {name: change for name, change in changes.items() if name not in names}


def _full_speed_totals(sample: OperatorSample) -> SlotTotals:
    speeds = None if sample.speeds is None else sample.speeds[sample.table.slots]
    return at_full_speed(SlotTotals(sample.rows, sample.busy_s), speeds)

"""The loop: measure, judge, decide, plan. Samples in, tables and events out.

`Controller.step` is called once per batch with what the batch showed, and reads as its verbs. It
has no clock, no I/O and no randomness, so that it runs the same way live, in the simulator and over
a recorded log. Three things are kept apart, per operator:

    the plan       a table, with what it costs and brings, dropped if it does not pay
    requested      the last table that was handed out
    observed       the table that the last batch ran with

As long as the requested table has not been observed, nothing new is decided for that operator.
When somebody else's table is observed, a user's `rescale` say, what was expected of ours is moot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from braided.control.balance import imbalance
from braided.control.balancers import Elasticutor
from braided.control.events import Decided, Event, Judged, Measured, Planned, packed
from braided.control.executors import Layout, divided, reshaped, resized
from braided.control.hotkeys import HotKeyRule, balance_bound, pin_change
from braided.control.judging import (
    Expectation,
    Held,
    expectation,
    held_again,
    is_held,
    verdict,
)
from braided.control.measurement import FlowSample, FlowView, OperatorView
from braided.control.measuring import Measuring
from braided.control.policy import BalancePolicy, Limits, Memory, ScalePolicy, Wish
from braided.control.rates import Ds2
from braided.control.table import RoutingTable
from braided.control.window import LENGTH_BATCHES
from braided.control.worth import Prices, weigh

__all__ = ["Controller", "Cycle", "Settings"]

_REDIVIDE = 1.1
"""Channels change executors when the busiest executor's load per channel falls by this factor."""

_SAY_AGAIN = 20
"""Batches between two events about plans that do not pay: there may be one in every batch."""


@dataclass(frozen=True)
class Settings:
    """What a controller runs with. The defaults are what a query has that sets no option."""

    scale: ScalePolicy = field(default_factory=Ds2)
    balance: BalancePolicy = field(default_factory=lambda: Elasticutor(theta=1.05))
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    hot_keys: HotKeyRule = field(default_factory=HotKeyRule)
    window_batches: int = LENGTH_BATCHES
    scale_every_batches: int = 1
    executors: int = 1
    host_channels: int = 8  # cores of a host: what an executor should not outgrow
    reshape_every_batches: int = 600


@dataclass(frozen=True, eq=False)
class Cycle:
    """What one step came to: tables that changed, keys to pin and unpin, and lines for the log."""

    view: FlowView
    tables: Mapping[str, RoutingTable]
    pin: Mapping[str, tuple[bytes, ...]]
    unpin: Mapping[str, tuple[bytes, ...]]
    events: tuple[Event, ...]


@dataclass
class _Operator:
    """What the controller keeps of one operator from step to step."""

    requested: RoutingTable | None = None
    promise: Expectation | None = None
    dropped_at: int | None = None  # when a plan that did not pay was last spoken of
    scaled_at: int | None = None
    lower: list[int] = field(default_factory=list)  # the last wishes, if all were for fewer
    held: dict[str, Held] = field(default_factory=dict)
    cold: dict[bytes, int] = field(default_factory=dict)
    layout: Layout | None = None


class Controller:
    """Keeps one flow balanced and right-sized."""

    def __init__(self, settings: Settings | None = None, memory: Mapping[str, Any] | None = None):
        self.settings = settings or Settings()
        self._measuring = Measuring(self.settings.window_batches)
        self._operators: dict[str, _Operator] = {}
        self._policy: Memory = {}
        self._decisions = 0
        if memory:
            self._restore(memory)

    def step(self, sample: FlowSample, hosts: Mapping[str, Sequence[int]] | None = None) -> Cycle:
        """One cycle after one batch; `hosts` says where each operator's channels run."""
        view = self._measure(sample)
        events: list[Event] = self._summaries(sample, view)
        events += self._judge(view)
        wishes = self._decide(view)
        tables: dict[str, RoutingTable] = {}
        pin: dict[str, tuple[bytes, ...]] = {}
        unpin: dict[str, tuple[bytes, ...]] = {}
        for name, operator in view.operators.items():
            if not self._is_settled(name, operator):
                continue
            table = self._plan(view, operator, wishes.get(name), hosts, events)
            if table is not None:
                tables[name] = table
            pin[name], unpin[name] = self._pins(view.batch, operator, events)
        return Cycle(
            view,
            tables,
            {name: keys for name, keys in pin.items() if keys},
            {name: keys for name, keys in unpin.items() if keys},
            tuple(events),
        )

    def memory(self) -> dict[str, Any]:
        """What a restart needs, in JSON's own types: to be kept in the manifest."""
        return {
            "policy": self._policy,
            "decisions": self._decisions,
            "operators": {
                name: {
                    "scaled_at": own.scaled_at,
                    "held": msgspec.to_builtins(own.held),
                    "layout": None
                    if own.layout is None
                    else [list(own.layout.bounds), [list(c) for c in own.layout.channels]],
                }
                for name, own in self._operators.items()
            },
        }

    # -- measure ---------------------------------------------------------------------------

    def _measure(self, sample: FlowSample) -> FlowView:
        layouts = {}
        for operator in sample.operators:
            own = self._operators.setdefault(operator.name, _Operator())
            own.layout = self._fitting(own.layout, operator.table)
            if own.layout is not None:
                layouts[operator.name] = own.layout
        return self._measuring.view(sample, layouts)

    def _fitting(self, layout: Layout | None, table: RoutingTable) -> Layout | None:
        """The operator's executors, made anew when somebody else changed the channels."""
        wanted = min(self.settings.executors, table.channels, table.slots.size)
        if wanted < 2:
            return None
        if layout is not None and layout.total == table.channels:
            return layout
        return Layout.even(table.slots.size, wanted, table.channels)

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
                imbalance=imbalance(operator.table, operator.load),
                bound=balance_bound(operator.load, operator.channels, operator.heavy),
                state_bytes=float(operator.state_bytes.sum()),
                slots=packed(operator.load),
            )
            for name, operator in view.operators.items()
        ]

    # -- judge -----------------------------------------------------------------------------

    def _judge(self, view: FlowView) -> list[Event]:
        events: list[Event] = []
        for name, operator in view.operators.items():
            own = self._operators[name]
            promise, requested = own.promise, own.requested
            if requested is None or operator.table.epoch < requested.epoch:
                continue
            own.requested = own.promise = None
            if promise is None:
                continue
            held_until = None
            if operator.table != requested:
                word, observed = "superseded", None
            else:
                judged = verdict(promise, operator)
                word, observed = judged.word, judged.observed
                if word == "ineffective":
                    held = held_again(own.held.get(promise.kind), operator, view.batch)
                    own.held[promise.kind], held_until = held, held.until
                elif word == "effective":
                    own.held.pop(promise.kind, None)
            events.append(
                Judged(
                    batch=view.batch,
                    operator=name,
                    decision=promise.decision,
                    verdict=word,
                    metric=promise.metric,
                    before=promise.before,
                    expected=promise.expected,
                    observed=observed,
                    held_until=held_until,
                )
            )
        return events

    def _is_settled(self, name: str, operator: OperatorView) -> bool:
        requested = self._operators[name].requested
        return requested is None or operator.table.epoch >= requested.epoch

    # -- decide ----------------------------------------------------------------------------

    def _decide(self, view: FlowView) -> Mapping[str, Wish]:
        if view.batch % self.settings.scale_every_batches:
            return {}
        wishes, self._policy = self.settings.scale.scale(view, self.settings.limits, self._policy)
        return wishes

    def _granted(self, batch: int, operator: OperatorView, wish: Wish) -> tuple[int, str]:
        """How many channels the wish gets, and why not what it asked for."""
        limits, own = self.settings.limits, self._operators[operator.name]
        now = operator.channels
        channels = limits.clamp(wish.channels, operator.table.slots.size)
        fewer = channels <= now * (1 - limits.hysteresis) and channels < now
        own.lower = [*own.lower, channels][-limits.calm_batches :] if fewer else []
        if channels == now:
            return now, ""
        if own.scaled_at is not None and batch - own.scaled_at <= limits.cooldown_batches:
            return now, f"cooling down since batch {own.scaled_at}"
        if channels < now:
            if not fewer:
                return now, f"less than {limits.hysteresis:.0%} fewer"
            if len(own.lower) < limits.calm_batches:
                return now, f"calm for {len(own.lower)} of {limits.calm_batches} batches"
            channels = max(own.lower)
        kind = "scale-up" if channels > now else "scale-down"
        if is_held(own.held.get(kind), operator, batch):
            return now, f"held back until batch {own.held[kind].until}: it did not help before"
        return channels, ""

    # -- plan ------------------------------------------------------------------------------

    def _plan(
        self,
        view: FlowView,
        operator: OperatorView,
        wish: Wish | None,
        hosts: Mapping[str, Sequence[int]] | None,
        events: list[Event],
    ) -> RoutingTable | None:
        own, now, batch = self._operators[operator.name], operator.channels, view.batch
        channels = now
        decided: list[Decided] = []
        if wish is None or wish.channels >= now:
            own.lower = []
        if wish is not None and wish.channels != now:
            channels, held = self._granted(batch, operator, wish)
            kind = "scale-up" if wish.channels > now else "scale-down"
            decided.append(self._decided(batch, operator, kind, wish.reason, channels, held))
        table, layout = self._assigned(batch, operator, channels, decided)
        if table is operator.table:
            own.layout = layout
            events += decided
            return None
        kind = decided[0].kind if channels != now else "balance"
        if channels == now:
            reason = (
                f"the busiest channel has {imbalance(operator.table, operator.load):.2f} times "
                f"the average, and would have {imbalance(table, operator.load):.2f} times"
            )
            is_waiting = is_held(own.held.get(kind), operator, batch)
            held = f"held back until batch {own.held[kind].until}" if is_waiting else ""
            decided.append(self._decided(batch, operator, kind, reason, channels, held))
            if held:
                events += decided
                return None
        last = decided[-1] if channels == now else decided[0]
        promise = expectation(last.decision, kind, operator, table, view.interval_s)
        if promise is not None:
            informed = msgspec.structs.replace(
                last, metric=promise.metric, before=promise.before, expected=promise.expected
            )
            decided[decided.index(last)] = informed
        where = hosts.get(operator.name) if hosts is not None else None
        worth = weigh(operator, table, self.settings.prices, where)
        # A wish for channels has been weighed by its policy; only moves have to pay here.
        dropped = channels == now and not worth.pays
        if dropped and own.dropped_at is not None and batch < own.dropped_at + _SAY_AGAIN:
            return None
        own.dropped_at = batch if dropped else None
        events += decided
        events.append(
            Planned(
                batch=batch,
                operator=operator.name,
                decisions=tuple(each.decision for each in decided if not each.held),
                epoch=table.epoch,
                channels=table.channels,
                moved_slots=worth.moved_slots,
                moved_bytes=worth.moved_bytes,
                gain_s=worth.gain_s,
                cost_s=worth.cost_s,
                dropped=dropped,
            )
        )
        if dropped:
            return None
        own.requested, own.promise, own.layout = table, promise, layout
        if channels != now:
            own.scaled_at = batch
        return table

    def _assigned(
        self, batch: int, operator: OperatorView, channels: int, decided: list[Decided]
    ) -> tuple[RoutingTable, Layout | None]:
        """The balance policy's table; where there are executors, they get their channels first."""
        policy, layout = self.settings.balance, operator.layout
        if layout is None or channels < len(layout.channels):
            return policy.balance(replace(operator, layout=None), channels), None
        if batch and batch % self.settings.reshape_every_batches == 0:
            layout, reasons = reshaped(layout, operator.load, self.settings.host_channels)
            for reason in reasons:
                decided.append(self._decided(batch, operator, "reshape", reason, channels, ""))
        counts = [len(own) for own in layout.channels]
        loads = layout.loads(operator.load)
        wanted = divided(loads, channels)
        is_better = (loads / counts).max() > _REDIVIDE * (loads / wanted).max()
        if channels != layout.total or is_better:
            counts = wanted
        layout, renamed = resized(layout, counts)
        slots = operator.table.slots.copy()
        for old, new in renamed.items():
            slots[operator.table.slots == old] = new
        named = RoutingTable(operator.table.epoch, max(operator.channels, channels), slots)
        after = policy.balance(replace(operator, table=named, layout=layout), channels)
        return operator.table.next(after.slots, channels), layout

    def _pins(
        self, batch: int, operator: OperatorView, events: list[Event]
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        own = self._operators[operator.name]
        change = pin_change(operator, operator.channels, own.cold, self.settings.hot_keys)
        own.cold = dict(change.cold)
        fair = operator.total_load / operator.channels
        for key in change.pin:
            reason = f"one key has {key.load / fair:.2f} of a channel's fair load"
            decision = self._decided(batch, operator, "pin", reason, operator.channels, "")
            events.append(msgspec.structs.replace(decision, key=key.key.hex()))
        for cooled in change.unpin:
            reason = f"cool for {self.settings.hot_keys.cool_batches} batches"
            decision = self._decided(batch, operator, "unpin", reason, operator.channels, "")
            events.append(msgspec.structs.replace(decision, key=cooled.hex()))
        return tuple(key.key for key in change.pin), change.unpin

    def _decided(
        self, batch: int, operator: OperatorView, kind: str, reason: str, channels: int, held: str
    ) -> Decided:
        self._decisions += 1
        return Decided(
            batch=batch,
            operator=operator.name,
            decision=self._decisions,
            kind=kind,
            reason=reason,
            channels_before=operator.channels,
            channels_after=channels,
            held=held,
        )

    def _restore(self, memory: Mapping[str, Any]) -> None:
        self._policy = dict(memory.get("policy", {}))
        self._decisions = int(memory.get("decisions", 0))
        for name, kept in memory.get("operators", {}).items():
            layout = kept.get("layout")
            self._operators[name] = _Operator(
                scaled_at=kept.get("scaled_at"),
                held=msgspec.convert(kept.get("held", {}), dict[str, Held]),
                layout=layout and Layout(tuple(layout[0]), tuple(tuple(own) for own in layout[1])),
            )

"""One operator's part of the loop: its pending request, what is expected of it, and its next table.

Three things are kept apart:

    the plan       a table, with what it costs and brings, dropped if it does not pay
    requested      the last table that was handed out
    observed       the table that the last batch ran with

As long as the requested table has not been observed, nothing new is decided. When somebody else's
table is observed, a user's `rescale` say, what was expected of ours is moot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from braided.control.events import Decided, Event, Judged, Limited, Planned, unjudged
from braided.control.hot_keys import PinChange, pin_change
from braided.control.judging import Expectation, Hold, expect, extend_hold, is_held, judge
from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import Limits, Wish
from braided.control.routing.balance import imbalance
from braided.control.routing.executors import Layout, divide_channels, reshape, resize
from braided.control.routing.table import RoutingTable
from braided.control.routing.within_hosts import rebalance_within_hosts
from braided.control.settings import Settings
from braided.control.useful import (
    HottestKey,
    Remote,
    Useful,
    held_up,
    of_cores,
    of_key,
    of_overhead,
    remote_bound,
    sized,
)
from braided.control.worth import Prices, weigh, weigh_pin, weigh_split

__all__ = ["OperatorLoop"]

_REDIVIDE = 1.1
"""Channels change executors when the busiest executor's load per channel falls by this factor."""
_SAY_AGAIN = 20
"""Batches between two events about plans that do not pay: there may be one in every batch."""
_CONGESTED = 0.2
"""From here on it is said why nothing is done about it."""
_HELD_UP_BATCHES = 4
"""How many in a row have to show that what comes after an operator holds it up."""
_OVERHEAD = 0.5
"""Of a batch that its rows have no part in: then more channels do not shorten it."""
_OF_KEY = "a key's place is judged with the balance that follows from it"
_NO_PROMISE = {
    "reshape": "executors are divided anew so that they fit, whatever that brings by itself",
    **dict.fromkeys(("pin", "unpin", "split", "whole"), _OF_KEY),
}
"""By kind, why a decision promises nothing that can be measured."""
_NO_ROWS = "it had no rows to go by when it was decided"
_NO_ROWS_CAME = "no rows came to it in the batch that it was made for"
_SUPERSEDED = "another table took effect before that of the decision"


class OperatorLoop:
    """Decides for one operator. `number` gives the next decision its number."""

    def __init__(
        self,
        settings: Settings,
        number: Callable[[], int],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        memory = memory or {}
        self.settings = settings
        self._number = number
        self._requested: RoutingTable | None = None
        self._expectation: Expectation | None = None
        self._foreseen: tuple[Expectation, RoutingTable] | None = None
        self._scaled_at: int | None = memory.get("scaled_at")
        self._scaled_at_s: float | None = memory.get("scaled_at_s")
        self._lower: list[tuple[float, int]] = []  # the last wishes, if all were for fewer channels
        self._wanted_since: tuple[str, float] = ("", 0.0)  # more or fewer, and since when
        self._planned_at: int | None = None
        self._hottest: HottestKey | None = None
        self._held_up_for = 0  # batches in a row that showed it
        remote = memory.get("remote")
        self._remote = None if remote is None else msgspec.convert(remote, Remote)
        self.bound = ""
        """Why more channels than there are would not help, if the policy asks for more."""
        self._holds = msgspec.convert(memory.get("held", {}), dict[str, Hold])
        self._cold: Mapping[bytes, int] = {}
        self._dropped_at: int | None = None  # when a plan that did not pay was last spoken of
        self._limit: tuple[str, str] | None = None  # by what a wish was limited: a word, a sentence
        self._said: dict[str, str] = {}  # by kind, the last reason to hold back that was told
        layout = memory.get("layout")
        self.layout: Layout | None = None
        self._executors_possible = 0  # as many as there could be when the layout was made
        if layout and memory.get("executors") == settings.executors:
            self.layout = Layout(tuple(layout[0]), tuple(map(tuple, layout[1])))
            self._executors_possible = int(memory.get("made_for", 0))

    def memory(self) -> dict[str, Any]:
        """What a restart needs, in JSON's own types."""
        layout = self.layout
        return {
            "scaled_at": self._scaled_at,
            "scaled_at_s": self._scaled_at_s,
            "remote": msgspec.to_builtins(self._remote),
            "held": msgspec.to_builtins(self._holds),
            "executors": self.settings.executors,
            "made_for": self._executors_possible,
            "layout": layout and [list(layout.bounds), [list(each) for each in layout.channels]],
        }

    def observe(self, table: RoutingTable) -> Layout | None:
        """The executors for a table; when somebody else changed the channels, they share those."""
        if self._requested is not None and table.epoch < self._requested.epoch:
            return self.layout  # that of the table on its way; nothing is decided until it is there
        wanted = min(self.settings.executors, table.channels, table.slots.size)
        if wanted < 2:
            self.layout = None
        elif (
            self.layout is None
            or len(self.layout.channels) > table.channels
            or wanted > self._executors_possible
        ):
            self.layout = Layout.even(table.slots.size, wanted, table.channels)
            self._executors_possible = wanted
        elif self.layout.total != table.channels:
            self.layout = self.layout.over(table.channels)
        return self.layout

    def withdraw(self, batch: int, operator: str, why: str) -> list[Event]:
        """What was handed out last was not passed on: nothing comes of it that could be judged."""
        expectation = self._expectation
        self._requested = self._expectation = None
        if expectation is None:
            return []
        return [unjudged(batch, operator, expectation.decision, why)]

    def is_settled(self, operator: OperatorView) -> bool:
        """Whether what was last requested has been observed, or overtaken."""
        return self._requested is None or operator.table.epoch >= self._requested.epoch

    def judge(self, batch: int, operator: OperatorView, interval_s: float = 1.0) -> list[Event]:
        """What has come of the last request, and of channels that a batch was given ahead. Batches
        are `interval_s` apart, or more.
        """
        events: list[Event] = []
        foreseen, self._foreseen = self._foreseen, None
        expectation, requested = self._expectation, self._requested
        if requested is not None and self.is_settled(operator):
            self._requested = self._expectation = None
            if expectation is not None:
                events.append(self._judged(batch, operator, expectation, requested, interval_s))
        if foreseen is not None:
            events.append(self._judged(batch, operator, *foreseen, interval_s))
        return events

    def _judged(
        self,
        batch: int,
        operator: OperatorView,
        expectation: Expectation,
        requested: RoutingTable,
        interval_s: float,
    ) -> Judged:
        word, observed, held_until, why = "superseded", None, None, _SUPERSEDED
        if _took_effect(operator.table, requested, expectation.metric):
            verdict = judge(expectation, operator)
            word, observed, why = verdict.word, verdict.observed, ""
            if word == "ineffective":
                kind = expectation.kind
                hold = extend_hold(self._holds.get(kind), operator, batch, kind, interval_s)
                self._holds[kind], held_until = hold, hold.until
                channels = expectation.table.channels
                # One key that holds up all others holds them up whatever comes after them.
                is_key = self._hottest is not None and self._hottest.share * channels > 1
                if kind == "scale-up" and expectation.metric == "throughput" and not is_key:
                    self._remote = remote_bound(operator, channels, expectation.before)
            elif word == "effective":
                self._holds.pop(expectation.kind, None)
                if expectation.kind == "scale-up":
                    self._remote = None
        return Judged(
            batch=batch,
            operator=operator.name,
            decision=expectation.decision,
            verdict=word,
            metric=expectation.metric,
            before=expectation.before,
            expected=expectation.expected,
            observed=observed,
            held_until=held_until,
            why=why,
        )

    def plan(
        self,
        flow: FlowView,
        operator: OperatorView,
        wish: Wish | None,
        limits: Limits,
        prices: Prices,
        now_s: float = 0.0,
    ) -> tuple[RoutingTable | None, Sequence[Event]]:
        """The table to ask for, if any, and the decisions that led to it; `now_s` is the time as
        far as batches tell it. In `flow`, slots may have other loads than they will have then.
        """
        batch, period_s = flow.batch, flow.period_s
        limits = limits.of(operator.name, operator.channels)
        self._hottest = HottestKey.seen(self._hottest, operator)
        self._forget_remote(flow, operator)
        self._learn(flow, operator, wish)
        useful = self.useful(flow, operator, limits)
        channels, decisions = self._grant(batch, operator, wish, limits, useful, now_s)
        table, layout, reshapes = self._assign(batch, operator, channels)
        decisions += reshapes
        scales = channels != operator.channels
        if not scales and operator.anchor is not None and layout is None:
            # Keys are where they are for a reason: between the channels of a host slots are free.
            table = _less_costly(operator, table, prices, period_s)
        if table is operator.table:
            self.layout = layout
            decisions, lines = self._told(decisions)
            return None, [*decisions, *lines]
        # Executors that were split or merged need their own slots, slots that others put on
        # another executor's channels come back, and limits are limits. All else has to pay: other
        # channels, slots that move, and channels that go from one executor to another.
        is_required = (
            (scales and self._must_scale(batch, operator, wish, limits))
            or bool(reshapes)
            or not getattr(self.settings.balance, "weighed", True)
            or (not scales and not _is_within(operator.layout, operator.table))
        )
        layout_as_is = layout if _is_within(layout, operator.table) else operator.layout
        if not scales:
            decision = self._decide_balance(batch, operator, table)
            if decision.held and not is_required:
                self.layout = layout_as_is
                return None, self._told([*decisions, *self._say_once(decision)])[0]
            decisions.append(msgspec.structs.replace(decision, held=""))
        wanted_s = now_s - self._wanted_since[1]
        worth = weigh(operator, table, prices, period_s, wanted_s)
        dropped = not is_required and not worth.pays
        if dropped:
            self.layout = layout_as_is
            why = f"it would cost {worth.cost_s:.3g} s and bring {worth.gain_s:.3g} s"
            if scales:
                self._limit = ("cost", why)
            elif self._limit is None:
                self._limit = ("cost", f"another balance does not pay: {why}")
            if self._dropped_at is not None and batch < self._dropped_at + _SAY_AGAIN:
                return None, self._told([each for each in decisions if each.held])[0]
            self._dropped_at = batch
        decisions, lines = self._told(decisions)
        place = 0 if scales else len(decisions) - 1
        number, kind = decisions[place].decision, decisions[place].kind
        expectation = expect(number, kind, operator, table, period_s)
        if expectation is not None:
            decisions[place] = msgspec.structs.replace(
                decisions[place],
                metric=expectation.metric,
                before=expectation.before,
                expected=expectation.expected,
            )
        elif not dropped:
            lines.append(unjudged(batch, operator.name, number, _NO_ROWS))
        planned = Planned(
            batch=batch,
            operator=operator.name,
            decisions=tuple(each.decision for each in decisions if not each.held),
            epoch=table.epoch,
            channels=table.channels,
            moved_slots=worth.moved_slots,
            moved_bytes=worth.moved_bytes,
            gain_s=worth.gain_s,
            cost_s=worth.cost_s,
            dropped=dropped,
            locality_s=worth.locality_s,
        )
        if dropped:
            return None, [*decisions, planned]
        self._requested, self._expectation, self.layout = table, expectation, layout
        self._dropped_at = None
        if scales:
            self.scaled(batch, now_s)
        return table, [*decisions, planned, *lines]

    def foreseen(
        self, decision: int, operator: OperatorView, table: RoutingTable, period_s: float
    ) -> Expectation | None:
        """What channels should bring that the next batch is given ahead, where input waited before:
        throughput. Where it did not, nobody knows that batch with fewer channels.
        """
        requested = self._requested
        if requested is not None and _took_effect(table, requested, "throughput"):
            return None  # the request for the same channels has its own promise
        expectation = expect(decision, "scale-up", operator, table, period_s)
        if expectation is None or expectation.metric != "throughput":
            return None
        # It is for the load of the very batch by which it is judged.
        expectation = replace(expectation, arrival_rate=None)
        self._foreseen = expectation, table
        return expectation

    def unforeseen(self, batch: int, operator: str) -> list[Event]:
        """What becomes of the last promise of `foreseen` where no batch has judged it."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is None:
            return []
        return [unjudged(batch, operator, foreseen[0].decision, _NO_ROWS_CAME)]

    def scaled(self, batch: int, now_s: float) -> None:
        """Other channels were decided on: delays and cool-downs count from here."""
        self._scaled_at, self._scaled_at_s = batch, now_s
        self._lower, self._wanted_since = [], ("", now_s)

    def cooling(self, batch: int, limits: Limits, now_s: float) -> str:
        """Why the number of channels stays, so soon after it changed; empty if that is over."""
        if self._scaled_at is not None and batch - self._scaled_at <= limits.cooldown_batches:
            return f"cooling down since batch {self._scaled_at}"
        since_s = None if self._scaled_at_s is None else now_s - self._scaled_at_s
        if limits.cooldown_s and since_s is not None and 0 <= since_s < limits.cooldown_s:
            return f"cooling down since batch {self._scaled_at}, for {limits.cooldown_s:g} s"
        return ""

    @property
    def more_wanted_since_s(self) -> float | None:
        """Since when more channels have been asked for; None if they are not."""
        kind, since_s = self._wanted_since
        return since_s if kind == "scale-up" else None

    def limited(
        self,
        batch: int,
        operator: OperatorView,
        wish: Wish | None,
        limits: Limits,
        overhead: float,
        moves: bool = False,
    ) -> list[Event]:
        """Why an operator that would have other channels, or whose input waits, keeps those that it
        has; `overhead` is the part of the batch that its rows have none in. After `plan`; where
        that `moves` slots, something is done about input that waits.
        """
        now = operator.channels
        limit = self._limit
        if not moves and not self.is_settled(operator) and self._requested is not None:
            limit = ("pending", f"{self._requested.channels} channels were asked for")
        elif not moves and limit is None and operator.congestion > _CONGESTED:
            slots, limits = operator.table.slots.size, limits.of(operator.name, now)
            limit = ("policy", "the policy does not ask for other channels")
            if overhead > _OVERHEAD:
                limit = ("overhead", f"{overhead:.0%} of the batch is not for rows")
            elif now >= limits.clamp(slots, slots):
                is_cores = bool(limits.bound(now, slots))
                limit = ("cores" if is_cores else "bounds", f"{now} channels are all that may be")
        return [] if limit is None else [_limited(batch, operator, limit, wish)]

    def settling(self, batch: int, operator: OperatorView) -> list[Event]:
        """Why nothing is done for input that waits in the batches before the first decision."""
        if operator.congestion <= _CONGESTED:
            return []
        first = self.settings.settle_batches
        why = f"nothing is decided on the first {first} batches with rows, which start workers"
        return [_limited(batch, operator, ("start", why))]

    def pins(
        self, batch: int, operator: OperatorView, prices: Prices
    ) -> tuple[PinChange, list[Event]]:
        """Keys to pin and to unpin, to split and to make whole."""
        rule = self.settings.hot_keys
        change = pin_change(operator, operator.channels, self._cold, rule)
        self._cold = change.cold
        events: list[Decided] = []
        for key in change.pin:
            share = key.load * operator.channels / operator.total_load
            reason = f"one key has {share:.2f} of a channel's fair load"
            decision = self._decide(batch, operator, "pin", reason, key=key.key.hex())
            events.append(_priced(decision, weigh_pin(operator, key, prices)))
        for cooled in change.unpin:
            reason = f"cool for {rule.cool_batches} batches"
            events.append(self._decide(batch, operator, "unpin", reason, key=cooled.hex()))
        for split in change.split:
            share = split.key.load * operator.channels / operator.total_load
            reason = (
                f"one key has {share:.2f} of a channel's fair load, and would have "
                f"{share / len(split.slots):.2f} in each of {len(split.slots)} shares"
            )
            decision = self._decide(batch, operator, "split", reason, key=split.key.key.hex())
            events.append(_priced(decision, weigh_split(operator, split, prices)))
        for cooled in change.whole:
            reason = f"fit for one channel for {rule.cool_batches} batches"
            if not rule.may_split:
                reason = "keys are not to be split"
            elif not operator.can_split:
                reason = "its state is too large to be merged in every batch"
            events.append(self._decide(batch, operator, "whole", reason, key=cooled.hex()))
        told, lines = self._told(events)
        return change, [*told, *lines]

    # -- how many channels -----------------------------------------------------------------

    def _grant(
        self,
        batch: int,
        operator: OperatorView,
        wish: Wish | None,
        limits: Limits,
        useful: Useful | None,
        now_s: float,
    ) -> tuple[int, list[Decided]]:
        """How many channels the operator gets, and the decision if it was asked for others."""
        now = operator.channels
        wished = now if wish is None else limits.clamp(wish.channels, operator.table.slots.size)
        self.bound, self._limit = "", None
        if wish is not None and wish.channels != wished == now:
            many = f"{wish.channels} channels are wished for"
            slots = operator.table.slots.size
            told = f"{many}{limits.bound(wished, slots)}, and {now} are all that may be"
            self._limit = ("cores" if limits.bound(wished, slots) else "bounds", told)
        if useful is not None and wished > max(useful.channels, limits.channels_min):
            wished, self.bound = max(useful.channels, limits.channels_min), useful.why
            self._limit = (useful.factor, useful.why)
        fewer = wished < now and wished <= now * (1 - limits.hysteresis)
        calm_from = len(self._lower) + 1 - limits.calm_batches
        self._lower = [
            each
            for n, each in enumerate([*self._lower, (now_s, wished)])
            if fewer and (n >= calm_from or each[0] >= now_s - limits.calm_s)
        ]
        if wish is None or wished == now:
            self._wanted_since = ("", now_s)
            if not self.bound:
                return now, []
            decision = self._decide(batch, operator, "scale-up", _reason(wish), held=self.bound)
            return now, self._say_once(decision)
        kind = "scale-up" if wished > now else "scale-down"
        if self._wanted_since[0] != kind:
            self._wanted_since = (kind, now_s)
        reason = _reason(wish) + limits.bound(wished, operator.table.slots.size)
        if self.bound:
            reason = f"{reason}; {self.bound}"
        factor, held = "", ""
        if wish.at_once or (wished < now and self._is_remote(batch, operator)):
            self._lower = []
        else:
            factor, held = self._why_held(batch, operator, wished, limits, now_s)
        channels = max((each for _, each in self._lower), default=wished)
        if not held and self.settings.scale_dry_run:
            factor, held = "dry run", f"a dry run: {channels} channels would be taken"
        if held:
            self._limit = (factor, held)
            decision = self._decide(batch, operator, kind, reason, held=held)
            return now, self._say_once(decision)
        self._said.pop(kind, None)
        self._limit = None
        return channels, [self._decide(batch, operator, kind, reason, channels)]

    def _why_held(
        self, batch: int, operator: OperatorView, wished: int, limits: Limits, now_s: float
    ) -> tuple[str, str]:
        """Why a wish is not granted now, in a word and in a sentence; empty if it is."""
        now = operator.channels
        kind = "scale-up" if wished > now else "scale-down"
        wanted_s = now_s - self._wanted_since[1]
        cooling = self.cooling(batch, limits, now_s)
        if cooling:
            return "cool-down", cooling
        if wished < now and wished > now * (1 - limits.hysteresis):
            return "calm", f"less than {limits.hysteresis:.0%} fewer"
        if wished < now and len(self._lower) < limits.calm_batches:
            return "calm", f"not yet calm for {limits.calm_batches} batches"
        if wished < now and wanted_s < limits.calm_s:
            return "calm", f"not yet calm for {limits.calm_s:g} s"
        if wished > now and wanted_s < limits.up_delay_s:
            return "delay", f"not yet wanted for {limits.up_delay_s:g} s"
        # Channels that what comes after them can make use of are not meant.
        is_meant = wished < now or self._remote is None
        if is_meant and is_held(self._holds.get(kind), operator, batch):
            until = self._holds[kind].until
            return "no help", f"did not help before: held back until batch {until}"
        return "", ""

    def useful(self, flow: FlowView, operator: OperatorView, limits: Limits) -> Useful | None:
        """As many channels as help, by what is known of keys, cores and what comes after."""
        bounds: list[Useful | None] = []
        if self._remote is not None:
            is_over = not self._is_remote(flow.batch, operator)
            bounds.append(self._remote.useful(is_over, sized(flow, operator.name)))
        bounds += [
            of_key(operator, self._hottest, self.settings.key_names, self.settings.hot_keys),
            of_cores(operator, limits.cpus),
            of_overhead(flow, operator.name),
        ]
        known = [bound for bound in bounds if bound is not None]
        return min(known, key=lambda bound: bound.channels, default=None)

    def _is_remote(self, batch: int, operator: OperatorView) -> bool:
        """Whether the last step up is known not to have helped, and is still held against it."""
        hold = self._holds.get("scale-up")
        if self._remote is None or hold is None or batch > hold.until:
            return False
        return not self._remote.is_over(operator)

    def _learn(self, flow: FlowView, operator: OperatorView, wish: Wish | None) -> None:
        """Takes what several batches show for what a step up in vain would teach."""
        if operator.pauses:
            return  # nothing new
        remote = held_up(flow, operator)
        if remote is None or wish is None or self._is_remote(flow.batch, operator):
            self._held_up_for = 0
            return
        self._held_up_for += 1
        # Where batches are as long as several, the next one tells enough, and takes longer.
        is_long = flow.overhead_s > _HELD_UP_BATCHES * flow.interval_s
        if self._held_up_for >= (2 if is_long else _HELD_UP_BATCHES):
            held = self._holds.get("scale-up")
            self._holds["scale-up"] = extend_hold(
                held, operator, flow.batch, "scale-up", flow.interval_s
            )
            self._remote, self._held_up_for = remote, 0

    def _forget_remote(self, flow: FlowView, operator: OperatorView) -> None:
        """Lets go of what a step up in vain has taught, once the channels are there that a look
        takes and nobody found them to be in vain: else they would be the most that there ever are.
        """
        remote = self._remote
        if remote is None or self._is_remote(flow.batch, operator):
            return
        if operator.channels >= remote.useful(True, sized(flow, operator.name)).channels:
            self._remote = None

    def _must_scale(
        self, batch: int, operator: OperatorView, wish: Wish | None, limits: Limits
    ) -> bool:
        """Whether channels change whatever that costs."""
        allowed = limits.clamp(operator.channels, operator.table.slots.size)
        return (
            (wish is not None and wish.at_once)
            or allowed != operator.channels
            or operator.total_load <= 0
            or self._is_remote(batch, operator)
        )

    def _decide_balance(self, batch: int, operator: OperatorView, table: RoutingTable) -> Decided:
        speeds = operator.speeds
        reason = (
            f"the busiest channel has {imbalance(operator.table, operator.load, speeds):.2f} times "
            f"the average, and would have {imbalance(table, operator.load, speeds):.2f} times"
        )
        held = ""
        if is_held(self._holds.get("balance"), operator, batch):
            held = f"did not help before: held back until batch {self._holds['balance'].until}"
        return self._decide(batch, operator, "balance", reason, held=held)

    # -- which slot where ------------------------------------------------------------------

    def _assign(
        self, batch: int, operator: OperatorView, channels: int
    ) -> tuple[RoutingTable, Layout | None, list[Decided]]:
        """The balance policy's table; where there are executors, they get their channels first."""
        policy, layout = self.settings.balance, operator.layout
        if layout is None or channels < len(layout.channels):
            return policy.balance(replace(operator, layout=None), channels), None, []
        reasons: list[str] = []
        every = self.settings.reshape_every_batches
        # Not every batch is asked about.
        before_at, self._planned_at = self._planned_at, batch
        is_due = before_at is not None and batch // every > before_at // every
        if is_due and channels == operator.channels:
            layout, reasons = reshape(layout, operator.load, self.settings.host_channels)
        decisions = [self._decide(batch, operator, "reshape", reason) for reason in reasons]
        loads = layout.loads(operator.load)
        wanted = divide_channels(loads, channels)
        is_better = (loads / layout.counts).max() > _REDIVIDE * (loads / wanted).max()
        renamed: Mapping[int, int] = {}
        if channels != layout.total or is_better:
            layout, renamed = resize(layout, wanted)
        before = operator.table
        if renamed:
            slots = before.slots.copy()
            for old, new in renamed.items():
                slots[before.slots == old] = new
            more = max(before.channels, channels)
            before = replace(before, channels=more, slots=slots, hosts=())
        after = policy.balance(replace(operator, table=before, layout=layout), channels)
        if after is operator.table:
            return after, layout, decisions
        return operator.table.next(after.slots, channels), layout, decisions

    # -- decisions as events ---------------------------------------------------------------

    def _decide(
        self,
        batch: int,
        operator: OperatorView,
        kind: str,
        reason: str,
        channels: int | None = None,
        held: str = "",
        key: str = "",
    ) -> Decided:
        return Decided(
            batch=batch,
            operator=operator.name,
            decision=0,  # numbered when it is told
            kind=kind,
            reason=reason,
            channels_before=operator.channels,
            channels_after=operator.channels if channels is None else channels,
            held=held,
            key=key,
        )

    def _say_once(self, decision: Decided) -> list[Decided]:
        """The decision, or none where the same reason was the last one given to hold back: who
        waits would fill the log with waiting.
        """
        if self._said.get(decision.kind) == decision.held:
            return []
        self._said[decision.kind] = decision.held
        return [decision]

    def _told(self, decisions: Sequence[Decided]) -> tuple[list[Decided], list[Event]]:
        """The decisions as the log has them, numbered in that order so that no number is missing
        there, and why those can't be judged that promise nothing.
        """
        told = [msgspec.structs.replace(each, decision=self._number()) for each in decisions]
        return told, [_unpromised(each) for each in told if each.kind in _NO_PROMISE]


def _took_effect(table: RoutingTable, requested: RoutingTable, metric: str) -> bool:
    """Whether what was asked for is there, as far as the promise goes: how even the work is depends
    on each slot, but what other channels bring does not, and a batch that has them may have moved
    slots once more for its own rows, or a key with them.
    """
    if metric == "busiest_share":
        return table.routes_as(requested)
    return table.epoch == requested.epoch and table.channels == requested.channels


def _limited(
    batch: int, operator: OperatorView, limit: tuple[str, str], wish: Wish | None = None
) -> Limited:
    return Limited(
        batch=batch,
        operator=operator.name,
        factor=limit[0],
        why=limit[1],
        channels=operator.channels,
        wished=operator.channels if wish is None else wish.channels,
        congestion=round(operator.congestion, 3),
    )


def _priced(decision: Decided, worth: tuple[float, float]) -> Decided:
    return msgspec.structs.replace(decision, gain_s=worth[0], cost_s=worth[1])


def _less_costly(
    operator: OperatorView, table: RoutingTable, prices: Prices, period_s: float
) -> RoutingTable:
    """The table, or one that takes no slot off its host, if that comes out better."""
    within = rebalance_within_hosts(operator.table, operator.load, operator.speeds)
    if table is operator.table or within is operator.table:
        return table
    either = (table, within)
    worths = [weigh(operator, each, prices, period_s).net_s for each in either]
    return either[worths.index(max(worths))]


def _unpromised(decision: Decided) -> Judged:
    why = _NO_PROMISE[decision.kind]
    return unjudged(decision.batch, decision.operator, decision.decision, why)


def _reason(wish: Wish | None) -> str:
    return "" if wish is None else wish.reason


def _is_within(layout: Layout | None, table: RoutingTable) -> bool:
    """Whether every slot of a table is on a channel of its executor."""
    return layout is None or (
        layout.total == table.channels and bool(layout.is_within(table.slots).all())
    )

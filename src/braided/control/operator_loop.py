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

from braided.control.events import Decided, Event, Judged, Planned
from braided.control.hot_keys import pin_change
from braided.control.judging import Expectation, Held, expectation, held_again, is_held, verdict
from braided.control.measure.view import OperatorView
from braided.control.policy import Wish
from braided.control.routing.balance import imbalance
from braided.control.routing.executors import Layout, divided, reshaped, resized
from braided.control.routing.table import RoutingTable
from braided.control.settings import Settings
from braided.control.worth import weigh

__all__ = ["OperatorLoop"]

_REDIVIDE = 1.1
"""Channels change executors when the busiest executor's load per channel falls by this factor."""
_SAY_AGAIN = 20
"""Batches between two events about plans that do not pay: there may be one in every batch."""


class OperatorLoop:
    """Keeps one operator on course. `number` gives the next decision its number."""

    def __init__(
        self,
        settings: Settings,
        number: Callable[[], int],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        kept = memory or {}
        self.settings = settings
        self._number = number
        self._requested: RoutingTable | None = None
        self._promise: Expectation | None = None
        self._scaled_at: int | None = kept.get("scaled_at")
        self._lower: list[int] = []  # the last wishes, if all were for fewer channels
        self._held = msgspec.convert(kept.get("held", {}), dict[str, Held])
        self._cold: Mapping[bytes, int] = {}
        self._dropped_at: int | None = None  # when a plan that did not pay was last spoken of
        self._said = ""  # the last reason for holding back that was spoken of
        layout = kept.get("layout")
        self.layout: Layout | None = None
        self._made_for = 0  # as many executors as there could be when the layout was made
        if layout and kept.get("executors") == settings.executors:
            self.layout = Layout(tuple(layout[0]), tuple(tuple(own) for own in layout[1]))
            self._made_for = int(kept.get("made_for", 0))

    def memory(self) -> dict[str, Any]:
        """What a restart needs, in JSON's own types."""
        layout = self.layout
        return {
            "scaled_at": self._scaled_at,
            "held": msgspec.to_builtins(self._held),
            "executors": self.settings.executors,
            "made_for": self._made_for,
            "layout": layout and [list(layout.bounds), [list(own) for own in layout.channels]],
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
            or wanted > self._made_for
        ):
            self.layout = Layout.even(table.slots.size, wanted, table.channels)
            self._made_for = wanted
        elif self.layout.total != table.channels:
            self.layout = self.layout.over(table.channels)
        return self.layout

    def is_settled(self, operator: OperatorView) -> bool:
        """Whether what was last requested has been observed, or overtaken."""
        return self._requested is None or operator.table.epoch >= self._requested.epoch

    def judge(self, batch: int, operator: OperatorView) -> list[Event]:
        """What has come of the last request."""
        promise, requested = self._promise, self._requested
        if requested is None or not self.is_settled(operator):
            return []
        self._requested = self._promise = None
        if promise is None:
            return []
        word, observed, held_until = "superseded", None, None
        if operator.table == requested:
            judged = verdict(promise, operator)
            word, observed = judged.word, judged.observed
            if word == "ineffective":
                held = held_again(self._held.get(promise.kind), operator, batch)
                self._held[promise.kind], held_until = held, held.until
            elif word == "effective":
                self._held.pop(promise.kind, None)
        return [
            Judged(
                batch=batch,
                operator=operator.name,
                decision=promise.decision,
                verdict=word,
                metric=promise.metric,
                before=promise.before,
                expected=promise.expected,
                observed=observed,
                held_until=held_until,
            )
        ]

    def plan(
        self,
        batch: int,
        period_s: float,
        operator: OperatorView,
        wish: Wish | None,
        hosts: Sequence[int] | None,
    ) -> tuple[RoutingTable | None, Sequence[Event]]:
        """The table to ask for, if any, and the decisions that led to it."""
        channels, decided = self._granted(batch, operator, wish)
        table, layout, reshapes = self._assigned(batch, operator, channels)
        decided += reshapes
        scales = channels != operator.channels
        if table is operator.table:
            self.layout = layout
            return None, decided
        # A wish for channels has been weighed by its policy, executors that were split or merged
        # need their own slots, and what others put elsewhere comes home; all other moves have to
        # pay, also those of channels from one executor to another.
        must = (
            scales
            or bool(reshapes)
            or not getattr(self.settings.balance, "weighed", True)
            or not _is_home(operator.layout, operator.table)
        )
        kept = layout if _is_home(layout, operator.table) else operator.layout
        if scales:
            reason = decided[0]
        else:
            reason = self._rebalanced(batch, operator, table)
            decided.append(reason)
            if reason.held and not must:
                self.layout = kept
                return None, self._unless_said(decided, reason.held)
            if reason.held:
                reason = msgspec.structs.replace(reason, held="")
                decided[-1] = reason
        promise = expectation(reason.decision, reason.kind, operator, table, period_s)
        if promise is not None:
            decided[decided.index(reason)] = msgspec.structs.replace(
                reason, metric=promise.metric, before=promise.before, expected=promise.expected
            )
        worth = weigh(operator, table, self.settings.prices, hosts, period_s)
        dropped = not must and not worth.pays
        planned = Planned(
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
        if dropped:
            is_new = self._dropped_at is None or batch >= self._dropped_at + _SAY_AGAIN
            self._dropped_at = batch if is_new else self._dropped_at
            self.layout = kept
            return None, [*decided, planned] if is_new else []
        self._requested, self._promise, self.layout = table, promise, layout
        self._dropped_at = None
        self._scaled_at = batch if scales else self._scaled_at
        return table, [*decided, planned]

    def pins(
        self, batch: int, operator: OperatorView
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...], list[Event]]:
        """Keys to pin and to unpin."""
        rule = self.settings.hot_keys
        change = pin_change(operator, operator.channels, self._cold, rule)
        self._cold = change.cold
        events: list[Event] = []
        for key in change.pin:
            share = key.load * operator.channels / operator.total_load
            reason = f"one key has {share:.2f} of a channel's fair load"
            events.append(self._decided(batch, operator, "pin", reason, key=key.key.hex()))
        for cooled in change.unpin:
            reason = f"cool for {rule.cool_batches} batches"
            events.append(self._decided(batch, operator, "unpin", reason, key=cooled.hex()))
        return tuple(key.key for key in change.pin), change.unpin, events

    # -- how many channels -----------------------------------------------------------------

    def _granted(
        self, batch: int, operator: OperatorView, wish: Wish | None
    ) -> tuple[int, list[Decided]]:
        """How many channels the operator gets, and the decision if it was asked for others."""
        now, limits = operator.channels, self.settings.limits
        asked = now if wish is None else limits.clamp(wish.channels, operator.table.slots.size)
        fewer = asked < now and asked <= now * (1 - limits.hysteresis)
        self._lower = [*self._lower, asked][-limits.calm_batches :] if fewer else []
        if wish is None or asked == now:
            return now, []
        kind = "scale-up" if asked > now else "scale-down"
        held = ""
        if wish.at_once:
            self._lower = []
        elif self._scaled_at is not None and batch - self._scaled_at <= limits.cooldown_batches:
            held = f"cooling down since batch {self._scaled_at}"
        elif asked < now and not fewer:
            held = f"less than {limits.hysteresis:.0%} fewer"
        elif asked < now and len(self._lower) < limits.calm_batches:
            held = f"not yet calm for {limits.calm_batches} batches"
        elif is_held(self._held.get(kind), operator, batch):
            held = f"did not help before: held back until batch {self._held[kind].until}"
        if held:
            decision = self._decided(batch, operator, kind, wish.reason, held=held)
            return now, self._unless_said([decision], held)
        self._said = ""
        channels = max(self._lower) if self._lower else asked
        return channels, [self._decided(batch, operator, kind, wish.reason, channels)]

    def _rebalanced(self, batch: int, operator: OperatorView, table: RoutingTable) -> Decided:
        reason = (
            f"the busiest channel has {imbalance(operator.table, operator.load):.2f} times "
            f"the average, and would have {imbalance(table, operator.load):.2f} times"
        )
        held = ""
        if is_held(self._held.get("balance"), operator, batch):
            held = f"did not help before: held back until batch {self._held['balance'].until}"
        return self._decided(batch, operator, "balance", reason, held=held)

    # -- which slot where ------------------------------------------------------------------

    def _assigned(
        self, batch: int, operator: OperatorView, channels: int
    ) -> tuple[RoutingTable, Layout | None, list[Decided]]:
        """The balance policy's table; where there are executors, they get their channels first."""
        policy, layout = self.settings.balance, operator.layout
        if layout is None or channels < len(layout.channels):
            return policy.balance(replace(operator, layout=None), channels), None, []
        reasons: list[str] = []
        is_due = batch and batch % self.settings.reshape_every_batches == 0
        if is_due and channels == operator.channels:
            layout, reasons = reshaped(layout, operator.load, self.settings.host_channels)
        decided = [self._decided(batch, operator, "reshape", reason) for reason in reasons]
        loads = layout.loads(operator.load)
        wanted = divided(loads, channels)
        is_better = (loads / layout.counts).max() > _REDIVIDE * (loads / wanted).max()
        renamed: Mapping[int, int] = {}
        if channels != layout.total or is_better:
            layout, renamed = resized(layout, wanted)
        before = operator.table
        if renamed:
            slots = before.slots.copy()
            for old, new in renamed.items():
                slots[before.slots == old] = new
            before = RoutingTable(before.epoch, max(before.channels, channels), slots, before.pins)
        after = policy.balance(replace(operator, table=before, layout=layout), channels)
        if after is operator.table:
            return after, layout, decided
        return operator.table.next(after.slots, channels), layout, decided

    # -- decisions as events ---------------------------------------------------------------

    def _decided(
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
            decision=self._number(),
            kind=kind,
            reason=reason,
            channels_before=operator.channels,
            channels_after=operator.channels if channels is None else channels,
            held=held,
            key=key,
        )

    def _unless_said(self, decided: list[Decided], held: str) -> list[Decided]:
        """Nothing, where the same was said before: who waits would fill the log with waiting."""
        if held == self._said:
            return []
        self._said = held
        return decided


def _is_home(layout: Layout | None, table: RoutingTable) -> bool:
    """Whether every slot of a table is on a channel of its executor."""
    return layout is None or (
        layout.total == table.channels and bool(layout.is_home(table.slots).all())
    )

"""The controller of a running query: measurements of a batch in, tables for the next one out.

A thread of its own. What a batch showed is left here after its commit; while Spark writes down that
the batch is done and looks for the next input, the controller of `control/loop.py` makes up its
mind. Its tables are proposals: the batch that begins next takes those that are there by then
(`steering/commands.py`), and waits for none. Whatever goes wrong here is logged, and the query
does not notice.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from braided.control.events import Decided, Event, Failed, Judged, Planned, Started
from braided.control.hot_keys import free_slot
from braided.control.loop import Controller, Cycle
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import OperatorView
from braided.control.outlook import Outlook
from braided.control.policy import Wish
from braided.control.routing.balance import channel_loads
from braided.control.routing.executors import Layout
from braided.control.routing.key_moves import slot_of_key
from braided.control.routing.table import Pin, RoutingTable
from braided.flow.key_hashes import KeyHashes
from braided.hosts.transition import HostFacts
from braided.spark.query_handle import QueryHandle
from braided.steering.commands import Commands
from braided.steering.event_log import EventLog
from braided.steering.input_size import Amount
from braided.steering.locating import Locating
from braided.steering.pair_reports import pairs_of
from braided.steering.policy_settings import Policies
from braided.steering.reserve import Reserve
from braided.steering.same_batch import SameBatch
from braided.steering.sampling import Sampler, waiting_rows
from braided.steering.task_waves import TaskWaves
from braided.store.history.manifest import View
from braided.tasks.columns import PLACE_SHIFT, is_place_of
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport

__all__ = ["CommittedBatch", "ControlThread"]

_WAITING_MAX = 8
"""Batches that may wait for a slow policy; of more, the oldest are forgotten."""
_CLOSE_S = 1.0
_SAID_MAX = 200
"""Batches of which is kept what the controller said, as many as the progress goes back."""

log = logging.getLogger("braided")


@dataclass(frozen=True)
class CommittedBatch:
    """What is known of a batch once it is committed."""

    outcome: Outcome
    view: View
    ended_s: float
    slot_loads: Mapping[str, SlotLoads]
    """What the query's estimator expects of slots, this batch included."""
    hosts: HostFacts | None = None
    """None where all is one host."""


class ControlThread:
    """Steers one query."""

    def __init__(
        self,
        policies: Policies,
        memory: str | None,
        sampler: Sampler,
        events: EventLog,
        commands: Commands,
        reserve: Reserve,
        hashes: KeyHashes,
        query: QueryHandle,
        same_batch: SameBatch,
    ) -> None:
        self._policies = policies
        self._sampler = sampler
        self._events = events
        self._commands = commands
        self._reserve = reserve
        self._hashes = hashes
        self._locating = Locating(hashes, commands, policies.guard)
        self._query = query
        self._same_batch = same_batch
        self._controller = _controller(policies, memory)
        self._warned: set[str] = set()
        cores = policies.settings.limits.cores
        self._waves = TaskWaves(policies.bound if cores is None else 0)
        self._reserved = policies.scale == "off"
        """Whether there are workers for as many channels as the policy may ask for."""
        self._last: dict[str, Any] | None = None
        self._said: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._outlook: Outlook | None = None
        self._size: tuple[int, Amount | None] = (-1, None)
        self._foreseen: dict[int, dict[str, Wish]] = {}
        self._lock = threading.Condition()
        self._writing = threading.Lock()
        self._batches: deque[CommittedBatch] = deque(maxlen=_WAITING_MAX)
        self._busy = False
        self._begun = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.memory = memory
        """What the controller knows, to be kept in the next manifest."""

    def see(self, batch: CommittedBatch) -> None:
        """Leaves a batch here, and returns at once."""
        with self._lock:
            if self._closed:
                return
            self._batches.append(batch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._steer, name="braided control", daemon=True
                )
                self._thread.start()
            self._lock.notify_all()

    @property
    def foresees(self) -> bool:
        """Whether its policy can say something of a batch by the size of its input."""
        return bool(getattr(self._policies.settings.scale, "by_rate", False))

    def foresee(self, batch: int, size: Amount | None, batch_time_ms: int) -> dict[str, int]:
        """Channels that a batch of that input should have at least, by what is known of the one
        before; in the thread of the batch, which waits for nobody.
        """
        if size is None or not size.amount:
            return {}  # it has no input, or nobody knows
        (last, before), self._size = self._size, (batch, size)
        outlook, collected_s = self._outlook, self._sampler.collected_s(batch_time_ms)
        if outlook is None or before is None or collected_s is None:
            return {}
        is_next = outlook.view.batch == batch - 1 and outlook.view.input_batch == last
        if not is_next or size.unit != before.unit:
            return {}
        wishes = outlook.wishes(size.amount / before.amount, collected_s)
        if self._policies.settings.scale_dry_run:
            return {}
        if wishes:
            self._foreseen[batch] = wishes
        return {name: wish.channels for name, wish in wishes.items()}

    def settled(self, timeout_s: float) -> bool:
        """Waits until everything that was left here has been seen to."""
        with self._lock:
            return self._lock.wait_for(
                lambda: self._closed or not (self._batches or self._busy), timeout_s
            )

    def close(self) -> None:
        """No more decisions, once those on the last batches are made; a policy that takes long
        is not waited for.
        """
        if threading.current_thread() is not self._thread:
            self.settled(_CLOSE_S)
        with self._lock:
            self._closed = True
            self._batches.clear()
            self._lock.notify_all()
        self._events.close()

    def note(self, event: Event) -> None:
        """For the event log, from another thread than the controller's."""
        with self._writing:
            self._events.add((event,))

    def summary(self) -> dict[str, Any]:
        """Who decides, and what was decided last, for the progress."""
        return {
            "scale": self._policies.scale,
            "balance": self._policies.balance,
            "lastDecision": self._last,
        }

    def said_of(self, batch: int) -> dict[str, Any] | None:
        """The controller's part in the progress of a batch; None as long as it has not said
        anything of it.
        """
        return self._said.get(batch)

    # -- in the thread ---------------------------------------------------------------------

    def _steer(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._closed or bool(self._batches))
                if self._closed:
                    return
                batch = self._batches.popleft()
                self._busy = True
            try:
                self._cycle(batch)
            except Exception as error:  # ours or Spark's: the query goes on as it is
                if self._is_closed():
                    return
                self._policies.guard.failed("controller", error)
                self._log(self._policies.guard.take())
                log.debug("the controller failed", exc_info=True)

    def _cycle(self, batch: CommittedBatch) -> None:
        guard = self._policies.guard
        guard.batch = batch.outcome.batch
        waiting = waiting_rows(self._query.last_progress())
        sample = self._sampler.sample(
            batch.outcome, batch.view, batch.ended_s, waiting, batch.hosts
        )
        in_use = _most_channels(batch.outcome.tables)
        cores = None if batch.hosts is None else batch.hosts.cores
        self._waves.see(in_use, self._policies.settings.limits.cores if cores is None else cores)
        if not self._reserved:
            self._reserved = True
            self._reserve.warm(self._policies.settings.limits.most, in_use)
        foreseen, unjudged = self._events_of(batch.outcome)
        if sample is None or guard.is_held("controller"):
            return
        prices = self._policies.settings.prices
        if batch.hosts is not None:
            prices = prices.measured(batch.hosts.rates)
        pairs = pairs_of(batch.outcome.reports)
        cycle = self._controller.step(sample, batch.slot_loads, prices, cores, pairs)
        cycle = self._locating.locate(self._controller, cycle, batch.outcome.reports, prices)
        cycle = replace(cycle, events=(*self._first(), *foreseen, *unjudged, *cycle.events))
        if self._is_closed():
            return  # the log is somebody else's by now
        self._outlook = self._controller.outlook()
        if self._outlook is not None:
            self._same_batch.learn(sample, cycle.view, batch.slot_loads, prices)
        self._log((*cycle.events, *guard.take()))
        self._note(cycle, {event.decision for event in foreseen})
        locality = self._controller.locality()
        self._say(
            batch.outcome.batch,
            {
                **self.summary(),
                "latencyP95Ms": _ms(cycle.view.latency_p95_s),
                "operators": self._shown(cycle),
                **({} if locality is None else {"locality": locality}),
            },
        )
        self.memory = json.dumps(
            {"scale": self._policies.scale, "controller": self._controller.memory()}
        )
        if cycle.tables:
            self._reserve.warm(_most_channels(cycle.tables), in_use)
            self._commands.propose(cycle.tables)
        self._locating.propose(self._controller, cycle)
        for name, operator in cycle.view.operators.items():
            change = self._repinned(cycle, operator, batch.outcome.reports[name])
            if change is not None:
                self._commands.propose_pin(name, change)
        if not self._is_closed():
            self._log(guard.take())

    def _first(self) -> list[Event]:
        """What a log begins with, once."""
        if self._begun:
            return []
        self._begun = True
        policies, limits = self._policies, self._policies.settings.limits
        return [
            Started(
                batch=policies.guard.batch,
                scale=policies.scale,
                balance=policies.balance,
                channels_min=limits.channels_min,
                channels_max=limits.most,
                operators=limits.own,
                excluded=tuple(sorted(limits.excluded)),
            )
        ]

    def _events_of(self, outcome: Outcome) -> tuple[list[Decided], list[Event]]:
        """What was decided right before the batch, as far as it was followed, and why of some of it
        nobody can tell what came of it.
        """
        outlook, wishes = self._outlook, self._foreseen.pop(outcome.batch, {})
        decisions: list[Decided] = []
        unjudged: list[Event] = []
        for name, wish in wishes.items():
            if outlook is not None and outcome.tables[name].channels == wish.channels:
                decision, lines = self._controller.foreseen(
                    outcome.batch, outlook.view, name, wish, outcome.tables[name]
                )
                decisions.append(decision)
                unjudged += lines
        return decisions, unjudged

    def _repinned(
        self, cycle: Cycle, operator: OperatorView, reports: Sequence[ChannelReport]
    ) -> Pin | bytes | None:
        """One key a batch, so that where it goes is clear: one to split, one to let go or to make
        whole, or the hottest to pin.
        """
        name = operator.name
        pins = {pin.key: pin for pin in operator.table.pins}
        places = {each.key: each.place for report in reports for each in report.heavy}
        for split in cycle.split.get(name, ()):
            key = split.key.key
            pin = pins.get(key) or self._pin(operator, key, places[key])
            if pin is not None:
                return replace(pin, shares=split.slots)
        for key in cycle.unpin.get(name, ()):
            return key
        for key in cycle.whole.get(name, ()):
            return replace(pins[key], shares=())
        for key in cycle.pin.get(name, ()):
            pin = self._pin(operator, key, places[key])
            if pin is not None:
                return replace(pin, slot=free_slot(operator, pin.slot))
        return None

    def _pin(self, operator: OperatorView, key: bytes, place: int) -> Pin | None:
        """A key in the slot that it is in; None if its rows can't be told from those of others."""
        hashes = self._hashes.of_key(operator.name, key)
        if hashes is None:
            return None
        slot = slot_of_key(operator.table, *hashes)
        # What the JVM made of the key's rows: nothing is pinned that is not surely the same.
        is_sure = slot == place >> PLACE_SHIFT and is_place_of(place, hashes[0])
        return Pin(key, *hashes, slot) if is_sure else None

    def _is_closed(self) -> bool:
        with self._lock:
            return self._closed

    def _log(self, events: tuple[Event, ...]) -> None:
        with self._writing:
            self._events.add(events)
        for event in events:
            if isinstance(event, Failed) and event.policy not in self._warned:
                self._warned.add(event.policy)
                log.warning(
                    "%s failed and is held back until batch %d; the query goes on without it. %s",
                    event.policy,
                    event.held_until,
                    event.error,
                )

    def _say(self, batch: int, content: dict[str, Any]) -> None:
        self._said[batch] = content
        while len(self._said) > _SAID_MAX:
            self._said.popitem(last=False)

    def _shown(self, cycle: Cycle) -> dict[str, dict[str, Any]]:
        """What the progress says of each operator."""
        shown = {}
        for name, operator in cycle.view.operators.items():
            shown[name] = {**_bound(operator), **_executors(operator.layout)}
            why = self._controller.bound(name)
            if why:
                shown[name]["bound"] = why
        return shown

    def _note(self, cycle: Cycle, foreseen: set[int]) -> None:
        """Keeps the last decision that was followed, and later what came of it."""
        followed = foreseen | {
            number
            for event in cycle.events
            if isinstance(event, Planned) and not event.dropped
            for number in event.decisions
        }
        for event in cycle.events:
            last = self._last
            if isinstance(event, Judged) and last and last["decision"] == event.decision:
                why = f": {event.why}" if event.why else ""
                self._last = {**last, "verdict": event.verdict + why}
            elif isinstance(event, Decided) and (
                event.decision in followed or event.kind in ("pin", "unpin", "split", "whole")
            ):
                self._last = {
                    "batchId": event.batch,
                    "operator": event.operator,
                    "decision": event.decision,
                    "kind": event.kind,
                    "reason": event.reason,
                    "channels": event.channels_after,
                    "verdict": None,
                }


def _most_channels(tables: Mapping[str, RoutingTable]) -> int:
    return max(table.channels for table in tables.values())


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _executors(layout: Layout | None) -> dict[str, Any]:
    """The key ranges, as first and last slot, and the channels of each."""
    if layout is None:
        return {}
    ranges = zip(pairwise(layout.bounds), layout.channels, strict=True)
    return {
        "executors": [
            {"slots": [low, high - 1], "channels": sorted(own)} for (low, high), own in ranges
        ]
    }


def _bound(operator: OperatorView) -> dict[str, Any]:
    """How near the operator is to the best there is: an equal part, or the hottest key that is in
    one piece.
    """
    total = operator.total_load
    if total <= 0:
        return {"busiestShare": 0.0, "boundShare": 0.0, "hottestKeyShare": 0.0}
    hottest = max((key.load for key in operator.heavy), default=0.0) / total
    share = max((key.load / key.shares for key in operator.heavy), default=0.0) / total
    busiest = float(channel_loads(operator.table, operator.load).max()) / total
    return {
        "busiestShare": round(busiest, 4),
        "boundShare": round(max(1 / operator.channels, share), 4),
        "hottestKeyShare": round(hottest, 4),
    }


def _controller(policies: Policies, memory: str | None) -> Controller:
    """The controller, with what the one before it knew if that can still be read."""
    if memory is None:
        return Controller(policies.settings)
    try:
        kept = json.loads(memory)
        known = dict(kept["controller"])
        if kept["scale"] != policies.scale:
            known.pop("policy", None)  # another policy's memory means nothing to this one
        return Controller(policies.settings, known)
    except (KeyError, TypeError, ValueError) as error:  # msgspec's are ValueErrors
        log.warning("the controller starts without its memory, which can't be read: %s", error)
        return Controller(policies.settings)

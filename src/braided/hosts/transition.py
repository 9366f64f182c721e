"""From the tables in effect to those that are wanted, where channels have hosts.

A table that moves state to another host takes effect when the state is there. Until then batches go
on by the table before, and what is missing is brought in the background, in this order:

    executors that the plan needs and that are not there   asked for, waited for
    hosts that have run nothing of ours yet                 their workers are started
    slots whose next host does not have them                fetched, at the newest version

Whoever waits too long is not waited for: the batch then reads what it lacks itself. So it is with
what can't wait, a host that is gone and a batch that is known to be much larger than the last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from braided.control.measure.estimator import SlotTotals, at_full_speed
from braided.control.measure.host_speed import HostSpeeds, SlotRuns
from braided.control.measure.moving_cost import CatchUp, MovingCost, MovingRates
from braided.control.planned_change import PlannedChange, SlotFacts, plan_change
from braided.control.routing.host_choice import ChannelDemand, Host, choose_hosts, moved_bytes
from braided.control.routing.key_moves import moved_keys
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable
from braided.hosts.errands import Errands, HostSlots, guests_to_fetch, slots_to_fetch
from braided.hosts.fleet import Fleet
from braided.hosts.host_map import HostMap
from braided.hosts.host_work import work_of_hosts
from braided.spark.executors import Executor, cores_by_host
from braided.store.history.manifest import View
from braided.tasks.failure import is_interrupt
from braided.tasks.outcome import Outcome
from braided.tasks.prefetch import Fetched

__all__ = ["HostFacts", "NextTables", "Transition"]

_PATIENCE_S = 60.0
"""How long executors, and state on its way, are waited for."""
_LOOK_S = 0.2
_CHEAP_S = 0.005
"""Slots that a batch could read itself in less time are not fetched ahead."""

log = logging.getLogger("braided")

Tables = Mapping[str, RoutingTable]


@dataclass(frozen=True)
class NextTables:
    """The tables of a batch, and those that wait until what they need is there."""

    tables: dict[str, RoutingTable]
    held: dict[str, RoutingTable]


@dataclass(frozen=True)
class HostFacts:
    """What the controller should know of hosts: by operator, how fast its channels are and where
    its slots; what moving state between hosts costs, and how many channels can run at once.
    """

    speeds: Mapping[str, Loads | None]
    residence: Mapping[str, Residence]
    rates: MovingRates
    cores: int | None
    """None where Spark brings as many as there is work for."""


@dataclass
class _Errand:
    """Something that a held table waits for."""

    what: Any
    since_s: float
    done: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False

    def is_waited_for(self) -> bool:
        return not self.done.is_set() and time.monotonic() - self.since_s < _PATIENCE_S


class Transition:
    """Decides, batch by batch, which tables take effect and where their channels run."""

    def __init__(
        self,
        hosts: HostMap,
        levels: Mapping[str, int],
        upstream: Mapping[str, tuple[str, ...]],
        errands: Errands,
        fleet: Fleet | None,
        prefetch: bool,
        naive: bool = False,
        grows_itself: bool = False,
    ) -> None:
        self.hosts = hosts
        self._moving = MovingCost()
        self._levels = levels
        self._upstream = upstream
        self._errands = errands
        self._fleet = fleet
        self._prefetch = prefetch
        self._naive = naive
        self.grows_itself = grows_itself
        """Whether Spark asks for executors, by the tasks that wait."""
        self._rates: dict[str, float] = {}
        self._speeds = HostSpeeds()
        self._growing: _Errand | None = None
        self._warming: _Errand | None = None
        self._fetching: _Errand | None = None
        self._fetched = Fetched(0, 0, 0.0)
        self._committed_s = time.monotonic()
        self._observed: list[Executor] = []
        self._idle_are_warm = False
        self._confined_to: frozenset[str] | None = None
        self._moves_at_once = False
        self.is_migrating = False
        """Whether executors come and go by another plan than the fleet's."""

    def admit(self, before: Tables, wanted: Tables, view: View, urgent: bool = False) -> NextTables:
        """The tables of the batch that begins now; those that are wanted, whatever goes wrong."""
        try:
            return self._admit(before, wanted, view, urgent)
        except Exception as error:
            self._note(error)
            return NextTables(dict(wanted), {})

    def _admit(self, before: Tables, wanted: Tables, view: View, urgent: bool) -> NextTables:
        for name, table in before.items():
            self.hosts.add_operator(name, view, table)
        self._observe()
        grown = self._fleet is None or self._has_grown(self._fleet, wanted)
        if grown:  # all that are new in one job
            self._warm_untried()
        available = self._available(wanted)
        if not available:
            return NextTables(dict(wanted), {})
        current = self._mended(before, available)
        # A hot key is not kept waiting. Where others wait for their state it goes alone: all of
        # them would be read by the batch itself for its sake.
        repinned = {name for name, table in wanted.items() if table.pins != before[name].pins}
        if any(table.assigned != before[name].assigned for name, table in wanted.items()):
            for name in repinned:
                alone = replace(current[name], pins=wanted[name].pins)
                current[name] = alone.as_next_of(before[name])
        else:
            urgent = urgent or bool(repinned)
        if not urgent and not self._moves_at_once and (not grown or self._is_warming()):
            return self._hold(wanted, before, current)
        target = self._placed(wanted, before, available)
        at_once = urgent or self._moves_at_once or not self._prefetch or target == current
        if not at_once and self._waits_for_state(before, target, view):
            return self._hold(target, before, current)
        self._fetching = None
        self._moves_at_once = False
        return NextTables(target, {})

    def _waits_for_state(self, before: Tables, target: Tables, view: View) -> bool:
        """Whether slots are still on their way; they are sent for, if nobody did."""
        missing, guests = self._missing(target, view), self._guests(before, target, view)
        if not (missing or guests) or self._is_cheap(target, missing, guests):
            return False
        waits_for = {
            name: (table.slots.tobytes(), table.hosts, table.assigned)
            for name, table in target.items()
        }
        if self._fetching is None or self._fetching.what != waits_for:
            # Whoever changes the plan again and again does not wait for ever.
            since_s = time.monotonic() if self._fetching is None else self._fetching.since_s
            self._fetching = _Errand(waits_for, since_s)
            errand = self._fetching
            errand.done = self._errands.start(lambda: self._fetch(errand, view, missing, guests))
        return self._fetching.is_waited_for()

    def plan(self, before: Tables, wanted: Tables, loads: Mapping[str, Loads]) -> PlannedChange:
        """What the wanted tables would change, on the hosts that were there in the last batch.
        Executors that would be asked for are not counted on. For any thread.
        """
        available = self._available(wanted)
        return self._plan(before, wanted, loads, available)

    def plan_on(
        self, cores: Mapping[str, int], tables: Tables, loads: Mapping[str, Loads]
    ) -> PlannedChange:
        """What would change if channels were on these hosts, by the cores of each. For any
        thread.
        """
        return self._plan(tables, tables, loads, self._hosts_of(cores))

    def _plan(
        self, before: Tables, wanted: Tables, loads: Mapping[str, Loads], available: list[Host]
    ) -> PlannedChange:
        target, facts = dict(wanted), {name: SlotFacts(load) for name, load in loads.items()}
        if all(self.hosts.knows(name) for name in wanted):
            target = self._placed(wanted, before, available) if available else target
            facts = {
                name: SlotFacts(load, self.hosts.state_bytes(name), self.hosts.residence(name))
                for name, load in loads.items()
            }
        hosts = {host for tables in (before, target) for t in tables.values() for host in t.hosts}
        speeds = {host: self._speeds.speed(host) for host in hosts}
        return plan_change(before, target, facts, self._moving.rates(), speeds, self._prefetch)

    def note_committed(
        self, outcome: Outcome, totals: Mapping[str, SlotTotals]
    ) -> dict[str, SlotTotals]:
        """A batch is committed: where it ran is known, and who is not needed can go. What its slots
        would have taken on the fastest host.
        """
        try:
            return self._note_committed(outcome, totals)
        except Exception as error:
            self._note(error)
            return dict(totals)

    def _note_committed(
        self, outcome: Outcome, totals: Mapping[str, SlotTotals]
    ) -> dict[str, SlotTotals]:
        self.hosts.note_reports(outcome.reports)
        ran_on = {name: self.hosts.residence(name) for name in totals}
        self._speeds.add(
            {name: SlotRuns(each.rows, each.busy_s, ran_on[name]) for name, each in totals.items()}
        )
        now_s = time.monotonic()
        period_s, self._committed_s = now_s - self._committed_s, now_s
        for name, reports in outcome.reports.items():
            self._rates[name] = sum(report.bytes_in for report in reports) / max(period_s, 1e-3)
            self._moving.add(
                CatchUp(
                    report.bytes_caught_up,
                    report.caught_up + report.rebuilt,
                    report.waited_ns / 1e9,
                )
                for report in reports
            )
        in_use = {host for table in outcome.tables.values() for host in table.hosts}
        if self._fleet is not None:
            self._observe()
            if not self.is_migrating:
                self._fleet.release(self._observed, in_use)
        elif not self._idle_are_warm:
            # The first batch has warmed the others; these are there for when one of them is lost.
            self._idle_are_warm = True
            idle = [executor for executor in self._observed if executor.host not in in_use]
            self._errands.start(lambda: self._errands.warm(idle), rings=False)
        return {
            name: at_full_speed(each, self._speeds.of_slots(ran_on[name]))
            for name, each in totals.items()
        }

    def _note(self, error: Exception) -> None:
        """Where channels run is no condition for anything: what fails here is logged."""
        if is_interrupt(error):
            raise error
        log.warning("channels may run anywhere in this batch: %s", str(error).split("\n", 1)[0])
        log.debug("hosts were not chosen", exc_info=True)

    def facts(self, tables: Tables) -> HostFacts:
        """What is known of hosts after a batch by these tables."""
        return HostFacts(
            {name: self._speeds.of_channels(table.hosts) for name, table in tables.items()},
            {name: self.hosts.residence(name) for name in tables},
            self._moving.rates(),
            self._cores_most(),
        )

    def show(self, outcome: Outcome) -> dict[str, Any]:
        """For the progress: what there is, what was brought since the last batch, and what a batch
        did where.
        """
        fetched, self._fetched = self._fetched, Fetched(0, 0, 0.0)
        executors = {"observed": len(self._observed)} if self._fleet is None else self._fleet.show()
        return {
            "executors": executors,
            "cores": dict(self.hosts.cores),
            "operators": {
                name: work_of_hosts(outcome.tables[name], reports, self.hosts)
                for name, reports in outcome.reports.items()
            },
            "prefetched": {
                "slots": fetched.slots,
                "bytes": fetched.bytes,
                "ms": round(fetched.seconds * 1000, 2),
            },
        }

    def _cores_most(self) -> int | None:
        if self._fleet is not None:
            return self._fleet.cores_most
        return None if self.grows_itself else sum(self.hosts.cores.values()) or None

    def close(self) -> None:
        self._errands.close()
        if self._fleet is not None:
            self._fleet.close()

    # -- a migration, from the thread that asks for it -------------------------------------

    def look(self) -> list[Executor]:
        """The executors that there are now."""
        return self.hosts.look()

    @property
    def executors_most(self) -> int | None:
        """How many there may be, if the query has a bound."""
        return None if self._fleet is None else self._fleet.most

    def request(self, total: int) -> None:
        """Asks Spark for so many executors; a fleet keeps to it until the plan changes."""
        if self._fleet is not None:
            self._fleet.fix(total)
        self.hosts.request(total)

    def release(self, executors: Collection[str], total: int) -> None:
        """Gives executors back, so that there are so many in all; a fleet keeps to it as well."""
        if self._fleet is not None:
            # Before they go: a batch that begins then would ask for them again.
            self._fleet.fix(total)
        self.hosts.release(executors, total)

    def prepare(
        self, executors: Collection[str], tables: Tables, view: View, timeout_s: float
    ) -> frozenset[str]:
        """Starts workers on executors, and fetches the slots that would be there if all channels
        of the tables were. Those of them that can run channels.
        """
        end_s = time.monotonic() + timeout_s
        there = [executor for executor in self.hosts.look() if executor.id in executors]
        new = self.hosts.without_our_tasks(there)
        if new:
            most = max((table.channels for table in tables.values()), default=1)
            workers = -(-most // len(there))
            self._errands.start(lambda: self._warm(new, workers), rings=False).wait(timeout_s)
        refused = {executor.id for executor in self.hosts.without_our_tasks(there)}
        fit = [executor for executor in there if executor.id not in refused]
        target = self._placed(tables, tables, self._hosts_of(cores_by_host(fit)))
        missing = self._missing(target, view)
        if missing:
            # Where they are is left as it was: the batches that go on change them there.
            done = self._errands.start(
                lambda: self._note_fetched(self._errands.fetch(view, missing)), rings=False
            )
            done.wait(max(0.0, end_s - time.monotonic()))
        return frozenset(executor.id for executor in fit)

    def confine(self, executors: Collection[str] | None) -> None:
        """From the next batch on channels are on the hosts of these executors, whether or not they
        are prepared; None: where they like.
        """
        self._confined_to = None if executors is None else frozenset(executors)
        self._moves_at_once = executors is not None
        self.hosts.found_fit(executors or ())

    def is_confined(self, tables: Tables) -> bool:
        """Whether tables name the hosts only that they may."""
        hosts = self._confined_hosts()
        named = {host for table in tables.values() for host in table.hosts}
        return hosts is not None and bool(named) and named <= hosts

    def _confined_hosts(self) -> frozenset[str] | None:
        if self._confined_to is None:
            return None
        return frozenset(map(self.hosts.host_of, self._confined_to))

    # -- what is there ---------------------------------------------------------------------

    def _observe(self) -> None:
        self._observed = self.hosts.observe()
        if self._fleet is not None:
            self._fleet.saw(self._observed)

    def _available(self, wanted: Tables) -> list[Host]:
        cores = dict(self.hosts.cores)
        confined_to = self._confined_hosts()
        if confined_to is not None and confined_to & cores.keys():
            cores = {host: n for host, n in cores.items() if host in confined_to}
        elif self._fleet is not None:
            named = {host for table in wanted.values() for host in table.hosts}
            executors = self._fleet.executors_for(wanted)
            cores = self._fleet.choose(cores, named, self.weights(), executors)
        return self._hosts_of(cores)

    def _hosts_of(self, cores: Mapping[str, int]) -> list[Host]:
        return [Host(name, n, self._speeds.speed(name)) for name, n in sorted(cores.items())]

    def weights(self) -> dict[str, float]:
        """How much state each host has: bytes, and a little for every slot."""
        weights: dict[str, float] = {}
        for name in self.hosts.operators:
            residence, size = self.hosts.residence(name), self.hosts.state_bytes(name)
            for number, host in enumerate(residence.hosts):
                has = residence.of_slot == number
                weights[host] = weights.get(host, 0.0) + float(size[has].sum()) + has.sum()
        return weights

    def _has_grown(self, fleet: Fleet, wanted: Tables) -> bool:
        """Whether the executors that tables need are there, or not waited for any more; a job
        rings when they are.
        """
        if fleet.aim(wanted):
            self._growing = None
            return True
        planned = fleet.planned
        if self._growing is None or self._growing.what != planned:
            self._growing = _Errand(planned, time.monotonic())
            errand = self._growing
            errand.done = self._errands.start(lambda: self._await_executors(errand))
        if self._growing.is_waited_for():
            return False
        if not self._growing.is_given_up:
            self._growing.is_given_up = True
            log.warning(
                "%d executors were asked for and %d are there after %.0f s; the query goes on "
                "with those",
                planned,
                fleet.observed,
                time.monotonic() - self._growing.since_s,
            )
        return True

    def _await_executors(self, errand: _Errand) -> None:
        end_s = errand.since_s + _PATIENCE_S
        while self.hosts.count_executors() < errand.what and time.monotonic() < end_s:
            if self._growing is not errand or self._errands.wait(_LOOK_S):
                return

    def _warm_untried(self) -> None:
        to_be_tried = self.hosts.to_be_tried
        if not to_be_tried or self._is_warming():
            return

        done = self._errands.start(lambda: self._warm(to_be_tried))
        self._warming = _Errand(tuple(to_be_tried), time.monotonic(), done)

    def _warm(self, executors: Sequence[Executor], workers: int | None = None) -> None:
        """`workers`: on each of them, if channels do not need all of its cores."""
        self.hosts.count_try(each.id for each in executors)
        found = {each.executor: each.problem() for each in self._errands.warm(executors, workers)}
        for executor, problem in found.items():
            if problem:
                host = self.hosts.host_of(executor)
                log.warning("executor %s on %s gets no channels: it %s", executor, host, problem)
        self.hosts.found_fit(executor for executor, problem in found.items() if not problem)

    def _is_warming(self) -> bool:
        return self._warming is not None and self._warming.is_waited_for()

    # -- where channels go -----------------------------------------------------------------

    def _placed(self, tables: Tables, before: Tables, available: list[Host]) -> dict[str, Any]:
        """The tables with a host for every channel, an epoch on from before where they differ."""
        demands = {name: self._demand(name, table) for name, table in tables.items()}
        chosen = choose_hosts(demands, available, self._naive)
        return {
            name: replace(table, hosts=chosen[name]).as_next_of(before[name])
            for name, table in tables.items()
        }

    def _mended(self, before: Tables, available: list[Host]) -> dict[str, RoutingTable]:
        """The tables before, with other hosts for channels whose own is not there."""
        there = {host.name for host in available}
        if self._confined_to is None:
            there |= set(self.hosts.cores)
        if all(table.hosts and there.issuperset(table.hosts) for table in before.values()):
            return dict(before)
        placed = self._placed(before, before, available)
        mended = {}
        for name, table in before.items():
            old = table.hosts or ("",) * table.channels
            hosts = tuple(
                host if host in there else new
                for host, new in zip(old, placed[name].hosts, strict=True)
            )
            mended[name] = replace(table, hosts=hosts).as_next_of(table)
        return mended

    def _demand(self, name: str, table: RoutingTable) -> ChannelDemand:
        return ChannelDemand(
            table=table,
            residence=self.hosts.residence(name),
            state_bytes=self.hosts.state_bytes(name),
            bytes_per_s=self._rates.get(name, 0.0),
            level=self._levels[name],
            upstream=self._upstream[name],
        )

    def _hold(self, target: Tables, before: Tables, current: dict[str, Any]) -> NextTables:
        held = {name: table for name, table in target.items() if table != current[name]}
        changed = {name for name, table in target.items() if table is not before[name]}
        return NextTables(current, {name: held[name] for name in held.keys() & changed})

    # -- what has to be brought ------------------------------------------------------------

    def _missing(self, target: Tables, view: View) -> HostSlots:
        missing: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, table in target.items():
            version, residence = view.operators.get(name), self.hosts.residence(name)
            for host, slots in slots_to_fetch(name, table, residence, version).items():
                missing.setdefault(host, {})[name] = slots
        return missing

    def _guests(self, before: Tables, target: Tables, view: View) -> HostSlots:
        """The slots from which keys go to hosts that do not have them; their channels stay."""
        guests: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, table in target.items():
            version = view.operators.get(name)
            if version is None or table.keeps_keys_of(before[name]):
                continue
            moves = moved_keys(before[name], table)
            residence = self.hosts.residence(name)
            for host, slots in guests_to_fetch(table, moves, residence, version).items():
                guests.setdefault(host, {})[name] = slots
        return guests

    def _is_cheap(self, target: Tables, missing: HostSlots, guests: HostSlots) -> bool:
        """Whether a batch reads it itself sooner than a job of its own would begin."""
        size = sum(moved_bytes(self._demand(n, t), t.hosts) for n, t in target.items())
        for of_host in guests.values():
            size += sum(
                float(self.hosts.state_bytes(name)[list(each)].sum())
                for name, each in of_host.items()
            )
        slots = sum(
            len(each)
            for wanted in (missing, guests)
            for of_host in wanted.values()
            for each in of_host.values()
        )
        return self._moving.rates().expected_s(size, slots) < _CHEAP_S

    def _fetch(self, errand: _Errand, view: View, missing: HostSlots, guests: HostSlots) -> None:
        if self._fetching is not errand:
            return  # nobody waits for it any more
        fetched = self._errands.fetch(view, _merge_host_slots(missing, guests))
        # Guests are read there once, and are still where they were.
        for host, slots_by_operator in missing.items():
            for name, slots in slots_by_operator.items():
                self.hosts.brought(name, slots, host)
        self._note_fetched(fetched)

    def _note_fetched(self, fetched: Fetched) -> None:
        self._moving.add([CatchUp(fetched.bytes, fetched.slots, fetched.seconds)])
        before = self._fetched
        self._fetched = Fetched(
            before.slots + fetched.slots,
            before.bytes + fetched.bytes,
            before.seconds + fetched.seconds,
        )


def _merge_host_slots(missing: HostSlots, guests: HostSlots) -> HostSlots:
    """The slots of both, by host and operator."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for wanted in (missing, guests):
        for host, slots_by_operator in wanted.items():
            of_host = found.setdefault(host, {})
            for name, slots in slots_by_operator.items():
                of_host[name] = tuple(sorted({*of_host.get(name, ()), *slots}))
    return found

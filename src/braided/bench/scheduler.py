"""Time of one full decision: channels, slots and cores for twelve operators, up to 8,000 cores.

A decision is what the controller does after a batch once it has measured: the queueing model gives
every operator its channels, channels go to executors, slots to channels within each executor, every
plan is weighed and put into words, and cores of hosts go to executors with the least state moved.
Elasticutor's Table 3 has 4.1, 5.2 and 5.7 ms for the last step alone, at 8, 16 and 32 hosts.

Before every decision a part of the keys changes places. `ms` is the median decision after a tenth
of them has, and mostly finds that nothing has to move; `shuffled_ms` is the median after all have,
which is as bad as it gets; `moving_ms` is the median of those, of either kind, that moved slots.
What comes before a decision, the windows, is `measure_ms` and not in any of them. `rescale_ms` is
the median where every operator gets a tenth more channels, or gives them up, whichever takes
longer, in one decision, and has no executors that would divide the work of it; `extreme_ms` is the
same from a tenth of all cores to all of them and back. No Spark is started.

A query on a cluster has hosts chosen for channels, one by one, by what state is where
(`choose_hosts`), in the thread of the batch that begins. That is `hosts_ms` after a tenth more
channels or fewer, `extreme_hosts_ms` after ten times as many or a tenth, and in none of the others.

The goals, with any of these changes: 10 ms for 12 operators with 8,192 slots each on 256 cores, and
100 ms for one with 262,144 slots on 8,000. Times are of the processor: a decision waits for nobody,
and what else runs on the machine is not its fault.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from braided.control.loop import Controller
from braided.control.measure.view import FlowSample, FlowView, OperatorSample
from braided.control.policies.balancers import Elasticutor
from braided.control.policies.model import Model
from braided.control.policy import Limits, Memory, ScalePolicy, Wish
from braided.control.routing.executors import Layout
from braided.control.routing.host_choice import ChannelDemand, Host, choose_hosts
from braided.control.routing.placement import Demand, place_cores
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable
from braided.control.settings import Settings
from braided.sim.keys import slot_of_keys, zipf_shares

__all__ = ["SchedulerCase", "measure", "run"]

_PAPER_MS = {8: 4.1, 16: 5.2, 32: 5.7}
_ROW_S = 0.001
_USED = 0.6
"""The part of all cores that the load keeps busy."""


@dataclass(frozen=True)
class SchedulerCase:
    """A cluster and what runs on it; slots and executors are per operator."""

    hosts: int
    slots: int
    operators: int = 12
    executors: int = 2
    cores: int = 8
    rounds: int = 20


def _cases(quick: bool) -> tuple[SchedulerCase, ...]:
    rounds = 5 if quick else 30
    return (
        SchedulerCase(8, 8192, executors=1, rounds=rounds),
        SchedulerCase(16, 8192, executors=2, rounds=rounds),
        SchedulerCase(32, 8192, executors=4, rounds=rounds),
        SchedulerCase(1000, 262_144, operators=1, executors=500, rounds=rounds),
        SchedulerCase(1000, 262_144, operators=12, executors=64, rounds=min(rounds, 10)),
    )


def run(quick: bool, progress: Callable[[str], None]) -> dict[str, Any]:
    sizes = [measure(case, progress) for case in _cases(quick)]
    return {"sizes": sizes, "quick": quick}


def measure(case: SchedulerCase, progress: Callable[[str], None]) -> dict[str, Any]:
    """One case: the same cluster through many decisions, after small changes and large ones."""
    small = _ControlledOperators(case).decisions(0.1)
    large = _ControlledOperators(case).decisions(1.0)
    rescaled = rescales(case, 1.0, 1.1)
    extreme = rescales(case, 0.2, 2.0)
    result = {
        "hosts": case.hosts,
        "cores": case.cores,
        "slots": case.slots,
        "operators": case.operators,
        "executors": case.operators * case.executors,
        "ms": _median(small, "ms"),
        "measure_ms": _median(small, "measure_ms"),
        "balance_ms": _median(small, "balance_ms"),
        "place_ms": _median(small, "place_ms"),
        "moved_slots": _median(small, "moved_slots"),
        "shuffled_ms": _median(large, "ms"),
        "shuffled_moved_slots": _median(large, "moved_slots"),
        "rescale_ms": _of_dearer_way(rescaled),
        "rescale_moved_slots": _median(rescaled, "moved_slots"),
        "extreme_ms": _of_dearer_way(extreme),
        "extreme_moved_slots": _median(extreme, "moved_slots"),
        "hosts_ms": _of_dearer_way(rescaled, "hosts_ms"),
        "extreme_hosts_ms": _of_dearer_way(extreme, "hosts_ms"),
        "moving_ms": _median([r for r in small + large if r["moved_slots"]], "ms"),
        "paper_ms": _PAPER_MS.get(case.hosts),
    }
    progress(
        f"{case.hosts} hosts, {case.operators} x {case.slots} slots: {result['ms']:.1f} ms, "
        f"{result['shuffled_ms']:.1f} ms after a shuffle of all keys, "
        f"{result['rescale_ms']:.1f} ms with other channels for all operators, "
        f"{result['extreme_ms']:.1f} ms with ten times as many or a tenth; hosts for these "
        f"{result['hosts_ms']:.1f} and {result['extreme_hosts_ms']:.1f} ms"
    )
    return result


def rescales(case: SchedulerCase, low: float, high: float) -> list[dict[str, float]]:
    """Decisions by which all operators go between two numbers of channels, up and down in turn;
    both are told as a part of half of all cores, shared by the operators.
    """
    return _ControlledOperators(replace(case, executors=1), _Swing(low, high)).decisions(0.1)


class _Swing:
    """More channels for everybody, and fewer, in turn."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        first = dict(memory.get("first") or {n: o.channels for n, o in flow.operators.items()})
        is_more = not memory.get("is_more", False)
        wishes = {}
        for name, count in first.items():
            few = max(1, int(self.low * count))
            channels = max(few + 1, int(self.high * count)) if is_more else few
            wishes[name] = Wish(channels, "its turn", at_once=True)
        return wishes, {"first": first, "is_more": is_more}


class _ControlledOperators:
    """Operators with zipf keys, and the controller that keeps them."""

    def __init__(self, case: SchedulerCase, scale: ScalePolicy | None = None) -> None:
        self.case = case
        self.chance = np.random.default_rng(case.hosts)
        self.keys = case.slots * 4
        self.slot_of_key = slot_of_keys(self.keys, case.slots)
        self.shares = [
            self.chance.permutation(zipf_shares(self.keys, 0.5)) for _ in range(case.operators)
        ]
        total = case.hosts * case.cores
        # Operators differ: the first has three times the load of the last.
        weight = np.linspace(1.5, 0.5, case.operators)
        self.load = weight / weight.sum() * total * _USED
        channels = max(case.executors, total // (2 * case.operators))
        layout = Layout.even(case.slots, case.executors, channels)
        self.tables: list[RoutingTable] = [layout.table()] * case.operators
        self.bytes = np.full(case.slots, 32 * 1024.0)
        self.placement: list[dict[int, int]] = []
        self.hosts = [Host(f"host-{n}", case.cores) for n in range(case.hosts)]
        self.chosen: list[tuple[str, ...]] = [("",) * channels] * case.operators
        self.residence = [Residence.nowhere(case.slots)] * case.operators
        self.controller = Controller(
            Settings(
                scale=scale or Model(target_s=0.3),
                balance=Elasticutor(theta=1.2),
                limits=Limits(channels_max=total, total_max=total),
                executors=case.executors,
                host_channels=case.cores,
            )
        )
        self.batch = 0

    def decisions(self, changed: float) -> list[dict[str, float]]:
        """Times of decisions, each after so much of the keys has changed places."""
        # The first ones bring the cluster from nothing to where it should be.
        for _ in range(6):
            self._decide()
        found = []
        for _ in range(self.case.rounds):
            self._shuffle(changed)
            found.append(self._decide())
        return found

    def _shuffle(self, part: float) -> None:
        for shares in self.shares:
            # Keys next to each other are in slots all over the place.
            count = int(part * self.keys)
            some = (self.chance.integers(self.keys) + np.arange(count)) % self.keys
            shares[some] = shares[self.chance.permutation(some)]

    def _decide(self) -> dict[str, float]:
        sample = self._sample()
        seen = time.thread_time()
        view = self.controller.measure(sample)
        begun = time.thread_time()
        self.controller.judge(view)
        cycle = self.controller.decide(view)
        balanced = time.thread_time()
        demands = self._demands(view, cycle.tables)
        asked = time.thread_time()
        cores = [self.case.cores] * self.case.hosts
        placement = place_cores(demands, self.placement, cores)
        done = time.thread_time()
        moved = 0
        for number, table in enumerate(self.tables):
            after = cycle.tables.get(f"o{number}", table)
            moved += int(np.count_nonzero(after.slots != table.slots))
            self.tables[number] = after
        self.placement = list(placement.cores)
        hosts_ms = self._choose_hosts()
        self.batch += 1
        return {
            # To put the demands together is the caller's work in any system.
            "ms": (done - asked + balanced - begun) * 1000,
            "measure_ms": (begun - seen) * 1000,
            "balance_ms": (balanced - begun) * 1000,
            "place_ms": (done - asked) * 1000,
            "moved_slots": float(moved),
            "hosts_ms": hosts_ms,
        }

    def _choose_hosts(self) -> float:
        """Gives new channels a host; how long that took. State is where it was before."""
        demands = {}
        for number, table in enumerate(self.tables):
            hosts = (*self.chosen[number], *[""] * table.channels)[: table.channels]
            demands[f"o{number}"] = ChannelDemand(
                replace(table, hosts=hosts), self.residence[number], self.bytes, 1e6
            )
        begun = time.thread_time()
        chosen = choose_hosts(demands, self.hosts)
        took_s = time.thread_time() - begun
        self.chosen = list(chosen.values())
        self.residence = [
            Residence.of_table(replace(table, hosts=hosts))
            for table, hosts in zip(self.tables, self.chosen, strict=True)
        ]
        return took_s * 1000

    def _sample(self) -> FlowSample:
        operators = []
        for number, table in enumerate(self.tables):
            busy_s = self._slot_load(number)
            rows = busy_s / _ROW_S
            operators.append(
                OperatorSample(
                    name=f"o{number}",
                    table=table,
                    rows=rows,
                    busy_s=busy_s,
                    keys=rows,
                    state_bytes=self.bytes,
                    channel_busy_s=np.bincount(
                        table.slots, weights=busy_s, minlength=table.channels
                    ).astype(np.float64),
                    rows_out=float(rows.sum()),
                )
            )
        longest_s = max(float(o.channel_busy_s.max()) for o in operators)
        return FlowSample(self.batch, 0.0, 1.0, longest_s, tuple(operators))

    def _slot_load(self, number: int) -> Loads:
        found = np.bincount(self.slot_of_key, self.shares[number], minlength=self.case.slots)
        return found.astype(np.float64) * float(self.load[number])

    def _demands(self, view: FlowView, tables: Any) -> list[Demand]:
        """What each executor should have, on the host that has most of it already."""
        demands: list[Demand] = []
        first = not self.placement
        for name in view.operators:
            layout = self.controller.layout(name)
            counts = [len(own) for own in layout.channels] if layout else [self.case.executors]
            for count in counts:
                number = len(demands)
                home = number % self.case.hosts
                if not first and self.placement[number]:
                    mine = self.placement[number]
                    home = max(mine, key=lambda i: (mine[i], -i))
                demands.append(Demand(count, home, self.bytes.sum() / len(counts), 1e6))
        if first:
            self.placement = [{} for _ in demands]
        return demands


def _of_dearer_way(rounds: list[dict[str, float]], name: str = "ms") -> float | None:
    """The median of every other decision, those that go up or those that go down."""
    return max(
        (ms for n in (0, 1) if (ms := _median(rounds[n::2], name)) is not None), default=None
    )


def _median(rounds: list[dict[str, float]], name: str) -> float | None:
    values = [each[name] for each in rounds]
    return round(statistics.median(values), 2) if values else None

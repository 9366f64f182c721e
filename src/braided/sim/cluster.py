"""A cluster that runs a flow in micro-batches, with the controller on.

Per batch, every operator's rows are drawn per slot, channels are busy as long as their slots'
rows take, and a batch is as long as its busiest channels and hosts, one operator after the other,
with an overhead, and with what moving slots costs: a host that opens a slot which it did not have
reads its state. Input that comes while a batch runs is the next batch's: overload shows as batches
that grow. Hosts may be slow, and nobody is told: what is known of their speeds, and of the cost of
moving, is measured, as a query does it. All of it is arithmetic on arrays of slots, so that
hundreds of hosts are simulated in seconds, and all chance comes from one seeded generator.

A simulator that is kinder than life approves of everything. So there may be noise in arrivals and
in the time of slots and channels, work that no slot is told of, timers in slots without rows, keys
that are too heavy for a channel, empty batches between those with rows, a sink that is as slow for
many channels as for few, more tasks at a time than there are cores, and slots that cost busy time
where they are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from braided.control.events import Decided, Event, Judged, Planned
from braided.control.hot_keys import free_slot
from braided.control.loop import Controller, Cycle
from braided.control.measure.host_speed import HostSpeeds, SlotRuns
from braided.control.measure.moving_cost import CatchUp, MovingCost
from braided.control.measure.view import FlowSample, HeavyKey, OperatorSample
from braided.control.routing.host_choice import ChannelDemand, Host, choose_hosts
from braided.control.routing.rescale import rescale
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable, moves
from braided.control.settings import Settings
from braided.sim.arrivals import Arrivals
from braided.sim.keys import KeyDistribution, slot_of_keys

__all__ = ["BatchRecord", "Cluster", "Flow", "Run", "SimFlow", "SimOperator", "simulate"]


@dataclass(frozen=True)
class Cluster:
    """Hosts with cores and a network; what a batch costs whatever is in it, and what moving costs.

    `sync_s` is what a change of the table costs who has to synchronise everybody (the policy `rc`).
    `speeds` are those of the first hosts, from `slow_from_s` to `slow_until_s`; all others are 1.
    A host runs `tasks` at a time, as many as it has cores if nobody says otherwise; those that work
    more than its cores can do take longer.
    """

    hosts: int = 4
    cores: int = 8
    bytes_per_s: float = 125e6  # 1 Gb/s
    overhead_s: float = 0.1
    channel_s: float = 0.0  # that every channel adds to it
    slot_s: float = 0.0005
    sync_s: float = 0.3
    speeds: tuple[float, ...] = ()
    slow_from_s: float = 0.0
    slow_until_s: float = float("inf")
    tasks: int | None = None
    opening_busy_s: float = 0.0  # of its channel's time, for every slot that it did not have

    @property
    def tasks_at_once(self) -> int:
        """Of a host."""
        return self.cores if self.tasks is None else self.tasks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"host-{number}" for number in range(self.hosts))

    def speeds_at(self, at_s: float) -> Loads:
        """The speed of each host then."""
        speeds = np.ones(self.hosts)
        if self.slow_from_s <= at_s < self.slow_until_s:
            speeds[: len(self.speeds)] = self.speeds
        return speeds


@dataclass(frozen=True)
class SimOperator:
    """A keyed step: seconds and bytes of a row, bytes of state of a slot, rows out per row in.

    `aside_s` and `aside_row_s` are what a channel takes that is told of no slot, and `cpu` is the
    part of its time in which it needs a core. Timers take `timer_s` of every second, in the first
    `timer_slots` slots, which have no rows. With `closing_s`, each row has a timer that the
    watermark passes with the next batch: it takes that long, and what comes of the row comes then.
    """

    name: str
    keys: KeyDistribution
    slots: int = 256
    row_s: float = 0.001
    row_bytes: float = 128.0
    slot_bytes: float = 32 * 1024.0
    selectivity: float = 1.0
    upstream: tuple[str, ...] = ()
    channels: int = 1
    aside_s: float = 0.0
    aside_row_s: float = 0.0
    cpu: float = 1.0
    timer_s: float = 0.0
    timer_slots: int = 0
    closing_s: float = 0.0


@dataclass(frozen=True)
class SimFlow:
    """What runs on the cluster, and for how long. Operators are in the order of the flow.

    With `watermark_batches`, a batch with rows is followed by one without, as Spark runs it where
    event time has moved on and no input is there. A `closed` source gives out what an interval has
    when what it gave before is done, and no sooner. A `prompt` query has no trigger: batches follow
    each other at once, and `interval_s` is how long they may take.
    """

    cluster: Cluster
    operators: tuple[SimOperator, ...]
    arrivals: Arrivals
    interval_s: float = 1.0
    duration_s: float = 600.0
    rows_max: float = float("inf")  # of a batch
    noise: float = 0.02  # of a slot's time
    arrival_noise: float = 0.0  # of a batch's input
    channel_noise: float = 0.0  # of a channel's time
    sink_rows_per_s: float = float("inf")  # whatever the channels
    sink_slow_until_s: float = float("inf")
    watermark_batches: bool = False
    closed: bool = False
    prompt: bool = False
    sized: bool = False  # whether how much a batch has to do is known before it runs
    speeds_measured: bool = True  # or every host counts as fast, whatever it shows
    naive_hosts: bool = False  # whether channels get hosts the naive way (naive-EC)
    seed: int = 0


Flow = SimFlow
"""The name under which earlier versions documented it."""


@dataclass(frozen=True)
class BatchRecord:
    """One batch. `bound_ratio` is the busiest channel's time over what is possible at best."""

    batch: int
    start_s: float
    duration_s: float
    rows: float
    backlog_rows: float
    load: float  # rows per second offered
    channels: int
    imbalance: float
    bound_ratio: float
    moved_slots: int
    moved_bytes: float
    latency_s: float
    latency_max_s: float


@dataclass(frozen=True)
class Run:
    """A whole simulation: its batches and the controller's events."""

    batches: tuple[BatchRecord, ...]
    events: tuple[Event, ...]
    tables: dict[str, RoutingTable] = field(compare=False)

    def summary(self) -> dict[str, float | int]:
        rows = np.array([b.rows for b in self.batches])
        took = np.array([b.duration_s for b in self.batches])
        latency = np.array([b.latency_s for b in self.batches])
        end_s = self.batches[-1].start_s + self.batches[-1].duration_s
        judged = [e for e in self.events if isinstance(e, Judged)]
        plans = [e for e in self.events if isinstance(e, Planned) and not e.dropped]
        return {
            "batches": len(self.batches),
            "rows_per_s": float(rows.sum() / end_s),
            "latency_s": float(np.average(latency, weights=np.maximum(rows, 1e-9))),
            "latency_p99_s": float(np.quantile([b.latency_max_s for b in self.batches], 0.99)),
            "batch_p99_s": float(np.quantile(took, 0.99)),
            "channel_s": float(sum(b.channels * max(b.duration_s, 0.0) for b in self.batches)),
            "imbalance": float(np.median([b.imbalance for b in self.batches])),
            "bound_ratio": float(np.median([b.bound_ratio for b in self.batches])),
            "moved_slots": int(sum(b.moved_slots for b in self.batches)),
            "moved_mb": float(sum(b.moved_bytes for b in self.batches) / 1e6),
            "plans": len(plans),
            "ineffective": sum(e.verdict == "ineffective" for e in judged),
            "changes": len(self.changes),
            "channels_most": max(b.channels for b in self.batches),
            "channels_last": self.batches[-1].channels,
        }

    @property
    def changes(self) -> tuple[int, ...]:
        """The batches whose number of channels was another than that of the batch before."""
        return tuple(
            after.batch
            for before, after in pairwise(self.batches)
            if after.channels != before.channels
        )

    def said(self, kind: str) -> list[Decided]:
        """The decisions of a kind that were followed."""
        return [e for e in self.events if isinstance(e, Decided) and e.kind == kind and not e.held]


def simulate(flow: SimFlow, settings: Settings) -> Run:
    """Runs the flow with a controller of those settings."""
    return _Simulation(flow, settings).run()


class _Simulation:
    def __init__(self, flow: SimFlow, settings: Settings) -> None:
        self.flow = flow
        self.controller = Controller(settings)
        self.synchronises = bool(getattr(settings.balance, "synchronises", False))
        self.chance = np.random.default_rng(flow.seed)
        self.speeds = HostSpeeds()
        self.moving = MovingCost()
        self.levels = _levels(flow.operators)
        self.rates = {o.name: 0.0 for o in flow.operators}  # bytes per second in and out
        self._shares: dict[str, tuple[int, Loads]] = {}
        self.pins: dict[str, dict[bytes, int]] = {o.name: {} for o in flow.operators}
        tables = {o.name: RoutingTable.initial(o.slots, o.channels) for o in flow.operators}
        self.residence = {o.name: Residence.nowhere(o.slots) for o in flow.operators}
        self.tables = self._placed(tables)
        # There is no state yet, so that it is where it will be.
        self.residence = {name: Residence.of_table(t) for name, t in self.tables.items()}
        self.before = dict(self.tables)
        self.open = {o.name: np.zeros(o.slots) for o in flow.operators}  # rows with a timer

    def run(self) -> Run:
        flow = self.flow
        records: list[BatchRecord] = []
        events: list[Event] = []
        now_s = taken_s = input_s = backlog = 0.0
        with_rows: BatchRecord | None = None  # the last batch that had some
        while now_s < flow.duration_s:
            # The tick after the last one that was used, or at once when that has passed.
            tick = int(taken_s / flow.interval_s + 1e-9) + 1
            start_s = max(now_s, tick * flow.interval_s)
            if flow.prompt and records:
                start_s = now_s
            is_watermark = flow.watermark_batches and bool(records) and records[-1].rows > 0
            if is_watermark:
                offered = 0.0
            elif flow.closed:
                offered = flow.arrivals.rate(start_s) * flow.interval_s
                input_s = taken_s
            else:
                offered = flow.arrivals.rows(input_s, start_s)
            if flow.arrival_noise:
                offered *= max(0.0, 1 + flow.arrival_noise * self.chance.standard_normal())
            arrived = float(self.chance.poisson(offered)) if offered > 0 else 0.0
            taken = 0.0 if is_watermark else min(backlog + arrived, flow.rows_max)
            backlog += arrived - taken
            if flow.sized and with_rows is not None and not is_watermark:
                events += self._sized(taken / max(1.0, with_rows.rows), start_s - taken_s)
            moved_s, moved_slots, moved_bytes = self._move()
            self.opening_s = self._opening_s()
            samples, busiest, bound, stages_s = self._process(taken, start_s, start_s - taken_s)
            channels = sum(table.channels for table in self.tables.values())
            overhead_s = flow.cluster.overhead_s + flow.cluster.channel_s * channels
            slow = start_s < flow.sink_slow_until_s
            sink_s = taken / flow.sink_rows_per_s if slow else 0.0
            duration_s = overhead_s + moved_s + max(stages_s, sink_s)
            end_s = start_s + duration_s
            samples[0] = _with_backlog(samples[0], backlog)
            collected_s = start_s - taken_s
            latency_s = end_s - (start_s + input_s) / 2
            sample = FlowSample(
                batch=len(records),
                interval_s=flow.interval_s,
                collected_s=collected_s,
                duration_s=duration_s,
                operators=tuple(samples),
                upstream={o.name: o.upstream for o in flow.operators},
                latency_s=duration_s + collected_s / 2,
            )
            records.append(
                BatchRecord(
                    batch=len(records),
                    start_s=start_s,
                    duration_s=duration_s,
                    rows=taken,
                    backlog_rows=backlog,
                    load=flow.arrivals.rate(start_s),
                    channels=channels,
                    imbalance=max(_imbalance(s.channel_busy_s) for s in samples),
                    bound_ratio=busiest / bound if bound > 0 else 1.0,
                    moved_slots=moved_slots,
                    moved_bytes=moved_bytes,
                    latency_s=latency_s,
                    latency_max_s=end_s - input_s,
                )
            )
            if taken > 0:
                with_rows = records[-1]
            prices = self.controller.settings.prices.measured(self.moving.rates())
            cycle = self.controller.step(sample, prices=prices if self.moving.measured else None)
            events += cycle.events
            self._repin(cycle)
            self.before = self.tables
            if cycle.tables:
                self.tables = self._placed({**self.tables, **cycle.tables})
            now_s, taken_s = end_s, start_s
            input_s = input_s if is_watermark else start_s
        return Run(tuple(records), tuple(events), self.tables)

    def _sized(self, growth: float, collected_s: float) -> list[Event]:
        """More channels for a batch that has much more to do than the one before."""
        outlook = self.controller.outlook()
        if outlook is None or self.controller.settings.scale_dry_run:
            return []
        decisions: list[Event] = []
        for name, wish in outlook.wishes(growth, collected_s).items():
            operator = outlook.view.operators[name]
            if wish.channels > self.tables[name].channels:
                more = rescale(self.tables[name], wish.channels, operator.load)
                more = replace(more, epoch=operator.table.epoch + 1)
                self.tables = self._placed({**self.tables, name: more})
                decision, lines = self.controller.foreseen(
                    outlook.view.batch + 1, outlook.view, name, wish, self.tables[name]
                )
                decisions += [decision, *lines]
        return decisions

    def _placed(self, tables: Mapping[str, RoutingTable]) -> dict[str, RoutingTable]:
        """The tables with a host for every channel."""
        cluster = self.flow.cluster
        demands = {
            o.name: ChannelDemand(
                tables[o.name],
                self.residence[o.name],
                np.full(o.slots, o.slot_bytes),
                self.rates[o.name],
                self.levels[o.name],
                o.upstream,
            )
            for o in self.flow.operators
        }
        hosts = [Host(name, cluster.cores, self.speeds.speed(name)) for name in cluster.names]
        chosen = choose_hosts(demands, hosts, self.flow.naive_hosts)
        return {
            name: table if table.hosts == chosen[name] else replace(table, hosts=chosen[name])
            for name, table in tables.items()
        }

    def _process(
        self, rows: float, at_s: float, collected_s: float
    ) -> tuple[list[OperatorSample], float, float, float]:
        """Every operator's part; the busiest channels, the best possible, and the time in all."""
        flow = self.flow
        rows_out: dict[str, float] = {}
        samples: list[OperatorSample] = []
        runs: dict[str, SlotRuns] = {}
        speed_of_host = flow.cluster.speeds_at(at_s)
        busiest = bound = stages_s = 0.0
        for operator in flow.operators:
            table = self.tables[operator.name]
            taken = sum(rows_out[up] for up in operator.upstream) if operator.upstream else rows
            shares = self._shares_of(operator, at_s)
            counted = self.chance.poisson(shares * taken).astype(np.float64)
            jitter = 1 + flow.noise * self.chance.standard_normal(operator.slots)
            full_s = counted * operator.row_s * np.maximum(jitter, 0.1)
            if operator.timer_slots:
                full_s[: operator.timer_slots] += (
                    operator.timer_s * collected_s / operator.timer_slots
                )
            done = taken
            if operator.closing_s:
                done = float(self.open[operator.name].sum())
                full_s += self.open[operator.name] * operator.closing_s
                self.open[operator.name] = counted
            hosts = self._hosts_of(table)
            pace = speed_of_host[hosts] / self._stretch(operator, hosts)
            if flow.channel_noise:
                off = flow.channel_noise * self.chance.standard_normal(table.channels)
                pace = pace / np.maximum(1 + off, 0.1)
            busy_s = full_s / pace[table.slots] + self.opening_s[operator.name]
            runs[operator.name] = SlotRuns(counted, busy_s, Residence.of_table(table))
            self.rates[operator.name] = (
                (taken + done * operator.selectivity) * operator.row_bytes / max(collected_s, 1e-9)
            )
            of_channels = np.bincount(table.slots, weights=busy_s, minlength=table.channels).astype(
                np.float64
            )
            aside_s = operator.aside_s + operator.aside_row_s * np.bincount(
                table.slots, weights=counted, minlength=table.channels
            )
            of_channels += aside_s / pace
            rows_out[operator.name] = done * operator.selectivity
            samples.append(
                OperatorSample(
                    name=operator.name,
                    table=table,
                    rows=counted,
                    busy_s=busy_s,
                    keys=counted,
                    state_bytes=np.full(operator.slots, operator.slot_bytes),
                    channel_busy_s=of_channels,
                    rows_out=rows_out[operator.name],
                    heavy=self._heavy(operator, taken, at_s),
                    pinned=frozenset(self.pins[operator.name]),
                    residence=runs[operator.name].ran_on,
                    cpu_s=operator.cpu * float((of_channels * pace).sum()),
                )
            )
            work_s = float(full_s.sum())
            hottest_s = operator.keys.hottest(operator.keys.version(at_s)) * work_s
            busiest += float(of_channels.max())
            bound += max(work_s / float(speed_of_host[hosts].sum()), hottest_s)
            stages_s += self._stage_s(operator, table, counted, of_channels)
        if flow.speeds_measured:
            self.speeds.add(runs)
            known = [self.speeds.of_channels(s.table.hosts) for s in samples]
            samples = [
                s if speeds is None else replace(s, speeds=speeds)
                for s, speeds in zip(samples, known, strict=True)
            ]
        return samples, busiest, bound, stages_s

    def _stage_s(
        self, operator: SimOperator, table: RoutingTable, counted: Loads, of_channels: Loads
    ) -> float:
        """As long as the busiest channel, the fullest host, and the fullest network card."""
        cluster = self.flow.cluster
        hosts = self._hosts_of(table)
        of_hosts = np.bincount(hosts, weights=of_channels, minlength=cluster.hosts)
        rows = np.bincount(hosts[table.slots], weights=counted, minlength=cluster.hosts)
        return max(
            float(of_channels.max()),
            float(of_hosts.max()) / cluster.tasks_at_once,
            float(rows.max()) * operator.row_bytes / cluster.bytes_per_s,
        )

    def _stretch(self, operator: SimOperator, hosts: npt.NDArray[np.int64]) -> Loads:
        """How much longer than alone each channel takes, where cores are short."""
        cluster = self.flow.cluster
        together = np.minimum(np.bincount(hosts, minlength=cluster.hosts), cluster.tasks_at_once)
        wanted: Loads = together * operator.cpu / cluster.cores
        return (1 - operator.cpu + operator.cpu * np.maximum(1.0, wanted))[hosts]

    def _opening_s(self) -> dict[str, Loads]:
        """What slots cost their channels that did not have them."""
        opening = {}
        for operator in self.flow.operators:
            seconds = np.zeros(operator.slots)
            moved = moves(self.before[operator.name], self.tables[operator.name])
            seconds[moved] = self.flow.cluster.opening_busy_s
            opening[operator.name] = seconds
        return opening

    def _heavy(self, operator: SimOperator, rows: float, at_s: float) -> tuple[HeavyKey, ...]:
        """The heavy keys that tasks would have counted."""
        counted = []
        for number, share in operator.keys.heavy(operator.keys.version(at_s)):
            key = _key(number)
            slot = self.pins[operator.name].get(key, _slot_of(number, operator.slots))
            counted.append(HeavyKey(key, slot, *[share * rows] * 3))
        return tuple(counted)

    def _repin(self, cycle: Cycle) -> None:
        """Heavy keys go to slots of their own, one at a time, and come back."""
        for operator in self.flow.operators:
            name, pins = operator.name, self.pins[operator.name]
            for key in cycle.unpin.get(name, ())[:1]:
                del pins[key]
                self._shares.pop(name, None)
            view = cycle.view.operators[name]
            for key in cycle.pin.get(name, ())[:1]:
                donor = next(each.slot for each in view.heavy if each.key == key)
                pins[key] = free_slot(view, donor)
                self._shares.pop(name, None)

    def _move(self) -> tuple[float, int, float]:
        """What the change of tables costs: seconds, slots, bytes that hosts read."""
        cluster = self.flow.cluster
        seconds, slots, bytes_moved = 0.0, 0, 0.0
        for operator in self.flow.operators:
            old, new = self.before[operator.name], self.tables[operator.name]
            if old is new:
                continue
            moved = moves(old, new)
            hosts = self._hosts_of(new)
            is_read = hosts[new.slots] != self.residence[operator.name].among(cluster.names)
            read = np.bincount(hosts[new.slots[is_read]], minlength=cluster.hosts)
            is_opened = is_read.copy()
            is_opened[moved] = True
            opened = np.zeros(cluster.hosts)
            of_channels = np.bincount(new.slots[is_opened], minlength=new.channels)
            np.maximum.at(opened, hosts, of_channels)
            waits = read * operator.slot_bytes / cluster.bytes_per_s + opened * cluster.slot_s
            self.moving.add(
                CatchUp(float(read[h]) * operator.slot_bytes, int(opened[h]), float(waits[h]))
                for h in np.flatnonzero(opened).tolist()
            )
            seconds += float(waits.max())
            seconds += cluster.sync_s if self.synchronises else 0.0
            slots += moved.size
            bytes_moved += float(np.count_nonzero(is_read)) * operator.slot_bytes
            self.residence[operator.name] = Residence.of_table(new)
        return seconds, slots, bytes_moved

    def _hosts_of(self, table: RoutingTable) -> npt.NDArray[np.int64]:
        """The number of each channel's host."""
        number = {name: n for n, name in enumerate(self.flow.cluster.names)}
        return np.array([number[name] for name in table.hosts], dtype=np.int64)

    def _shares_of(self, operator: SimOperator, at_s: float) -> Loads:
        version = operator.keys.version(at_s)
        cached = self._shares.get(operator.name)
        if cached is None or cached[0] != version:
            shares = operator.keys.shares(version, operator.slots)
            for number, share in operator.keys.heavy(version):
                slot = self.pins[operator.name].get(_key(number))
                if slot is not None:
                    shares[_slot_of(number, operator.slots)] -= share
                    shares[slot] += share
            if operator.timer_slots:
                shares[: operator.timer_slots] = 0.0
                shares /= shares.sum()
            cached = (version, np.maximum(shares, 0.0))
            self._shares[operator.name] = cached
        return cached[1]


def _key(number: int) -> bytes:
    return b"key-%d" % number


def _slot_of(number: int, slots: int) -> int:
    return int(slot_of_keys(number + 1, slots)[number])


def _levels(operators: tuple[SimOperator, ...]) -> dict[str, int]:
    """How many operators rows have passed before each: one after the other, stage by stage."""
    levels: dict[str, int] = {}
    for operator in operators:
        levels[operator.name] = 1 + max((levels[up] for up in operator.upstream), default=-1)
    return levels


def _imbalance(busy_s: Loads) -> float:
    mean = float(busy_s.mean())
    return float(busy_s.max()) / mean if mean > 0 else 1.0


def _with_backlog(sample: OperatorSample, rows: float) -> OperatorSample:
    return replace(sample, backlog_rows=rows)

"""What is known of a flow: the sample that a batch gives, and the view that policies decide on.

A *sample* is what one batch showed, as the engine or the simulator reports it. A *view* is made of
samples by windows: it speaks of the next batch and is all that a policy sees.

Rates are rows per second. A *load* is busy seconds per second, so that the loads of an operator's
slots add up to the number of channels that would be busy all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from braided.control.measure.arrival_rate import ArrivalRate
from braided.control.routing.executors import Layout
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable

__all__ = [
    "FlowSample",
    "FlowView",
    "HeavyKey",
    "KeyLoad",
    "OperatorSample",
    "OperatorView",
    "congestion",
]


@dataclass(frozen=True)
class HeavyKey:
    """A key with many of a channel's rows: how many in a batch, and between which bounds.

    Whoever counts, as tasks do, has the count for both bounds.
    """

    key: bytes
    slot: int
    rows: float
    rows_min: float
    rows_max: float


@dataclass(frozen=True)
class KeyLoad:
    """A heavy key in a view: busy seconds per second, with the bounds of the estimate."""

    key: bytes
    slot: int
    load: float
    load_min: float
    load_max: float
    shares: int = 1
    """How many slots its rows are dealt out to."""


@dataclass(frozen=True, eq=False)
class OperatorSample:
    """One operator in one batch; arrays have one entry per slot, `channel_busy_s` per channel."""

    name: str
    table: RoutingTable
    rows: Loads
    busy_s: Loads
    keys: Loads
    state_bytes: Loads
    channel_busy_s: Loads
    rows_out: float = 0.0
    backlog_rows: float = 0.0  # taken in by nobody yet, or carried
    heavy: tuple[HeavyKey, ...] = ()
    pinned: frozenset[bytes] = frozenset()
    can_split: bool = False  # whether rows of a key may be dealt out to several slots
    speeds: Loads | None = None  # of the hosts of channels, the fastest being 1; None: all are
    residence: Residence | None = None  # of slots, after the batch; None: where channels should run
    cpu_s: float | None = None  # of all channels together; None where nobody measured it


@dataclass(frozen=True, eq=False)
class FlowSample:
    """One batch: how long it took, how long its input had been collected, and its operators.

    `interval_s` is the trigger's interval, or what stands in for it: the time that a batch may
    take without input having to wait. `upstream` names the operators that feed an operator; the
    source feeds one that is not in it.
    """

    batch: int
    interval_s: float
    collected_s: float
    duration_s: float
    operators: tuple[OperatorSample, ...]
    upstream: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    latency_s: float | None = None


@dataclass(frozen=True, eq=False)
class OperatorView:
    """One operator as the window sees it."""

    name: str
    table: RoutingTable
    load: Loads  # per slot, predicted, on a host of full speed
    keys: Loads
    state_bytes: Loads
    arrival_rate: float
    throughput: float  # rows per second of batch time, or of the interval if that is longer
    true_rate: float  # rows that a channel, on average, would process in a second of work
    selectivity: float  # rows out per row in
    backlog_rows: float
    congestion: float
    channel_load: Loads  # of the last batches, measured
    heavy: tuple[KeyLoad, ...] = ()
    pinned: frozenset[bytes] = frozenset()
    can_split: bool = False
    layout: Layout | None = None  # its executors, where it has more than one
    speeds: Loads | None = None  # per channel; None where all are equally fast
    residence: Residence | None = None
    arrivals: ArrivalRate | None = None  # what `arrival_rate` is by; None where nobody knows
    rows: float | None = None  # of the last batch
    late_rows: float = 0.0  # of the backlog, those that came in while the batch was late
    timer_load: float = 0.0  # of the load, what slots without rows have
    cpu_share: float | None = None  # of a channel's time in which it needs a core
    share: Loads | None = None  # of its rows, per slot; None where nobody counted
    anchor: Loads | None = None  # what a slot would cost more, in s per s, on another host
    pauses: bool = False  # whether it had no rows, as between two that have some: nothing is new

    @property
    def rate_error(self) -> float:
        """How far off the arrival rate may be by chance, as a share of it: all of it at most."""
        return 0.0 if self.arrivals is None else min(1.0, self.arrivals.error)

    @property
    def channels(self) -> int:
        return self.table.channels

    def speeds_of(self, channels: int) -> Loads | None:
        """The speeds of so many channels; of new ones nothing is known, and they count as fast."""
        if self.speeds is None:
            return None
        more = max(0, channels - self.speeds.size)
        return np.concatenate([self.speeds[:channels], np.ones(more)])

    @property
    def total_load(self) -> float:
        return float(self.load.sum())


@dataclass(frozen=True, eq=False)
class FlowView:
    """The whole flow, operators in the order in which rows pass them."""

    batch: int
    interval_s: float
    overhead_s: float  # of a batch, whatever its rows
    latency_s: float | None
    operators: Mapping[str, OperatorView]
    upstream: Mapping[str, tuple[str, ...]]
    overhead_known_s: float | None = None  # of it, whatever comes in; None: all of it
    channel_s: float = 0.0  # what one more channel, of any operator, adds to the overhead
    channel_s_known: bool = True  # or assumed, as long as there was one number of channels only
    collected_s: float = 0.0  # how long the input of the last batch that had some was collected
    latency_p95_s: float | None = None  # that 95 of 100 rows of the last minute had at most
    latency_p95_in_time_s: float | None = None  # the same since channels changed or one was late
    is_late: bool = False  # whether the last batch took longer than its interval
    drains: bool = False  # whether it was late because of those before, and less late than they
    pause_s: float = 0.0  # in which batches since the last one with input were collected
    paused_work_s: float = 0.0  # of the busiest channels, in the pause before that batch
    input_batch: int | None = None  # the one before the pause, if there is one; None: no input

    @property
    def period_s(self) -> float:
        """From one batch to the next: the interval, or longer where batches take longer."""
        return max(self.interval_s, self.collected_s)

    @property
    def overhead_fills_interval(self) -> bool:
        """Whether a batch takes all its time for what channels do not shorten."""
        return 0 < self.interval_s <= self.overhead_s

    @property
    def overhead_unexplained_s(self) -> float:
        """Of the overhead, what may be the doing of rows, in a sink say."""
        known_s = self.overhead_s if self.overhead_known_s is None else self.overhead_known_s
        return max(0.0, self.overhead_s - known_s)

    @property
    def overhead_is_of_channels(self) -> bool:
        """Whether most of the overhead came with channels, as far as has been seen: of their own,
        or because what comes after them makes up for what they save.
        """
        channels = sum(operator.channels for operator in self.operators.values())
        return self.channel_s_known and self.channel_s * channels > self.overhead_s / 2

    @cached_property
    def work(self) -> Mapping[str, float]:
        """The load of each operator, all its slots together."""
        return {name: operator.total_load for name, operator in self.operators.items()}

    def fed_by_source(self, name: str) -> bool:
        return not self.upstream.get(name)


def congestion(
    work_s: float, interval_s: float, collected_s: float = 0.0, blame: float = 1.0
) -> float:
    """The share of the work at hand that is not done in the time that it may take, in [0, 1).

    The work of a batch is as long as its busiest channels are, not the average ones, so that one
    hot channel shows; what waits already is work at hand too. It may take the interval. A batch
    that had to collect for longer, because those before it were late, may take half as long as
    that: then the delay is worked off. This is the share of time that input waits, which the
    splitter of Gedik et al. measures as the time it is blocked. `blame` is how much of it is this
    operator's doing: 1 for the one that takes longest.
    """
    may_take_s = max(interval_s, collected_s / 2)
    if interval_s <= 0 or work_s <= may_take_s:
        return 0.0
    return blame * (1.0 - may_take_s / work_s)

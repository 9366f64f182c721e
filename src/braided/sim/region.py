"""A parallel region, as Gedik et al. put it to the test (appendix B): a splitter and N channels.

The source offers rows at some rate. What the region does not take is not kept; it is the share of
the load that was not handled. A source that is held up is always behind and sends as fast as it
can, so the splitter is blocked most of the time as soon as the load is above the capacity, however
little, and hardly ever below: that is what makes a threshold between 0.01 and 0.3 do. There is a
floor of noise in the congestion index, without which a threshold of 0 would do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import Limits, Memory, ScalePolicy
from braided.control.routing.table import RoutingTable
from braided.sim.arrivals import Arrivals

__all__ = ["Region", "RegionPeriod", "Settling", "run_region", "settling", "tracking", "turns"]

_SLOTS = 64
_NAME = "region"


@dataclass(frozen=True)
class Region:
    """Rates in rows per second; `remote` is what comes after the region and can't be scaled."""

    arrivals: Arrivals
    per_channel: float = 1000.0
    remote: float = float("inf")
    noise: float = 0.0  # of throughput, relative
    floor: float = 0.005  # of the congestion index
    source_max: float = 25_000.0
    channels_max: int = 32
    period_s: float = 5.0
    seed: int = 0

    def capacity(self, channels: int) -> float:
        return min(channels * self.per_channel, self.remote)


@dataclass(frozen=True)
class RegionPeriod:
    """One adaptation period: what was offered and handled on how many channels."""

    at_s: float
    load: float
    channels: int
    handled: float
    congestion: float
    needed: int  # the fewest channels of any level that handle the load, or all that can be


def run_region(
    region: Region, policy: ScalePolicy, duration_s: float, channels: int = 1
) -> list[RegionPeriod]:
    """Lets a scale policy run a region."""
    chance = np.random.default_rng(region.seed)
    limits = Limits(channels_max=region.channels_max)
    memory: Memory = {}
    periods: list[RegionPeriod] = []
    for number in range(int(duration_s / region.period_s)):
        at_s = number * region.period_s
        load = region.arrivals.rows(at_s, at_s + region.period_s) / region.period_s
        capacity = region.capacity(channels)
        handled = min(load, capacity)
        index = 1 - capacity / region.source_max if load > capacity else 0.0
        jitter, floor = chance.standard_normal(2).tolist()
        throughput = max(0.0, handled * (1 + region.noise * jitter))
        index = min(1.0, max(0.0, index) + abs(floor) * region.floor)
        needed = _needed(region, load, limits.levels(_SLOTS))
        periods.append(RegionPeriod(at_s, load, channels, handled, index, needed))
        wishes, memory = policy.scale(_view(number, channels, throughput, index), limits, memory)
        if _NAME in wishes:
            channels = limits.clamp(wishes[_NAME].channels, _SLOTS)
    return periods


@dataclass(frozen=True)
class Settling:
    """The four properties after one change of load.

    `periods` is how long it took until the channels were right and stayed so, but for looks: one
    period on another level, and back to rest. `levels` is how far they had to go. `overshoot` is by
    how many channels they went beyond where they came from and where they had to go; `oscillations`
    how often they changed after settling, looks not counted.
    """

    at_s: float
    levels: int
    periods: int
    overshoot: int
    oscillations: int


def settling(
    periods: Sequence[RegionPeriod], changes_s: Sequence[float], levels: Sequence[int]
) -> list[Settling]:
    """How each change of load was met, for loads that are constant between changes."""
    ends = [*changes_s[1:], float("inf")]
    settlings = []
    for start_s, end_s in zip(changes_s, ends, strict=True):
        part = [p for p in periods if start_s <= p.at_s < end_s]
        if not part:
            continue
        needed = part[0].needed
        used = _without_looks([p.channels for p in part])
        wrong = [n for n, channels in enumerate(used) if channels != needed]
        settled = wrong[-1] + 1 if wrong else 0
        first = next((n for n, channels in enumerate(used) if channels == needed), len(used))
        settlings.append(
            Settling(
                at_s=start_s,
                levels=abs(list(levels).index(needed) - list(levels).index(used[0])),
                periods=settled,
                overshoot=max(0, max(used) - max(used[0], needed)),
                oscillations=sum(a != b for a, b in pairwise(used[first:])),
            )
        )
    return settlings


def tracking(periods: Sequence[RegionPeriod], levels: Sequence[int]) -> Settling:
    """How a load was followed that changes all the time.

    Settled is who is on the level that is needed, or next to it; overshoot is what goes beyond all
    that was ever needed; oscillations are turns that the load did not make.
    """
    level = {channels: n for n, channels in enumerate(levels)}
    used = _without_looks([p.channels for p in periods])
    needed = [p.needed for p in periods]
    off = [abs(level[a] - level[b]) > 1 for a, b in zip(used, needed, strict=True)]
    settled = next((n for n, is_off in enumerate(off) if not is_off), len(off))
    return Settling(
        at_s=0.0,
        levels=abs(level[needed[settled]] - level[used[0]]),
        periods=settled if not any(off[settled:]) else len(off) - off[::-1].index(True),
        overshoot=max(0, max(used) - max(needed)),
        oscillations=max(0, turns(used[settled:]) - turns(needed[settled:])),
    )


def turns(series: Sequence[int]) -> int:
    """How often a series goes down after it went up, or up after it went down."""
    steps = [b - a for a, b in pairwise(series) if a != b]
    return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


def _without_looks(channels: Sequence[int]) -> list[int]:
    """The series with every look replaced by what was around it: one period elsewhere, then rest.

    Who looks again right after has not come to rest.
    """
    calm = list(channels)
    for n in range(1, len(calm) - 1):
        before, *after = calm[n - 1], *channels[n + 1 : n + 3]
        if all(channel == before for channel in after):
            calm[n] = before
    return calm


def _needed(region: Region, load: float, levels: Sequence[int]) -> int:
    could = [n for n in levels if region.capacity(n) >= min(load, region.capacity(levels[-1]))]
    return could[0]


def _view(number: int, channels: int, throughput: float, index: float) -> FlowView:
    nothing = np.zeros(_SLOTS)
    operator = OperatorView(
        name=_NAME,
        table=RoutingTable.initial(_SLOTS, channels),
        load=nothing,
        keys=nothing,
        state_bytes=nothing,
        arrival_rate=throughput,
        throughput=throughput,
        true_rate=0.0,
        selectivity=1.0,
        backlog_rows=0.0,
        congestion=index,
        channel_load=np.zeros(channels),
    )
    return FlowView(number, 1.0, 0.0, None, {_NAME: operator}, {})

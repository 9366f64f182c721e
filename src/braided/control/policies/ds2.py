"""DS2: true rates through the flow in one pass, and the channels they ask for.

What an operator was seen to process says little: a slow one upstream hides the load, a slow one
downstream holds it back. What counts is the rate at the source, what each operator makes of a row
(selectivity), and the *true* rate of a channel: rows per second of work, waiting not counted. From
these one pass in the order of the flow gives every operator's demand and its channels,

    kⱼ = ⌈ wⱼ / utilisation ⌉,   wⱼ = demandⱼ / true rateⱼ.

What waits already is demand as well: it should be gone within `catch_up_s`. What came in while a
batch was late counts only up to a fifth of the rate: it is gone soon in any case, and who takes
channels for it has too many a moment later.

DS2 has operators that run all at once. In a micro-batch they run one after the other, and it is
the sum of their times that has to fit the interval, less the overhead: Σ wⱼ/kⱼ ≤ B. The fewest
channels for that are those in proportion to √wⱼ,

    kⱼ = ⌈ √wⱼ · Σᵢ √wᵢ / B ⌉,   B = utilisation · (1 - overhead/interval),

which for one operator is DS2's own number. The overhead is that of all the kⱼ together, because it
grows with them (`control/measure/overhead.py`). So where no number makes a batch fit its interval,
there is one that makes it as short as can be, and the fewest channels that come near to that are
enough. A batch that takes longer than its interval has collected for longer too, and takes
overhead/(1 - Σ wⱼ/kⱼ) intervals in the end.

Rates differ from batch to batch, and are only known so well (`rate_error`). Whoever can do the work
in time, if with less room than `utilisation` asks for, is left as it is, and so is whoever has what
a rate asks for that may as well be the true one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import Limits, Memory, Wish

__all__ = ["CATCH_UP_S", "UTILISATION", "Ds2", "Off", "demands", "settle"]

CATCH_UP_S = 10.0
UTILISATION = 0.8
_SURE = 0.08
"""How well the rate has to be known before a few channels are given up."""
_LATE_MOST = 0.2
"""Of the rate: what late input adds to the demand at most."""
_FULL = 0.95
"""How busy channels may be before there have to be more of them."""
_NEAR = 1.1
"""Channels that make a late batch no shorter than this are not worth having."""
_LEAST_OVERHEAD = 0.05
"""Of an interval: without any, whatever can be done at all would be done in no time."""
_UNEVEN = 1.1
"""What the busiest channel has over the average by chance."""


def demands(flow: FlowView, catch_up_s: float = CATCH_UP_S) -> dict[str, float]:
    """The rows per second that each operator has to take in for the source's rate to be kept up."""
    rates: dict[str, float] = {}
    for name, operator in flow.operators.items():
        above = flow.upstream.get(name, ())
        rate = operator.arrival_rate
        if above:
            rate = sum(rates[up] * flow.operators[up].selectivity for up in above)
        late = min(operator.late_rows / catch_up_s, _LATE_MOST * rate)
        rates[name] = rate + late + (operator.backlog_rows - operator.late_rows) / catch_up_s
    return rates


def settle(now: int, fewest: int, wanted: int, most: int, error: float) -> int:
    """The channels to have, where the rate is known so well: those that are wanted by it, by the
    least that it may be, and by the most. Some are given up once, when it is known well, and not
    one after the other while it is found out.
    """
    if fewest > now:
        return wanted
    if most < now and (error <= _SURE or 2 * most <= now):
        return most
    return now


@dataclass(frozen=True)
class Ds2:
    """The policy `ds2`; `utilisation` is how busy a channel should be, for chance and skew."""

    utilisation: float = UTILISATION
    catch_up_s: float = CATCH_UP_S
    by_rate: ClassVar[bool] = True

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        demand = demands(flow, self.catch_up_s)
        # Where nothing was processed, nothing is known.
        work = {
            name: operator.timer_load
            + (demand[name] / operator.true_rate if operator.true_rate > 0 else 0.0)
            for name, operator in flow.operators.items()
            if operator.true_rate > 0 or operator.timer_load > 0
        }
        if not work:
            return {}, memory
        fewest, wanted, most = (
            self._channels(
                flow,
                limits,
                {n: w * (1 + far * flow.operators[n].rate_error) for n, w in work.items()},
            )
            for far in (-1.0, 0.0, 2.0)
        )
        wishes = {}
        for name in work:
            operator = flow.operators[name]
            channels = settle(
                operator.channels, fewest[name], wanted[name], most[name], operator.rate_error
            )
            wishes[name] = Wish(channels, _reason(operator, demand[name]))
        return wishes, memory

    def _channels(
        self, flow: FlowView, limits: Limits, work: Mapping[str, float]
    ) -> Mapping[str, int]:
        if flow.interval_s <= 0:
            return {name: _whole(w / self.utilisation) for name, w in work.items()}
        now = {name: flow.operators[name].channels for name in work}
        in_all = sum(now.values())

        def taken(channels: Mapping[str, int]) -> tuple[float, float]:
            return _share(work, channels), _overhead_s(flow, in_all, channels)

        is_enough = _is_enough(flow, *taken(now), _FULL)
        tried: list[tuple[float, Mapping[str, int]]] = []
        for channels in _candidates(flow, limits, work):
            share, overhead_s = taken(channels)
            if _is_enough(flow, share, overhead_s, self.utilisation):
                more = any(channels[name] > now[name] for name in work)
                return now if more and is_enough else channels
            tried.append((_late_s(flow, share, overhead_s), channels))
        if is_enough:
            return now
        shortest_s = min(took_s for took_s, _ in tried)
        if math.isinf(shortest_s):
            return tried[-1][1]
        return next(channels for took_s, channels in tried if took_s <= _NEAR * shortest_s)


def _is_enough(flow: FlowView, share: float, overhead_s: float, utilisation: float) -> bool:
    """Whether the work fits the interval, less the overhead."""
    return share <= utilisation * (1 - overhead_s / flow.interval_s) + 1e-9


def _candidates(
    flow: FlowView, limits: Limits, work: Mapping[str, float]
) -> Iterator[dict[str, int]]:
    """From the fewest channels to the most, divided as is best between the operators."""
    least, most = {}, {}
    for name in work:
        operator = flow.operators[name]
        own, slots = limits.of(name, operator.channels), operator.table.slots.size
        least[name], most[name] = own.clamp(1, slots), own.clamp(own.channels_max, slots)
    heaviest = max(work, key=lambda name: (most[name] > least[name], work[name]))
    roots = {name: math.sqrt(w) for name, w in work.items()}
    for count in range(1, most[heaviest] + 1):
        part = count / roots[heaviest] if roots[heaviest] > 0 else 0.0
        yield {
            name: min(most[name], max(least[name], _whole(root * part)))
            for name, root in roots.items()
        }


def _reason(operator: OperatorView, demand: float) -> str:
    timers = f", timers take {operator.timer_load:.1f} channels" if operator.timer_load else ""
    return (
        f"{demand:,.0f} rows/s to take in, {operator.true_rate:,.0f} rows/s of work per "
        f"channel{timers}"
    )


def _whole(channels: float) -> int:
    return max(1, math.ceil(channels - 1e-9))


def _share(work: Mapping[str, float], channels: Mapping[str, int]) -> float:
    """The share of the time that channels work, one operator after the other."""
    return sum(w / channels[name] for name, w in work.items())


def _overhead_s(flow: FlowView, now: int, channels: Mapping[str, int]) -> float:
    """The overhead of so many channels, where there are so many now in all."""
    more = sum(channels.values()) - now
    if not flow.channel_s_known:
        # Nobody knows; who takes it for a line that goes on and on takes channels to make up for
        # it, and finds out with the next batch that there was no need.
        more = min(more, now)
    return max(0.0, flow.overhead_s + more * flow.channel_s)


def _late_s(flow: FlowView, share: float, overhead_s: float) -> float:
    """How long batches get that do not fit their interval; for ever, if there is no end to it."""
    left = 1 - _UNEVEN * share
    return max(overhead_s, _LEAST_OVERHEAD * flow.interval_s) / left if left > 0 else math.inf


@dataclass(frozen=True)
class Off:
    """The policy `off`: channels stay as they are, or as a user asks."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {}, memory

"""DS2: true rates through the flow in one pass, and the channels they ask for.

What an operator was seen to process says little: a slow one upstream hides the load, a slow one
downstream holds it back. What counts is the rate at the source, what each operator makes of a row
(selectivity), and the *true* rate of a channel: rows per second of work, waiting not counted. From
these one pass in the order of the flow gives every operator's demand and its channels,

    kⱼ = ⌈ wⱼ / utilisation ⌉,   wⱼ = demandⱼ / true rateⱼ.

What waits already is demand as well: it should be gone within `catch_up_s`.

DS2 has operators that run all at once. In a micro-batch they run one after the other, and it is
the sum of their times that has to fit the interval, less the overhead: Σ wⱼ/kⱼ ≤ B. The fewest
channels for that are those in proportion to √wⱼ,

    kⱼ = ⌈ √wⱼ · Σᵢ √wᵢ / B ⌉,   B = utilisation · (1 - overhead/interval),

which for one operator is DS2's own number. The overhead is that of all the kⱼ together, because it
grows with them (`control/measure/overhead.py`). So where no number makes a batch fit its interval,
there is one that makes it as short as can be, and the fewest channels that come near to that are
enough. A batch that takes longer than its interval has collected for longer too, and takes
overhead/(1 - Σ wⱼ/kⱼ) intervals in the end.

Rates differ a little from batch to batch. Whoever can do the work in time, if with less room than
`utilisation` asks for, is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from braided.control.measure.view import FlowView
from braided.control.policy import Limits, Memory, Wish

__all__ = ["Ds2", "Off", "demands"]

CATCH_UP_S = 10.0
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
        waiting = operator.backlog_rows / catch_up_s
        above = flow.upstream.get(name, ())
        if not above:
            rates[name] = operator.arrival_rate + waiting
        else:
            rates[name] = waiting + sum(rates[up] * flow.operators[up].selectivity for up in above)
    return rates


@dataclass(frozen=True)
class Ds2:
    """The policy `ds2`; `utilisation` is how busy a channel should be, for chance and skew."""

    utilisation: float = 0.8
    catch_up_s: float = CATCH_UP_S
    by_rate: ClassVar[bool] = True

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        demand = demands(flow, self.catch_up_s)
        # Where nothing was processed, nothing is known.
        work = {
            name: demand[name] / operator.true_rate
            for name, operator in flow.operators.items()
            if operator.true_rate > 0
        }
        if not work:
            return {}, memory
        channels = self._channels(flow, limits, work)
        wishes = {
            name: Wish(
                channels[name],
                f"{demand[name]:,.0f} rows/s to take in, {flow.operators[name].true_rate:,.0f} "
                "rows/s of work per channel",
            )
            for name in work
        }
        return wishes, memory

    def _channels(
        self, flow: FlowView, limits: Limits, work: Mapping[str, float]
    ) -> Mapping[str, int]:
        if flow.interval_s <= 0:
            return {name: _whole(w / self.utilisation) for name, w in work.items()}
        now = {name: flow.operators[name].channels for name in work}
        is_enough = self._is_enough(flow, work, now, _FULL)
        tried: list[tuple[float, Mapping[str, int]]] = []
        for channels in _candidates(flow, limits, work):
            if self._is_enough(flow, work, channels, self.utilisation):
                more = any(channels[name] > now[name] for name in work)
                return now if more and is_enough else channels
            tried.append((_late_s(flow, work, channels), channels))
        if is_enough:
            return now
        shortest_s = min(took_s for took_s, _ in tried)
        if math.isinf(shortest_s):
            return tried[-1][1]
        return next(channels for took_s, channels in tried if took_s <= _NEAR * shortest_s)

    def _is_enough(
        self,
        flow: FlowView,
        work: Mapping[str, float],
        channels: Mapping[str, int],
        utilisation: float,
    ) -> bool:
        """Whether the work fits the interval, less the overhead of so many channels."""
        room = 1 - _overhead_s(flow, channels) / flow.interval_s
        return _share(work, channels) <= utilisation * room + 1e-9


def _candidates(
    flow: FlowView, limits: Limits, work: Mapping[str, float]
) -> Iterator[dict[str, int]]:
    """From the fewest channels to the most, divided as is best between the operators."""
    most = {
        name: limits.clamp(limits.channels_max, flow.operators[name].table.slots.size)
        for name in work
    }
    heaviest = max(work, key=lambda name: work[name])
    for count in range(1, most[heaviest] + 1):
        part = count / math.sqrt(work[heaviest]) if work[heaviest] > 0 else 0.0
        yield {name: min(most[name], _whole(math.sqrt(w) * part)) for name, w in work.items()}


def _whole(channels: float) -> int:
    return max(1, math.ceil(channels - 1e-9))


def _share(work: Mapping[str, float], channels: Mapping[str, int]) -> float:
    """The share of the time that channels work, one operator after the other."""
    return sum(w / channels[name] for name, w in work.items())


def _overhead_s(flow: FlowView, channels: Mapping[str, int]) -> float:
    more = sum(count - flow.operators[name].channels for name, count in channels.items())
    return max(0.0, flow.overhead_s + more * flow.channel_s)


def _late_s(flow: FlowView, work: Mapping[str, float], channels: Mapping[str, int]) -> float:
    """How long batches get that do not fit their interval; for ever, if there is no end to it."""
    left = 1 - _UNEVEN * _share(work, channels)
    overhead_s = max(_overhead_s(flow, channels), _LEAST_OVERHEAD * flow.interval_s)
    return overhead_s / left if left > 0 else math.inf


@dataclass(frozen=True)
class Off:
    """The policy `off`: channels stay as they are, or as a user asks."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {}, memory

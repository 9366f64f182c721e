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

which for one operator is DS2's own number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from braided.control.measurement import FlowView
from braided.control.policy import Limits, Memory, Wish

__all__ = ["Ds2", "Off", "demands"]

CATCH_UP_S = 10.0
_LEAST_BUDGET = 0.25
"""An overhead that leaves next to nothing of an interval is not made up for by channels."""


def demands(flow: FlowView, catch_up_s: float = CATCH_UP_S) -> dict[str, float]:
    """The rows per second that each operator has to take in for the source's rate to be kept up."""
    found: dict[str, float] = {}
    for name, operator in flow.operators.items():
        waiting = operator.backlog_rows / catch_up_s
        above = flow.upstream.get(name, ())
        if not above:
            found[name] = operator.arrival_rate + waiting
        else:
            found[name] = waiting + sum(found[up] * flow.operators[up].selectivity for up in above)
    return found


@dataclass(frozen=True)
class Ds2:
    """The policy `ds2`; `utilisation` is how busy a channel should be, for chance and skew."""

    utilisation: float = 0.8
    catch_up_s: float = CATCH_UP_S

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
        budget = self._budget(flow)
        roots = sum(math.sqrt(w) for w in work.values())
        wishes = {}
        for name, w in work.items():
            share = math.sqrt(w) * roots if flow.interval_s > 0 else w
            wishes[name] = Wish(
                max(1, math.ceil(share / budget - 1e-9)),
                f"{demand[name]:,.0f} rows/s to take in, {flow.operators[name].true_rate:,.0f} "
                "rows/s of work per channel",
            )
        return wishes, memory

    def _budget(self, flow: FlowView) -> float:
        """The part of the time that channels may work."""
        if flow.interval_s <= 0:
            return self.utilisation
        return max(_LEAST_BUDGET, self.utilisation * (1 - flow.overhead_s / flow.interval_s))


@dataclass(frozen=True)
class Off:
    """The policy `off`: channels stay as they are, or as a user asks."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {}, memory

"""DS2: true rates through the flow in one pass, and the channels they ask for.

What an operator was seen to process says little: a slow one upstream hides the load, a slow one
downstream holds it back. What counts is the rate at the source, what each operator makes of a row
(selectivity), and the *true* rate of a channel: rows per second of work, waiting not counted. From
these one pass in the order of the flow gives every operator's demand and its channels,

    kⱼ = ⌈ demandⱼ / (true rateⱼ · utilisation) ⌉.

What waits already is demand as well: it should be gone within `catch_up_s`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from braided.control.measurement import FlowView
from braided.control.policy import Limits, Memory, Wish

__all__ = ["Ds2", "Off", "demands"]

CATCH_UP_S = 30.0


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
        wishes = {}
        for name, demand in demands(flow, self.catch_up_s).items():
            rate = flow.operators[name].true_rate
            if rate <= 0:
                continue  # nothing was processed, so nothing is known
            wishes[name] = Wish(
                max(1, math.ceil(demand / (rate * self.utilisation) - 1e-9)),
                f"{demand:,.0f} rows/s to take in, {rate:,.0f} rows/s of work per channel",
            )
        return wishes, memory


@dataclass(frozen=True)
class Off:
    """The policy `off`: channels stay as they are, or as a user asks."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {}, memory

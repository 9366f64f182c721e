"""The policy `model`: as few channels as meet a latency target, by a queueing model of the flow.

A row of a micro-batch waits for the trigger, half an interval on average, and then for its batch:
a fixed overhead, and in each operator the work of the batch shared by its channels. Queues that
build up because arrivals come as they like are what M/M/k describes (`queueing.py`):

    latency(k) = interval/2 + overhead + fit · Σ ( workⱼ/kⱼ + (λⱼ/λ₀) E[Tⱼ](kⱼ) ).

With an interval of 0 this is the Jackson network of Elasticutor 4.1. `fit` is what measured
latency says about the sum, followed slowly, so that a model that is wrong by a factor corrects
itself. All terms fall and flatten with k, so the greedy allocation is optimal here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from braided.control.measure.view import FlowView
from braided.control.policies.ds2 import CATCH_UP_S, demands
from braided.control.policies.queueing import Station, allocate
from braided.control.policy import Limits, Memory, Wish

__all__ = ["Model"]

_FIT_MIN, _FIT_MAX = 0.25, 4.0
_FIT_STEP = 0.3
_FULL = 0.9
"""The part of an interval that a batch may take."""
_NEAR = 1.05
"""A target nobody can meet is replaced by what is this near to the best there is."""


@dataclass(frozen=True)
class Model:
    """Fewest channels over all operators for which the predicted latency is within the target."""

    target_s: float = 1.0
    catch_up_s: float = CATCH_UP_S
    by_rate: ClassVar[bool] = True

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        stations = self._stations(flow, limits)
        if not stations:
            return {}, memory
        fit = _fit(flow, stations, float(memory.get("fit", 1.0)))
        fixed_s = flow.interval_s / 2 + flow.overhead_s
        available = limits.total_max or sum(s.channels_max for s in stations.values())
        best_s = fit * sum(s.least_s() for s in stations.values())
        allowed_s = self.target_s - fixed_s
        if flow.interval_s > 0:
            # Whatever the target: batches that take longer than their interval pile up.
            allowed_s = min(allowed_s, _FULL * flow.interval_s - flow.overhead_s)
        # Near by the whole latency: what channels have no part in is no reason to take more.
        near_s = best_s + (_NEAR - 1) * (fixed_s + best_s)
        target_s = max(allowed_s, near_s) / fit
        allocation = allocate(list(stations.values()), target_s, available)
        expected_s = fixed_s + fit * allocation.time_s
        wishes = {
            name: Wish(channels, _reason(allocation.feasible, expected_s, self.target_s, station))
            for (name, station), channels in zip(stations.items(), allocation.channels, strict=True)
        }
        return wishes, {**memory, "fit": fit}

    def _stations(self, flow: FlowView, limits: Limits) -> dict[str, Station]:
        demand = demands(flow, self.catch_up_s)
        source = sum(rate for name, rate in demand.items() if flow.fed_by_source(name))
        stations = {}
        for name, operator in flow.operators.items():
            if operator.true_rate <= 0:
                continue
            stations[name] = Station(
                arrival_rate=demand[name],
                service_rate=operator.true_rate,
                weight=demand[name] / source if source > 0 else 1.0,
                batch_s=demand[name] * flow.interval_s / operator.true_rate,
                channels_max=limits.clamp(limits.channels_max, operator.table.slots.size),
            )
        return stations


def _fit(flow: FlowView, stations: Mapping[str, Station], fit: float) -> float:
    """The factor by which the model is off at the present channels, followed slowly."""
    if flow.latency_s is None:
        return fit
    predicted_s = sum(
        station.time_s(flow.operators[name].channels) for name, station in stations.items()
    )
    if not math.isfinite(predicted_s) or predicted_s <= 0:
        return fit  # more work than channels: latency then is a matter of how long for
    seen = (flow.latency_s - flow.interval_s / 2 - flow.overhead_s) / predicted_s
    seen = min(max(seen, _FIT_MIN), _FIT_MAX)
    return fit + _FIT_STEP * (seen - fit)


def _reason(feasible: bool, expected_s: float, target_s: float, station: Station) -> str:
    load = station.arrival_rate / station.service_rate
    if not math.isfinite(expected_s):
        return f"{load:.1f} channels' worth of work here, more in all than there are channels"
    verdict = "" if feasible and expected_s <= target_s else ", which is as near as it gets"
    return (
        f"{load:.1f} channels' worth of work; latency of {expected_s:.3g} s expected "
        f"for a target of {target_s:.3g} s{verdict}"
    )

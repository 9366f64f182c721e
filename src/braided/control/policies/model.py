"""The policy `model`: as few channels as meet a latency target, by a queueing model of the flow.

A row of a micro-batch waits for the trigger, half an interval on average, and then for its batch:
a fixed overhead, and in each operator the work of the batch shared by its channels. Queues that
build up because arrivals come as they like are what M/M/k describes (`queueing.py`):

    latency(k) = interval/2 + overhead + fit · Σ ( workⱼ/kⱼ + (λⱼ/λ₀) E[Tⱼ](kⱼ) ).

With an interval of 0 this is the Jackson network of Elasticutor 4.1. `fit` is what measured
latency says about the sum, followed slowly, so that a model that is wrong by a factor corrects
itself. All terms fall and flatten with k, so the greedy allocation is optimal here too.

The target is for a percentile of the rows: of those that came in evenly, the p-th waited p of an
interval for the trigger. That percentile is measured too, over the last minute, and by as much as
it is above what the model says, the model keeps further below the target (`behind`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from braided.control.measure.latency import PERCENTILE
from braided.control.measure.view import FlowView
from braided.control.policies.ds2 import CATCH_UP_S, demands, settle
from braided.control.policies.queueing import Allocation, Station, allocate
from braided.control.policy import Limits, Memory, Wish

__all__ = ["Model"]

_FIT_MIN, _FIT_MAX = 0.25, 4.0
_FIT_STEP = 0.15
_LEAST_ERROR = 0.1
"""What is less than this beside a rate makes no difference."""
_BEHIND_STEP = 0.05
_BEHIND_MOST = 0.5
"""Of the target: what the measured latency takes off it at most."""
_FULL = 0.9
"""The part of an interval that a batch may take."""
_CLEARLY_FEWER = 0.75
"""Of the channels there are: a load that needs no more has fallen, whatever came before it."""
_NEAR = 1.05
"""A target nobody can meet is replaced by what is this near to the best there is."""


@dataclass(frozen=True)
class Model:
    """Fewest channels over all operators for which the predicted latency is within the target."""

    target_s: float = 1.0
    catch_up_s: float = CATCH_UP_S
    percentile: float = 0.5  # of rows that are to be within the target
    by_rate: ClassVar[bool] = True

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        demand = demands(flow, self.catch_up_s)
        stations = self._stations(flow, limits, demand)
        if not stations:
            return {}, memory
        fit = _fit(flow, stations, float(memory.get("fit", 1.0)))
        behind_s = self._behind_s(flow, stations, fit, float(memory.get("behind", 0.0)))
        error = max(max(o.rate_error for o in flow.operators.values()), _LEAST_ERROR)
        allocations = [
            self._allocate(
                flow,
                limits,
                self._stations(flow, limits, {n: d * (1 + off) for n, d in demand.items()}),
                fit,
                behind_s,
            )
            for off in (-error, 0.0, 2 * error)
        ]
        _, allocation, _ = allocations
        expected_s = self._fixed_s(flow) + behind_s + fit * allocation.time_s
        wishes = {}
        for number, (name, station) in enumerate(stations.items()):
            operator = flow.operators[name]
            few, wanted, many = (each.channels[number] for each in allocations)
            channels = settle(operator.channels, few, wanted, many, operator.rate_error)
            if self._is_missed(flow) and _CLEARLY_FEWER * operator.channels < channels:
                channels = max(channels, operator.channels)
            reason = _reason(allocation.feasible, expected_s, self.target_s, station)
            if flow.latency_p95_s is not None and self.percentile == PERCENTILE:
                reason += f"; 95 of 100 rows had {flow.latency_p95_s:.3g} s or less"
            wishes[name] = Wish(channels, reason)
        return wishes, {**memory, "fit": fit, "behind": behind_s}

    def _is_missed(self, flow: FlowView) -> bool:
        """Whether the target was missed in the last minute, by all rows, those of late batches
        too: then channels are not given up for what the model makes of noise.
        """
        measured_s = flow.latency_p95_s
        return (
            self.percentile == PERCENTILE and measured_s is not None and measured_s > self.target_s
        )

    def _fixed_s(self, flow: FlowView) -> float:
        return self.percentile * flow.interval_s + flow.overhead_s

    def _allocate(
        self,
        flow: FlowView,
        limits: Limits,
        stations: Mapping[str, Station],
        fit: float,
        behind_s: float,
    ) -> Allocation:
        fixed_s = self._fixed_s(flow) + behind_s
        available = limits.total_max or sum(s.channels_max for s in stations.values())
        best_s = fit * sum(s.least_s() for s in stations.values())
        allowed_s = self.target_s - fixed_s
        if flow.interval_s > 0:
            # Whatever the target: batches that take longer than their interval pile up.
            allowed_s = min(allowed_s, _FULL * flow.interval_s - flow.overhead_s)
        # Near by the whole latency: what channels have no part in is no reason to take more.
        near_s = best_s + (_NEAR - 1) * (fixed_s + best_s)
        return allocate(list(stations.values()), max(allowed_s, near_s) / fit, available)

    def _behind_s(
        self, flow: FlowView, stations: Mapping[str, Station], fit: float, before_s: float
    ) -> float:
        """By how much the measured latency is above what is expected at the present channels,
        followed slowly.
        """
        measured_s = flow.latency_p95_in_time_s
        if self.percentile != PERCENTILE or measured_s is None or flow.is_late:
            return before_s
        predicted_s = self._fixed_s(flow) + fit * sum(
            station.time_s(flow.operators[name].channels) for name, station in stations.items()
        )
        if not math.isfinite(predicted_s):
            return before_s
        seen_s = min(max(0.0, measured_s - predicted_s), _BEHIND_MOST * self.target_s)
        return before_s + _BEHIND_STEP * (seen_s - before_s)

    def _stations(
        self, flow: FlowView, limits: Limits, demand: Mapping[str, float]
    ) -> dict[str, Station]:
        source = sum(rate for name, rate in demand.items() if flow.fed_by_source(name))
        stations = {}
        for name, operator in flow.operators.items():
            if operator.true_rate <= 0:
                continue
            # Timers are work as rows are: it is as if each row took a little longer.
            work = demand[name] / operator.true_rate + operator.timer_load
            rate = demand[name] / work if demand[name] > 0 else operator.true_rate
            own = limits.of(name, operator.channels)
            stations[name] = Station(
                arrival_rate=demand[name],
                service_rate=rate,
                weight=demand[name] / source if source > 0 else 1.0,
                batch_s=work * flow.interval_s,
                channels_max=own.clamp(own.channels_max, operator.table.slots.size),
            )
        return stations


def _fit(flow: FlowView, stations: Mapping[str, Station], fit: float) -> float:
    """The factor by which the model is off at the present channels, followed slowly."""
    # Of a late batch it is a matter of how late the ones before were.
    if flow.latency_s is None or flow.is_late:
        return fit
    predicted_s = sum(
        station.time_s(flow.operators[name].channels) for name, station in stations.items()
    )
    if not math.isfinite(predicted_s) or predicted_s <= 0:
        return fit  # more work than channels: latency then is a matter of how long for
    # Work of batches without rows is part of what is predicted, and of no row's latency.
    worked_s = flow.latency_s + flow.paused_work_s
    seen = (worked_s - flow.interval_s / 2 - flow.overhead_s) / predicted_s
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

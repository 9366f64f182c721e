"""The first verb of the loop: samples in, a view out.

What slots cost comes from the estimator (`estimator.py`), through any change of the table,
because it has nothing to do with a slot's channel. What is said of an operator as a whole, its
throughput and congestion, is kept here and begins anew when its channels change: a mean over two
numbers of channels describes neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from braided.control.measure.arrival_rate import ArrivalRate
from braided.control.measure.latency import Latency
from braided.control.measure.overhead import Overhead
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import (
    FlowSample,
    FlowView,
    KeyLoad,
    OperatorSample,
    OperatorView,
    congestion,
)
from braided.control.measure.window import LENGTH_BATCHES, Recent
from braided.control.routing.executors import Layout
from braided.control.routing.table import Loads

__all__ = ["Measurer"]

_SHORT_BATCHES = 3
"""For what a change of load must show in at once: the rates of an operator."""
_DRAINS = 0.95
"""A batch that takes less than this of the time in which it was collected works off a delay."""
_FULL_CORES = 0.85
"""The part of all cores above which channels wait for them."""


class _OperatorWindow:
    def __init__(self, length_batches: int) -> None:
        self.selectivity = Recent(length_batches)
        self.arrivals = ArrivalRate()
        self.timers: Loads | None = None  # busy seconds per second of slots without rows
        self.cpu_share: float | None = None
        self._keep = 1.0 - 1.0 / length_batches
        self.channels = 0
        self.restart(0)

    def restart(self, channels: int) -> None:
        self.channels = channels
        self.throughput = Recent(_SHORT_BATCHES)
        self.congestion = Recent(_SHORT_BATCHES)

    def add_timers(self, operator: OperatorSample, collected_s: float) -> Loads:
        """The load of slots in batches in which they have no rows; their timers are work too."""
        seen = np.where(operator.rows > 0, 0.0, operator.busy_s) / collected_s
        if operator.speeds is not None:
            seen *= operator.speeds[operator.table.slots]
        self.timers = (
            seen if self.timers is None else self.timers + (seen - self.timers) * (1 - self._keep)
        )
        return self.timers

    def add_cpu(self, operator: OperatorSample, cpus: int | None) -> float | None:
        """The part of its time in which a channel needs a core, where it does not wait for one.

        Who has more channels than there are cores may have waited. As long as nobody has seen it
        with fewer, full cores mean that it always needs one.
        """
        busy_s = float(operator.channel_busy_s.sum())
        if operator.cpu_s is None or cpus is None or busy_s <= 0:
            return self.cpu_share
        share = min(1.0, operator.cpu_s / busy_s)
        waits = operator.table.channels * share > _FULL_CORES * cpus
        if operator.table.channels <= cpus or not waits:
            self.cpu_share = share
        elif self.cpu_share is None:
            return 1.0
        return self.cpu_share


class Measurer:
    """Keeps the windows of one flow."""

    def __init__(self, length_batches: int = LENGTH_BATCHES, cpus: int | None = None) -> None:
        self._length = length_batches
        self._cpus = cpus
        self._windows: dict[str, _OperatorWindow] = {}
        self._latency = Recent(_SHORT_BATCHES)
        self._latencies = Latency()
        self._latencies_in_time = Latency()
        self._was_late = False
        self._overhead = Overhead(length_batches)

    def view(
        self,
        sample: FlowSample,
        slot_loads: Mapping[str, SlotLoads],
        layouts: Mapping[str, Layout] | None = None,
    ) -> FlowView:
        """Adds one batch and tells what is to be expected of the next.

        `slot_loads` has the batch in it already.
        """
        # What channels did for their slots. All else that a batch takes is its overhead, also what
        # a channel did for none: nothing is left out, and nothing counts twice.
        worst = {o.name: float(_for_slots(o).max(initial=0.0)) for o in sample.operators}
        channels = sum(o.table.channels for o in sample.operators)
        self._overhead.add(channels, sample.duration_s - sum(worst.values()))
        is_late = sample.duration_s > sample.interval_s
        if self._was_late and not is_late:
            self._latency = Recent(_SHORT_BATCHES)  # how late others were says nothing any more
            self._latencies_in_time = Latency()
        self._was_late = is_late
        if sample.latency_s is not None:
            self._latency.add(sample.latency_s)
        rows = max((float(o.rows.sum()) for o in sample.operators), default=0.0)
        if any(
            o.name in self._windows and self._windows[o.name].channels != o.table.channels
            for o in sample.operators
        ):
            self._latencies_in_time = Latency()
        self._latencies.add(rows, sample.duration_s, sample.collected_s)
        self._latencies_in_time.add(rows, sample.duration_s, sample.collected_s)
        longest = max(worst.values(), default=0.0)
        views = {}
        for operator in sample.operators:
            blame = worst[operator.name] / longest if longest > 0 else 0.0
            layout = (layouts or {}).get(operator.name)
            loads = slot_loads[operator.name]
            views[operator.name] = self._operator(sample, operator, loads, blame, layout)
        return FlowView(
            batch=sample.batch,
            interval_s=sample.interval_s,
            overhead_s=self._overhead.seconds(),
            latency_s=self._latency.mean() if self._latency.values() else None,
            operators=views,
            upstream=sample.upstream,
            channel_s=self._overhead.per_channel_s(),
            channel_s_known=self._overhead.is_known,
            collected_s=sample.collected_s,
            latency_p95_s=self._latencies.p95_s(),
            latency_p95_in_time_s=self._latencies_in_time.p95_s(),
            is_late=is_late,
            drains=is_late and sample.duration_s < _DRAINS * sample.collected_s,
        )

    def _operator(
        self,
        sample: FlowSample,
        operator: OperatorSample,
        loads: SlotLoads,
        blame: float,
        layout: Layout | None,
    ) -> OperatorView:
        window = self._windows.setdefault(operator.name, _OperatorWindow(self._length))
        if window.channels != operator.table.channels:
            window.restart(operator.table.channels)
        rows = float(operator.rows.sum())
        collected_s = max(sample.collected_s, 1e-9)
        throughput = rows / max(sample.duration_s, sample.interval_s, 1e-9)
        waiting_s = operator.backlog_rows / throughput if throughput > 0 else 0.0
        window.throughput.add(throughput)
        window.congestion.add(
            congestion(sample.duration_s + waiting_s, sample.interval_s, collected_s, blame)
        )
        if rows > 0:
            window.selectivity.add(operator.rows_out / rows)
        window.arrivals = window.arrivals.then(rows, collected_s)
        arrival = window.arrivals.rows_per_s
        timers = window.add_timers(operator, collected_s)
        # What has come in while a batch took longer than its interval waits for the next one.
        late_s = max(0.0, sample.duration_s - sample.interval_s)
        return OperatorView(
            name=operator.name,
            table=operator.table,
            load=loads.load(arrival) + timers,
            keys=operator.keys,
            state_bytes=operator.state_bytes,
            arrival_rate=arrival,
            throughput=window.throughput.mean(),
            true_rate=_mean_speed(operator) / loads.row_s if loads.row_s > 0 else 0.0,
            selectivity=window.selectivity.mean(),
            backlog_rows=operator.backlog_rows + late_s * arrival,
            late_rows=late_s * arrival,
            congestion=window.congestion.mean(),
            channel_load=operator.channel_busy_s / collected_s,
            heavy=_key_loads(operator, collected_s, loads.cost_s),
            pinned=operator.pinned,
            can_split=operator.can_split,
            layout=layout,
            speeds=operator.speeds,
            residence=operator.residence,
            arrivals=window.arrivals,
            rows=rows,
            timer_load=float(timers.sum()),
            cpu_share=window.add_cpu(operator, self._cpus),
            share=loads.share,
        )


def _for_slots(operator: OperatorSample) -> Loads:
    """What each channel did for its slots."""
    table = operator.table
    return np.bincount(table.slots, weights=operator.busy_s, minlength=table.channels).astype(
        np.float64
    )


def _mean_speed(operator: OperatorSample) -> float:
    return 1.0 if operator.speeds is None else float(operator.speeds.mean())


def _key_loads(operator: OperatorSample, collected_s: float, cost_s: Loads) -> tuple[KeyLoad, ...]:
    if not operator.heavy:
        return ()
    per_row = cost_s / collected_s
    shares = {pin.key: len(pin.shares) for pin in operator.table.pins if pin.shares}
    loads: dict[bytes, KeyLoad] = {}
    for heavy in operator.heavy:
        row_load = float(per_row[heavy.slot])
        load = KeyLoad(
            heavy.key,
            heavy.slot,
            heavy.rows * row_load,
            heavy.rows_min * row_load,
            heavy.rows_max * row_load,
            shares.get(heavy.key, 1),
        )
        before = loads.get(heavy.key)  # several channels have rows of a key that is split
        loads[heavy.key] = load if before is None else _sum(before, load)
    return tuple(loads.values())


def _sum(one: KeyLoad, other: KeyLoad) -> KeyLoad:
    return replace(
        one,
        load=one.load + other.load,
        load_min=one.load_min + other.load_min,
        load_max=one.load_max + other.load_max,
    )

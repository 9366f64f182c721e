"""The first verb of the loop: samples in, a view out.

What slots cost comes from the estimator (`estimator.py`), through any change of the table,
because it has nothing to do with a slot's channel. What is said of an operator as a whole, its
throughput and congestion, is kept here and begins anew when its channels change: a mean over two
numbers of channels describes neither.

What is said per second is said per second that went by. In a *pause*, batches without rows between
two that have some (`arrival_rate.py`), nothing new is said: what timers did in it, how congested it
was, and the time it took, are put to the batch with rows that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from braided.control.measure.latency import Latency
from braided.control.measure.operator_window import SHORT_BATCHES, OperatorWindow
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

_DRAINS = 0.95
"""A batch that takes less than this of the time in which it was collected works off a delay."""


@dataclass(frozen=True)
class _EmptyBatch:
    """One of a pause of all input."""

    collected_s: float
    channels: int
    overhead_s: float
    work_s: float  # of its busiest channels
    is_late: bool


class Measurer:
    """Keeps the windows of one flow."""

    def __init__(self, length_batches: int = LENGTH_BATCHES, cpus: int | None = None) -> None:
        self._length = length_batches
        self._cpus = cpus
        self._windows: dict[str, OperatorWindow] = {}
        self._latency = Recent(SHORT_BATCHES)
        self._latencies = Latency()
        self._latencies_in_time = Latency()
        self._was_late = False
        self._drains = False
        self._collected_s = 0.0
        self._input_batch: int | None = None
        self._paused_work_s = 0.0
        self._pause: list[_EmptyBatch] = []
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
        rows = max((float(o.rows.sum()) for o in sample.operators), default=0.0)
        if any(
            o.name in self._windows and self._windows[o.name].channels != o.table.channels
            for o in sample.operators
        ):
            self._latencies_in_time = Latency()
        longest = max(worst.values(), default=0.0)
        views = {}
        for operator in sample.operators:
            blame = worst[operator.name] / longest if longest > 0 else 0.0
            layout = (layouts or {}).get(operator.name)
            loads = slot_loads[operator.name]
            views[operator.name] = self._operator(sample, operator, loads, blame, layout)
        fed = [each for name, each in views.items() if not sample.upstream.get(name)]
        of_batch = _EmptyBatch(
            sample.collected_s,
            sum(o.table.channels for o in sample.operators),
            sample.duration_s - sum(worst.values()),
            sum(worst.values()),
            sample.duration_s > sample.interval_s,
        )
        if fed and all(each.pauses for each in fed):
            self._pause.append(of_batch)
        else:
            has_input = any(each.rows for each in fed)
            self._end_pause(sample, of_batch, has_input)
        self._latencies.add(rows, sample.duration_s, sample.collected_s)
        self._latencies_in_time.add(rows, sample.duration_s, sample.collected_s)
        return FlowView(
            batch=sample.batch,
            interval_s=sample.interval_s,
            overhead_s=self._overhead.seconds(),
            overhead_known_s=self._overhead.known_s(),
            latency_s=self._latency.mean() if self._latency.values() else None,
            operators=views,
            upstream=sample.upstream,
            channel_s=self._overhead.per_channel_s(),
            channel_s_known=self._overhead.is_known,
            collected_s=self._collected_s,
            latency_p95_s=self._latencies.p95_s(),
            latency_p95_in_time_s=self._latencies_in_time.p95_s(),
            is_late=self._was_late,
            drains=self._drains,
            pause_s=sum(each.collected_s for each in self._pause),
            input_batch=self._input_batch,
            paused_work_s=self._paused_work_s,
        )

    def _end_pause(self, sample: FlowSample, of_batch: _EmptyBatch, has_input: bool) -> None:
        """What is said of a batch, with those of the pause before it."""
        pause, self._pause = self._pause, []
        is_late, overhead_s = of_batch.is_late, of_batch.overhead_s
        if has_input:
            is_late = is_late or any(each.is_late for each in pause)
            alike = [each.overhead_s for each in pause if each.channels == of_batch.channels]
            overhead_s = max([overhead_s, *alike])
        else:
            for each in pause:
                self._overhead.add(each.channels, each.overhead_s, each.is_late)
        self._overhead.add(of_batch.channels, overhead_s, is_late)
        if self._was_late and not is_late:
            self._latency = Recent(SHORT_BATCHES)  # how late others were says nothing any more
            self._latencies_in_time = Latency()
        self._was_late = is_late
        if sample.latency_s is not None:
            self._latency.add(sample.latency_s)
        # In a closed loop it is the batch before the pause that says how late that one was.
        before_s = pause[0].collected_s if pause else sample.collected_s
        self._drains = is_late and sample.duration_s < _DRAINS * before_s
        self._collected_s = sample.collected_s
        self._paused_work_s = sum(each.work_s for each in pause)
        if has_input:
            self._collected_s += sum(each.collected_s for each in pause)
        self._input_batch = sample.batch if has_input else None

    def _operator(
        self,
        sample: FlowSample,
        operator: OperatorSample,
        loads: SlotLoads,
        blame: float,
        layout: Layout | None,
    ) -> OperatorView:
        window = self._windows.get(operator.name)
        if window is None:
            window = self._windows[operator.name] = OperatorWindow(self._length, self._cpus)
        if window.channels != operator.table.channels:
            window.restart(operator.table.channels)
        rows = float(operator.rows.sum())
        throughput = rows / max(sample.duration_s, sample.interval_s, 1e-9)
        waiting_s = operator.backlog_rows / throughput if throughput > 0 else 0.0
        collected_s = max(sample.collected_s + sum(window.pause.seconds), 1e-9)
        window.add(
            operator,
            sample,
            congestion(sample.duration_s + waiting_s, sample.interval_s, collected_s, blame),
        )
        arrival = window.arrivals.rows_per_s
        channel_load = window.channel_load
        if channel_load.size != operator.table.channels:
            channel_load = operator.channel_busy_s / collected_s
        # What has come in while a batch took longer than its interval waits for the next one.
        late_s = max(0.0, sample.duration_s - sample.interval_s)
        return OperatorView(
            name=operator.name,
            table=operator.table,
            load=loads.load(arrival) + window.timers,
            keys=operator.keys,
            state_bytes=operator.state_bytes,
            arrival_rate=arrival,
            throughput=window.throughput.mean(),
            true_rate=_mean_speed(operator) / loads.row_s if loads.row_s > 0 else 0.0,
            selectivity=window.selectivity,
            backlog_rows=operator.backlog_rows + late_s * arrival,
            late_rows=late_s * arrival,
            congestion=window.congestion.mean(),
            channel_load=channel_load,
            heavy=_key_loads(operator, collected_s, loads.cost_s),
            pinned=operator.pinned,
            can_split=operator.can_split,
            layout=layout,
            speeds=operator.speeds,
            residence=operator.residence,
            arrivals=window.arrivals,
            rows=rows,
            timer_load=float(window.timers.sum()),
            cpu_share=window.cpu_share,
            share=loads.share,
            pauses=window.arrivals.pauses,
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

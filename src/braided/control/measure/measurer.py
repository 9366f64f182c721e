"""The first verb of the loop: samples in, a view out.

Windows live here, one set per operator. Slots keep theirs through any change of the table, because
what a slot costs has nothing to do with its channel. What is said of an operator as a whole, its
throughput and congestion, begins anew when its channels change: a mean over two numbers of
channels describes neither.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from braided.control.measure.overhead import Overhead
from braided.control.measure.view import (
    FlowSample,
    FlowView,
    KeyLoad,
    OperatorSample,
    OperatorView,
    congestion,
)
from braided.control.measure.window import LENGTH_BATCHES, Recent, SlotWindow
from braided.control.routing.executors import Layout
from braided.control.routing.table import Loads

__all__ = ["Measuring"]

_SHORT_BATCHES = 3
"""For what a change of load must show in at once: the rates of an operator."""


class _OperatorWindow:
    def __init__(self, slots: int, length_batches: int) -> None:
        self.size = slots
        self.slots = SlotWindow(slots, length_batches)
        self.selectivity = Recent(length_batches)
        self.channels = 0
        self.restart(0)

    def restart(self, channels: int) -> None:
        self.channels = channels
        self.throughput = Recent(_SHORT_BATCHES)
        self.congestion = Recent(_SHORT_BATCHES)


class Measuring:
    """The windows of one flow."""

    def __init__(self, length_batches: int = LENGTH_BATCHES) -> None:
        self._length = length_batches
        self._windows: dict[str, _OperatorWindow] = {}
        self._latency = Recent(_SHORT_BATCHES)
        self._overhead = Overhead(length_batches)

    def view(self, sample: FlowSample, layouts: Mapping[str, Layout] | None = None) -> FlowView:
        """Adds one batch and tells what is to be expected of the next."""
        worst = {o.name: float(o.channel_busy_s.max(initial=0.0)) for o in sample.operators}
        channels = sum(o.table.channels for o in sample.operators)
        self._overhead.add(channels, sample.duration_s - sum(worst.values()))
        if sample.latency_s is not None:
            self._latency.add(sample.latency_s)
        longest = max(worst.values(), default=0.0)
        views = {}
        for operator in sample.operators:
            blame = worst[operator.name] / longest if longest > 0 else 0.0
            view = self._operator(sample, operator, blame, (layouts or {}).get(operator.name))
            views[operator.name] = view
        return FlowView(
            batch=sample.batch,
            interval_s=sample.interval_s,
            overhead_s=self._overhead.seconds(),
            latency_s=self._latency.mean() if self._latency.values() else None,
            operators=views,
            upstream=sample.upstream,
            channel_s=self._overhead.per_channel_s(),
            collected_s=sample.collected_s,
        )

    def _operator(
        self, sample: FlowSample, operator: OperatorSample, blame: float, layout: Layout | None
    ) -> OperatorView:
        window = self._windows.get(operator.name)
        if window is None or window.size != operator.rows.size:
            window = _OperatorWindow(operator.rows.size, self._length)
            self._windows[operator.name] = window
        if window.channels != operator.table.channels:
            window.restart(operator.table.channels)
        rows = float(operator.rows.sum())
        collected_s = max(sample.collected_s, 1e-9)
        throughput = rows / max(sample.duration_s, sample.interval_s, 1e-9)
        waiting_s = operator.backlog_rows / throughput if throughput > 0 else 0.0
        window.slots.add(operator.rows, operator.busy_s)
        window.throughput.add(throughput)
        window.congestion.add(
            congestion(sample.duration_s + waiting_s, sample.interval_s, collected_s, blame)
        )
        if rows > 0:
            window.selectivity.add(operator.rows_out / rows)
        # Rows are counted: nothing in their number is noise, and a surge should be met at once.
        arrival = rows / collected_s
        # What has come in while a batch took longer than its interval waits for the next one.
        late_s = max(0.0, sample.duration_s - sample.interval_s)
        cost_s = window.slots.cost_s()
        mean_cost_s = float(window.slots.share() @ cost_s)
        return OperatorView(
            name=operator.name,
            table=operator.table,
            load=window.slots.load(arrival),
            keys=operator.keys,
            state_bytes=operator.state_bytes,
            arrival_rate=arrival,
            throughput=window.throughput.mean(),
            true_rate=1 / mean_cost_s if mean_cost_s > 0 else 0.0,
            selectivity=window.selectivity.mean(),
            backlog_rows=operator.backlog_rows + late_s * arrival,
            congestion=window.congestion.mean(),
            channel_load=operator.channel_busy_s / collected_s,
            heavy=_key_loads(operator, collected_s, cost_s),
            pinned=operator.pinned,
            layout=layout,
        )


def _key_loads(operator: OperatorSample, collected_s: float, cost_s: Loads) -> tuple[KeyLoad, ...]:
    if not operator.heavy:
        return ()
    per_row = np.asarray(cost_s) / collected_s
    return tuple(
        KeyLoad(
            heavy.key,
            heavy.slot,
            heavy.rows * float(per_row[heavy.slot]),
            heavy.rows_min * float(per_row[heavy.slot]),
            heavy.rows_max * float(per_row[heavy.slot]),
        )
        for heavy in operator.heavy
    )

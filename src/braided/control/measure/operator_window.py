"""What is kept of one operator, and of a pause of its input.

In a pause, batches without rows between two that have some (`arrival_rate.py`), nothing new is
said. What timers did in it, how congested it was, and the time it took, are put to the batch with
rows that ends it, or to the first that shows that there are none any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from braided.control.measure.arrival_rate import ArrivalRate
from braided.control.measure.view import FlowSample, OperatorSample
from braided.control.measure.window import Recent
from braided.control.routing.table import Loads, RoutingTable

__all__ = ["SHORT_BATCHES", "OperatorWindow"]

SHORT_BATCHES = 3
"""For what a change of load must show in at once: the rates of an operator."""
_OTHER_TIMERS = 1.5
"""By how much timers take more, or less, where they are another load."""
_ALIKE = 1.25
_FULL_CORES = 0.85
"""The part of all cores above which channels wait for them."""


@dataclass
class _Pause:
    """What an operator did in batches without rows, since it had some."""

    seconds: list[float] = field(default_factory=list)  # in which each of them was collected
    congestions: list[float] = field(default_factory=list)
    timers_s: Loads | None = None  # busy time by slot, at full speed
    channel_busy_s: Loads | None = None  # by the last table
    busy_within_s: float = 0.0  # the time in which it was
    cpu_s: float | None = 0.0

    def forget_channels(self) -> None:
        """What channels did by another table than the last says nothing of this one."""
        self.channel_busy_s, self.busy_within_s, self.cpu_s = None, 0.0, 0.0


class OperatorWindow:
    """The last batches of one operator."""

    def __init__(self, length_batches: int, cpus: int | None) -> None:
        # Of batches with rows: rows out since the one before, and rows.
        self._outputs: deque[tuple[float, float]] = deque(maxlen=length_batches)
        self.arrivals = ArrivalRate()
        self.rows_out = 0.0  # since it had rows
        self.pause = _Pause()
        self.channel_load: Loads = np.zeros(0)
        self._seen_timers: Loads = np.zeros(0)
        self.timers: Loads = np.zeros(0)  # busy seconds per second of slots without rows
        self.cpu_share: float | None = None
        self._cpus = cpus
        self._keep = 1.0 - 1.0 / length_batches
        self._table: RoutingTable | None = None
        self.channels = 0
        self.restart(0)

    def restart(self, channels: int) -> None:
        """With other channels, of which nothing is known."""
        self.channels = channels
        self.throughput = Recent(SHORT_BATCHES)
        self.congestion = Recent(SHORT_BATCHES)
        self.pause.congestions = []
        self.pause.forget_channels()

    @property
    def selectivity(self) -> float:
        """Rows out per row in. What timers give out in a pause came in before it, so that it is
        right over several batches only.
        """
        rows = sum(each for _, each in self._outputs)
        return sum(out for out, _ in self._outputs) / rows if rows > 0 else 0.0

    def add(self, operator: OperatorSample, sample: FlowSample, congested: float) -> None:
        """One more batch, as congested as that."""
        rows = float(operator.rows.sum())
        self.arrivals = self.arrivals.then(rows, sample.collected_s)
        self.rows_out += operator.rows_out
        if rows > 0:
            self._outputs.append((self.rows_out, rows))
            self.rows_out = 0.0
        pause, before, self._table = self.pause, self._table, operator.table
        if before is not None and not before.divides_as(operator.table):
            pause.forget_channels()
        timers_s = np.where(operator.rows > 0, 0.0, operator.busy_s)
        if operator.speeds is not None:
            timers_s = timers_s * operator.speeds[operator.table.slots]
        pause.timers_s = timers_s if pause.timers_s is None else pause.timers_s + timers_s
        busy_s = operator.channel_busy_s
        before_s = pause.channel_busy_s
        pause.channel_busy_s = busy_s if before_s is None else before_s + busy_s
        pause.busy_within_s += sample.collected_s
        if operator.cpu_s is None or pause.cpu_s is None:
            pause.cpu_s = None
        else:
            pause.cpu_s += operator.cpu_s
        pause.seconds.append(sample.collected_s)
        pause.congestions.append(congested)
        if not self.arrivals.pauses:
            self._end_pause(operator, sample, rows)

    def _end_pause(self, operator: OperatorSample, sample: FlowSample, rows: float) -> None:
        """With a batch that has rows, or because there are none any more."""
        pause, self.pause = self.pause, _Pause()
        spent_s = max(sum(pause.seconds), 1e-9)
        throughput = rows / max(sample.duration_s, sample.interval_s, 1e-9)
        if rows > 0:
            # From the begin of the first batch of the pause; each has its interval.
            paused_s = pause.seconds[1:]
            took_s = sample.duration_s + sum(paused_s)
            least_s = sample.interval_s + sum(min(s, sample.interval_s) for s in paused_s)
            throughput = rows / max(took_s, least_s, 1e-9)
            # As congested as the worst of its batches.
            pause.congestions = [max(pause.congestions)]
        for each in pause.congestions:
            self.throughput.add(throughput)
            self.congestion.add(each)
        assert pause.timers_s is not None and pause.channel_busy_s is not None
        self._learn_timers(pause.timers_s / spent_s)
        self.channel_load = pause.channel_busy_s / max(pause.busy_within_s, 1e-9)
        self._learn_cpu(operator.table.channels, float(pause.channel_busy_s.sum()), pause.cpu_s)

    def _learn_timers(self, seen: Loads) -> None:
        """Those of single batches come in bursts, so many are averaged; two loads that agree with
        each other, and not with the average, are another load.
        """
        if not self.timers.size:
            self.timers = self._seen_timers = seen
        before, self._seen_timers = self._seen_timers, seen
        usual, last, now = (float(each.sum()) for each in (self.timers, before, seen))
        is_other = min(last, now) > _OTHER_TIMERS * usual or max(last, now) < usual / _OTHER_TIMERS
        if is_other and max(last, now) < _ALIKE * min(last, now):
            self.timers = (before + seen) / 2
        else:
            self.timers = self.timers + (seen - self.timers) * (1 - self._keep)

    def _learn_cpu(self, channels: int, busy_s: float, cpu_s: float | None) -> None:
        """The part of its time in which a channel needs a core, where it does not wait for one.

        Who has more channels than there are cores may have waited. As long as nobody has seen it
        with fewer, full cores mean that it always needs one.
        """
        if cpu_s is None or self._cpus is None or busy_s <= 0:
            return
        share = min(1.0, cpu_s / busy_s)
        waits = channels * share > _FULL_CORES * self._cpus
        if channels <= self._cpus or not waits:
            self.cpu_share = share
        elif self.cpu_share is None:
            self.cpu_share = 1.0

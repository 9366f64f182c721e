"""Replay: a recorded event log as a flow, to ask another policy what it would have done.

The log has, per batch and operator, the rows, the load of each slot, the cost of a row and what the
batch took besides. That is all the simulator needs. The input comes at the recorded rates; what
the policy does with its channels and slots is simulated, so that its own backlog and its own moves
count. What the log does not say is not made up: hosts are one, and moving state is free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.events import Event, EventLogError, Measured, Planned, unpack_loads
from braided.control.routing.table import Loads
from braided.control.settings import Settings
from braided.sim.arrivals import Trace
from braided.sim.cluster import Cluster, Run, SimFlow, SimOperator, simulate

__all__ = ["Recording", "read_recording", "recording_fields", "replay"]


@dataclass(frozen=True, eq=False)
class RecordedKeys:
    """Slots' shares of the work as they were recorded, each from a time on."""

    times_s: Sequence[float]
    loads: Sequence[Loads]

    def version(self, at_s: float) -> int:
        return max(0, bisect_right(self.times_s, at_s) - 1)

    def shares(self, version: int, slots: int) -> Loads:
        load = self.loads[version]
        total = float(load.sum())
        return load / total if total > 0 else np.full(slots, 1 / slots)

    def hottest(self, version: int) -> float:
        return 0.0  # keys are not in the log

    def heavy(self, version: int) -> tuple[tuple[int, float], ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Recording:
    """The flow that a log is of, and how it went: batch times and channels."""

    flow: SimFlow
    batches: int
    latency_s: float
    batch_s: float
    channel_s: float
    moved_slots: int


def read_recording(events: Iterable[Event]) -> Recording:
    """Reads a log's events; EventLogError if there is no batch in it."""
    measured: dict[str, list[Measured]] = {}
    moved = 0
    for event in events:
        if isinstance(event, Measured):
            measured.setdefault(event.operator, []).append(event)
        elif isinstance(event, Planned) and not event.dropped:
            moved += event.moved_slots
    if not measured:
        raise EventLogError("there is no measured batch in this log")
    first = next(iter(measured.values()))
    times_s = _times(first)
    sources = [name for name, lines in measured.items() if not lines[0].upstream]
    rates = [
        sum(measured[name][n].rows for name in sources if n < len(measured[name]))
        / max(line.collected_s, 1e-9)
        for n, line in enumerate(first)
    ]
    most = max(
        sum(line.channels for line in lines) for lines in zip(*measured.values(), strict=False)
    )
    took = [line.duration_s for line in first]
    flow = SimFlow(
        # As many cores as anything needs: the log does not say how many there were.
        cluster=Cluster(
            hosts=1,
            cores=max(most, 1024),
            overhead_s=float(np.median([line.overhead_s for line in first])),
            slot_s=0.0,
            bytes_per_s=1e15,
        ),
        operators=tuple(_operator(name, lines, times_s) for name, lines in measured.items()),
        arrivals=Trace(times_s, rates),
        interval_s=first[-1].interval_s,
        duration_s=times_s[-1] + first[-1].collected_s,
        noise=0.0,
    )
    return Recording(
        flow=flow,
        batches=len(first),
        latency_s=float(
            np.average(
                [line.duration_s + line.collected_s / 2 for line in first],
                weights=[max(line.rows, 1e-9) for line in first],
            )
        ),
        batch_s=float(np.quantile(took, 0.99)),
        channel_s=sum(
            line.channels * line.duration_s for lines in measured.values() for line in lines
        ),
        moved_slots=moved,
    )


def replay(recording: Recording, settings: Settings) -> Run:
    """The recorded flow with a controller of those settings."""
    return simulate(recording.flow, settings)


def _times(lines: Sequence[Measured]) -> list[float]:
    """When the rows of each batch began to be collected."""
    times, at = [], 0.0
    for line in lines:
        times.append(at)
        at += line.collected_s
    return times


def _operator(name: str, lines: Sequence[Measured], times_s: Sequence[float]) -> SimOperator:
    rates = [line.true_rate for line in lines if line.true_rate > 0]
    loads = [unpack_loads(line.slots) for line in lines]
    return SimOperator(
        name=name,
        keys=RecordedKeys(times_s[: len(loads)], loads),
        slots=loads[0].size,
        row_s=1 / float(np.median(rates)) if rates else 0.0,
        row_bytes=0.0,
        slot_bytes=lines[-1].state_bytes / loads[0].size,
        selectivity=float(np.median([line.selectivity for line in lines])),
        upstream=lines[0].upstream,
        channels=lines[0].channels,
    )


def recording_fields(recording: Recording) -> Mapping[str, float | int]:
    """How it went when it was recorded, in the words of a run's summary."""
    return {
        "batches": recording.batches,
        "latency_s": recording.latency_s,
        "batch_p99_s": recording.batch_s,
        "channel_s": recording.channel_s,
        "moved_slots": recording.moved_slots,
    }

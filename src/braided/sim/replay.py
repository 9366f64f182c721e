"""Replay: a recorded event log as a flow, to ask another policy what it would have done.

The log has, per batch and operator, the rows, the load of each slot, the cost of a row and what the
batch took besides. That is all the simulator needs. The input comes at the recorded rates; what
the policy does with its channels and slots is simulated, so that its own backlog and its own moves
count. What the log does not say is not made up: hosts are one, and moving state is free.

What the simulator makes of the recorded channels themselves shows how far it can be believed:
`retrace` simulates them, and `retraced_fields` says by how much it is off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.events import Event, EventLogError, Measured, Planned, unpack_loads
from braided.control.measure.view import FlowView
from braided.control.policy import Limits, Memory, Wish
from braided.control.routing.table import Loads
from braided.control.settings import Settings
from braided.sim.arrivals import RecordedRates
from braided.sim.cluster import Cluster, Run, SimFlow, SimOperator, simulate

__all__ = [
    "Recording",
    "read_recording",
    "recording_fields",
    "replay",
    "retrace",
    "retraced_fields",
]

_HELD_AGAINST = ("batches", "latency_s", "batch_p99_s", "channel_s")
"""What a simulation has in common with a recording."""


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
    channels: Mapping[str, Sequence[int]]
    """Of every operator, batch by batch."""
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
    together = [
        sum(line.channels for line in lines) for lines in zip(*measured.values(), strict=False)
    ]
    overhead_s, channel_s = _overhead(together, [line.overhead_s for line in first])
    took = [line.duration_s for line in first]
    flow = SimFlow(
        # As many cores as anything needs: the log does not say how many there were.
        cluster=Cluster(
            hosts=1,
            cores=max(1024, *together),
            overhead_s=overhead_s,
            channel_s=channel_s,
            slot_s=0.0,
            bytes_per_s=1e15,
        ),
        operators=tuple(_operator(name, lines, times_s) for name, lines in measured.items()),
        arrivals=RecordedRates(times_s, rates),
        interval_s=first[-1].interval_s,
        duration_s=times_s[-1] + first[-1].collected_s,
        noise=0.0,
    )
    return Recording(
        flow=flow,
        channels={name: [line.channels for line in lines] for name, lines in measured.items()},
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


def retrace(recording: Recording) -> Run:
    """The recorded flow with the channels that it had, to hold the simulator against what came."""
    most = max(max(counts) for counts in recording.channels.values())
    as_it_was = _AsItWas(recording.channels)
    return simulate(recording.flow, Settings(scale=as_it_was, limits=Limits(channels_max=most)))


class _AsItWas:
    """A policy that has the channels which were recorded, whatever it sees."""

    def __init__(self, channels: Mapping[str, Sequence[int]]) -> None:
        self._channels = channels

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        following = flow.batch + 1
        return {
            name: Wish(counts[min(following, len(counts) - 1)], "as it was", at_once=True)
            for name, counts in self._channels.items()
        }, memory


def _times(lines: Sequence[Measured]) -> list[float]:
    """When the rows of each batch began to be collected."""
    times, at = [], 0.0
    for line in lines:
        times.append(at)
        at += line.collected_s
    return times


def _overhead(channels: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """What batches took beside their work, and what every channel added to it: by a line through
    the medians of the numbers of channels that there were, each as heavy as its batches are many.

    A line that falls is chance, and one that is below 0 without channels is too steep. Where there
    was one number only, nothing is put down to it.
    """
    by_number: dict[int, list[float]] = {}
    for number, took_s in zip(channels, seconds, strict=False):
        by_number.setdefault(number, []).append(took_s)
    numbers = np.array(list(by_number), dtype=np.float64)
    medians = np.array([np.median(each) for each in by_number.values()])
    weights = np.array([len(each) for each in by_number.values()])
    usual, usual_s = (float(np.average(each, weights=weights)) for each in (numbers, medians))
    off = numbers - usual
    slope = float((weights * off * medians).sum()) / max(float((weights * off**2).sum()), 1e-9)
    channel_s = min(max(0.0, slope), usual_s / usual)
    return max(0.0, usual_s - channel_s * usual), channel_s


def _operator(name: str, lines: Sequence[Measured], times_s: Sequence[float]) -> SimOperator:
    costs_s = [_row_s(line) for line in lines if line.true_rate > 0]
    loads = [unpack_loads(line.slots) for line in lines]
    return SimOperator(
        name=name,
        keys=RecordedKeys(times_s[: len(loads)], loads),
        slots=loads[0].size,
        row_s=float(np.median(costs_s)) if costs_s else 0.0,
        row_bytes=0.0,
        slot_bytes=lines[-1].state_bytes / loads[0].size,
        selectivity=float(np.median([line.selectivity for line in lines])),
        upstream=lines[0].upstream,
        channels=lines[0].channels,
    )


def _row_s(line: Measured) -> float:
    """What a row costs, with its part of what timers take in slots that had none: rows that came
    before have led to them, and the slots' shares of the work count them as well.
    """
    timers_s = line.timer_load / line.arrival_rate if line.arrival_rate > 0 else 0.0
    return 1 / line.true_rate + timers_s


def recording_fields(recording: Recording) -> Mapping[str, float | int]:
    """How it went when it was recorded, in the words of a run's summary."""
    return {
        "batches": recording.batches,
        "latency_s": recording.latency_s,
        "batch_p99_s": recording.batch_s,
        "channel_s": recording.channel_s,
        "moved_slots": recording.moved_slots,
    }


def retraced_fields(recording: Recording, run: Run) -> Mapping[str, float]:
    """The same figures as the simulator has them for the recorded channels; `error` is the part by
    which the worst of them is off.
    """
    recorded, summary = recording_fields(recording), run.summary()
    simulated = {name: float(summary[name]) for name in _HELD_AGAINST}
    off = [abs(simulated[name] / max(recorded[name], 1e-9) - 1) for name in _HELD_AGAINST]
    return {**simulated, "error": max(off)}

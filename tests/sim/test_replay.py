"""What a log says of the machine it is of, and how near a replay of it comes to what was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from braided.control.events import Event, Measured, read
from braided.control.policies.balancers import Static
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policy import Limits
from braided.control.settings import Settings
from braided.sim.arrivals import Constant, Spike
from braided.sim.cluster import Cluster, SimFlow, SimOperator, simulate
from braided.sim.keys import Zipf
from braided.sim.replay import read_recording, recording_fields, retrace, retraced_fields

LIVE = Path(__file__).parent / "recorded/live.jsonl"
"""The log of a query that ran; `recorded/make.py` says how it was made."""
WARM = 8
"""Its first batches started Spark's workers and compiled their code."""
SURGE = SimFlow(
    Cluster(hosts=1, cores=32, overhead_s=0.15, channel_s=0.03),
    (SimOperator("sum", Zipf(skew=0.3), slots=64, channels=2),),
    Spike(1000, 4000, 20, 30),
    duration_s=80,
)


def events_of(settings: Settings) -> tuple[Event, ...]:
    return simulate(SURGE, settings).events


def test_what_channels_add_to_the_overhead_is_read_from_the_numbers_that_there_were() -> None:
    recording = read_recording(events_of(Settings(scale=Ds2(), limits=Limits(channels_max=12))))
    assert len(set(recording.channels["sum"])) > 2
    cluster = recording.flow.cluster
    assert cluster.channel_s == pytest.approx(0.03, rel=0.2)
    assert cluster.overhead_s == pytest.approx(0.15, rel=0.2)
    assert retraced_fields(recording, retrace(recording))["error"] < 0.1


def test_one_number_of_channels_says_nothing_of_what_they_add() -> None:
    fixed = Settings(scale=Off(), balance=Static(), limits=Limits(channels_max=2))
    cluster = read_recording(events_of(fixed)).flow.cluster
    assert cluster.channel_s == 0
    assert cluster.overhead_s == pytest.approx(0.21, rel=0.05)


def test_work_of_timers_in_slots_without_rows_is_replayed() -> None:
    keys = Zipf(skew=0.3)
    operator = SimOperator("sum", keys, slots=64, channels=4, timer_s=2.0, timer_slots=8)
    flow = replace(SURGE, operators=(operator,), arrivals=Constant(500))
    run = simulate(flow, Settings(scale=Off(), balance=Static(), limits=Limits(channels_max=4)))
    recording = read_recording(run.events)
    # 500 rows of a millisecond a second, beside 2 s of timers.
    assert recording.flow.operators[0].row_s == pytest.approx(0.005, rel=0.05)
    was, retraced = recording_fields(recording), retraced_fields(recording, retrace(recording))
    for name in ("batches", "latency_s", "channel_s"):
        assert retraced[name] == pytest.approx(was[name], rel=0.1)


@pytest.mark.parametrize(
    ("overheads_s", "overhead_s", "channel_s"),
    [
        ({2: 0.8, 4: 0.4}, 0.6, 0.0),  # it falls: chance
        ({2: 0.1, 4: 0.9}, 0.0, 0.5 / 3),  # less than nothing without channels: too steep
        ({1: 0.2, 3: 0.4, 5: 0.6}, 0.1, 0.1),
    ],
)
def test_a_line_that_makes_no_sense_is_not_drawn(
    overheads_s: dict[int, float], overhead_s: float, channel_s: float
) -> None:
    line = next(e for e in events_of(Settings(scale=Off())) if isinstance(e, Measured))
    lines = [
        msgspec.structs.replace(line, batch=batch, channels=channels, overhead_s=took_s)
        for batch, (channels, took_s) in enumerate(overheads_s.items())
    ]
    cluster = read_recording(lines).flow.cluster
    assert cluster.overhead_s == pytest.approx(overhead_s)
    assert cluster.channel_s == pytest.approx(channel_s)


@pytest.mark.parametrize(
    ("first", "batches_off", "latency_off", "channels_off", "longest_off"),
    [(0, 0.15, 0.1, 0.2, 0.75), (WARM, 0.02, 0.05, 0.05, 0.3)],
)
def test_a_query_that_ran_is_retraced_and_this_is_how_far_the_simulator_is_off(
    first: int, batches_off: float, latency_off: float, channels_off: float, longest_off: float
) -> None:
    with LIVE.open("rb") as lines:
        recording = read_recording(event for event in read(lines) if event.batch > first)
    assert recording.batches >= 40
    assert len(set(recording.channels["work"])) >= 3
    was = recording_fields(recording)
    retraced = retraced_fields(recording, retrace(recording))
    off = {name: abs(retraced[name] / was[name] - 1) for name in retraced if name in was}
    assert off["batches"] <= batches_off
    assert off["latency_s"] <= latency_off
    assert off["channel_s"] <= channels_off
    assert off["batch_p99_s"] <= longest_off
    assert retraced["error"] == max(off.values())

"""The scheduler benchmark: a decision is complete, and no rescale is far from its goal."""

from __future__ import annotations

import statistics

import pytest

from braided.bench import BENCHES, scheduler


def test_a_decision_gives_channels_slots_and_cores() -> None:
    lines: list[str] = []
    case = scheduler.SchedulerCase(4, 256, operators=3, executors=2, rounds=2)
    result = scheduler.measure(case, lines.append)
    assert {"hosts", "cores", "slots", "operators", "ms"} <= set(result)
    assert (result["hosts"], result["cores"], result["slots"]) == (4, 8, 256)
    assert result["ms"] > 0
    assert result["rescale_ms"] > 0 and result["rescale_moved_slots"] > 0
    assert result["extreme_ms"] > 0
    assert result["extreme_moved_slots"] > result["rescale_moved_slots"]
    assert result["hosts_ms"] > 0 and result["extreme_hosts_ms"] > 0
    assert lines
    assert BENCHES["scheduler"] == scheduler.__name__


@pytest.mark.parametrize(
    ("case", "goal_ms"),
    [
        (scheduler.SchedulerCase(32, 8192, rounds=7), 10),
        (scheduler.SchedulerCase(1000, 262_144, operators=1, rounds=3), 100),
    ],
    ids=["12 x 8,192", "262,144"],
)
def test_ten_times_the_channels_are_decided_on_in_time(
    case: scheduler.SchedulerCase, goal_ms: float
) -> None:
    # Time of the processor, and three times the goal: this is no benchmark.
    rounds = scheduler.rescales(case, 0.2, 2.0)
    # In chains of moves until there is none the large case took more than a minute.
    assert statistics.median(each["hosts_ms"] for each in rounds) <= 10 * goal_ms
    assert statistics.median(each["ms"] for each in rounds) <= 3 * goal_ms
    assert min(each["moved_slots"] for each in rounds) > case.slots * case.operators / 2

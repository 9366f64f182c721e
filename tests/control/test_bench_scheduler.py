"""The scheduler benchmark on a size that says nothing about speed: that a decision is complete."""

from __future__ import annotations

from braided.bench import BENCHES, scheduler


def test_a_decision_gives_channels_slots_and_cores() -> None:
    lines: list[str] = []
    case = scheduler.SchedulerCase(4, 256, operators=3, executors=2, rounds=2)
    result = scheduler.measure(case, lines.append)
    assert {"hosts", "cores", "slots", "operators", "ms"} <= set(result)
    assert (result["hosts"], result["cores"], result["slots"]) == (4, 8, 256)
    assert result["ms"] > 0
    assert result["rescale_ms"] > 0 and result["rescale_moved_slots"] > 0
    assert lines
    assert BENCHES["scheduler"] == scheduler.__name__

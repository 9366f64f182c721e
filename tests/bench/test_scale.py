"""What `braided bench scale` compares policies with, without Spark."""

from __future__ import annotations

import numpy as np
import pytest

from braided.bench.arrivals import FILE_S
from braided.bench.costly_rows import numbered, sessions
from braided.bench.oracle import Plant
from braided.bench.scale import POLICIES, cases, settle_batches
from braided.bench.timeline import Timeline
from braided.bench.traces import SESSION_ROWS, Phases, Trace, keys_of, traces
from braided.errors import OptionError

PLANT = Plant(interval_s=1.0, row_s=0.001, aside_s=0.25, most=12)


def timeline(channels: list[int]) -> Timeline:
    """A batch in every second, half a second after it began."""
    count = len(channels)
    starts = tuple(n + 0.5 for n in range(count))
    whole = (1.0,) * count
    return Timeline(starts, whole, tuple(channels), (1000,) * count, whole, whole)


def test_cases_are_chosen_by_their_words() -> None:
    every = traces(Phases(1, 1, 1, 1))

    def chosen(quick: bool, *only: str) -> list[str]:
        return [f"{t.name}/{t.work}/{policy}" for t, policy in cases(every, quick, only)]

    assert len(chosen(False)) == 24
    assert len(chosen(True)) == 3
    assert chosen(False, "sink/saso") == ["sink/waiting/saso"]
    assert chosen(True, "saso/sink", "sink") == [f"sink/waiting/{p}" for p in POLICIES]
    assert len(chosen(False, "computing")) == 6
    with pytest.raises(OptionError, match="no case 'sing'; there are noise/waiting/ds2, "):
        chosen(False, "sing")


@pytest.mark.parametrize("rows", [10, 500, 900, 2500, 5000])
def test_the_oracle_has_the_fewest_channels_that_leave_a_fifth_of_their_time(rows: int) -> None:
    needed = PLANT.needed(rows)
    assert rows * 0.001 / needed <= 0.8 * 0.75
    assert needed == 1 or rows * 0.001 / (needed - 1) > 0.8 * 0.75


def test_what_channels_do_not_help_with_the_oracle_does_not_meet_with_channels() -> None:
    # A key that takes 1.2 s of every second is as fast with two channels as with twelve.
    key = Plant(interval_s=1.0, row_s=0.001, aside_s=0.25, most=12, hot_share=0.5)
    assert key.needed(2400) == 2
    assert key.batch_s(2400, 2) == key.batch_s(2400, 12) == pytest.approx(1.45)
    computing = Plant(interval_s=1.0, row_s=0.001, aside_s=0.25, most=12, cores=2)
    assert computing.needed(4000) == 2
    # A sink of 2 s, after half a second of work: three channels are within a tenth of the best.
    sink = Plant(interval_s=1.0, row_s=0.0005, aside_s=0.25, most=12, sink_row_s=0.002)
    assert sink.needed(1000) == 2
    assert sink.batch_s(1000, 2) <= 1.1 * sink.batch_s(1000, 12) < sink.batch_s(1000, 1)


def test_the_oracle_costs_no_more_than_the_best_fixed_and_the_same_at_constant_load() -> None:
    assert PLANT.own_channel_s([1000] * 5) == PLANT.fixed_channel_s([1000] * 5) == 5 * 2
    assert PLANT.own_channel_s([500, 3000, 500]) == 1 + 5 + 1
    assert PLANT.fixed_channel_s([500, 3000, 500]) == 3 * 5


def test_a_batch_is_late_if_it_need_not_have_taken_so_long() -> None:
    assert PLANT.late_s([1000, 3000]) == pytest.approx(1.1)
    key = Plant(interval_s=1.0, row_s=0.001, aside_s=0.25, most=12, hot_share=0.5)
    assert key.late_s([2400]) == pytest.approx(1.1 * 1.45)


def test_channels_have_settled_when_they_change_no_more_before_the_next_step() -> None:
    assert settle_batches(timeline([2] * 6), (0.0,)) == 0
    assert settle_batches(timeline([2, 2, 3, 3, 3, 3]), (0.0,)) == 2
    # The first batch of the surge has the channels that it keeps; of the calm, the third.
    up_and_down = timeline([1, 1, 4, 4, 4, 4, 2, 2])
    assert settle_batches(up_and_down, (0.0, 2.0, 4.0)) == 2
    assert settle_batches(up_and_down, (0.0, 2.0)) == 4


@pytest.mark.parametrize("trace", traces(Phases(2, 4, 3, 5)), ids=lambda t: f"{t.name}-{t.work}")
def test_a_trace_has_its_rows_and_the_same_ones_every_time(trace: Trace) -> None:
    of_files = trace.file_rows(1.0)
    assert sum(trace.interval_rows(1.0)) == sum(of_files)
    assert len(of_files) == trace.length_s / FILE_S
    assert of_files == trace.file_rows(1.0)
    rates = [trace.arrivals.rate(at_s + FILE_S) for at_s in trace.steps_s]
    for rate, at_s in zip(rates, trace.steps_s, strict=True):
        if not trace.noise:
            assert of_files[int(at_s / FILE_S)] == round(rate * FILE_S)


def test_noise_is_a_factor_of_whole_intervals() -> None:
    [noisy] = [trace for trace in traces(Phases(2, 4, 3, 200)) if trace.noise]
    rows = np.array(noisy.file_rows(1.0)).reshape(-1, 4)
    assert (rows == rows[:, :1]).all()
    relative = rows[:, 0] / rows.mean()
    assert 0.25 < relative.std() < 0.35


def test_a_session_has_all_its_rows_within_its_gap_and_its_key_never_comes_again() -> None:
    [trace] = [trace for trace in traces(Phases(2, 4, 3, 5)) if trace.sessions]
    drawn = keys_of(trace, 1.0)
    files = [drawn(number) for number in range(20)]
    for number, keys in enumerate(files):
        for key in set(keys.tolist()):
            held = [n for n, other in enumerate(files) if key in other]
            assert held == list(range(held[0], held[-1] + 1))
            assert len(held) <= SESSION_ROWS
            assert number in held


def test_output_is_known_beforehand_row_by_row() -> None:
    keys = np.array([7, 3, 7, 7, 3])
    assert numbered(keys).tolist() == [[3, 1], [3, 2], [7, 1], [7, 2], [7, 3]]
    assert sessions(keys).tolist() == [[3, 2], [7, 3]]

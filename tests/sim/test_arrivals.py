"""Arrivals: the rows between two times are the integral of the rate, whatever the process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.sim.arrivals import Arrivals, Constant, RecordedRates, Sine, Spike, Steps
from braided.sim.keys import Hotspot, Zipf, zipf_shares

PROCESSES: list[Arrivals] = [
    Constant(100),
    Sine(100, 80, 30),
    Steps(((5, 10), (7, 200), (3, 0))),
    Spike(50, 400, 10, 5),
    RecordedRates([0, 3, 8], [10, 300, 20]),
]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: type(p).__name__)
@given(st.floats(0, 60), st.floats(0, 30))
def test_rows_are_the_integral_of_the_rate(process: Arrivals, start: float, length: float) -> None:
    grid = np.linspace(start, start + length, 4001)
    middle = (grid[1:] + grid[:-1]) / 2
    integral = sum(process.rate(float(at)) for at in middle) * length / 4000
    assert process.rows(start, start + length) == pytest.approx(integral, rel=0.02, abs=3)


def test_steps_tell_when_they_change() -> None:
    assert Steps(((5, 1), (7, 2))).changes(20) == [0, 5, 12, 17]


def test_a_trace_without_order_is_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        RecordedRates([1, 0], [1, 1])


def test_keys_have_zipf_shares_and_a_shuffle_moves_them() -> None:
    keys = Zipf(keys=1000, skew=1.0, shuffles_per_minute=2)
    assert keys.version(29) == 0
    assert keys.version(30) == 1
    before, after = keys.shares(0, 64), keys.shares(1, 64)
    assert before.sum() == pytest.approx(1)
    assert np.abs(before - after).sum() > 0.1
    assert keys.hottest(0) == pytest.approx(zipf_shares(1000, 1.0)[0])
    assert np.array_equal(before, Zipf(keys=1000, skew=1.0, shuffles_per_minute=2).shares(0, 64))


def test_a_hotspot_has_its_share_and_moves_on() -> None:
    keys = Hotspot(keys=1000, hot_keys=1, share=0.8, every_s=10)
    assert keys.shares(0, 50).max() > 0.79
    assert keys.shares(0, 50).argmax() != keys.shares(1, 50).argmax()
    assert keys.version(25) == 2

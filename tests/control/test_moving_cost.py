"""The cost of moving: from waits to bytes per second and seconds per slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.measure.moving_cost import CatchUp, MovingCost, MovingRates


def waits(rates: MovingRates, count: int, seed: int, noise: float = 0.0) -> list[CatchUp]:
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        slots = int(chance.integers(1, 50))
        size = float(chance.uniform(0, 4e6)) * slots
        took_s = rates.expected_s(size, slots) * (1 + noise * chance.standard_normal())
        found.append(CatchUp(size, slots, took_s))
    return found


@given(
    st.sampled_from([1e6, 20e6, 100e6, 2e9]),
    st.sampled_from([0.0001, 0.005, 0.1]),
    st.integers(0, 1000),
)
def test_both_rates_are_found(bytes_per_s: float, slot_s: float, seed: int) -> None:
    true = MovingRates(bytes_per_s, slot_s)
    cost = MovingCost()
    cost.add(waits(true, 200, seed, noise=0.1))
    # Each may hide behind the other, and of a slot that is nearly empty little is known then;
    # together they say what moving takes.
    later, rates = waits(true, 20, seed + 1), cost.rates()
    expected_s = sum(rates.expected_s(wait.bytes, wait.slots) for wait in later)
    assert expected_s == pytest.approx(sum(wait.waited_s for wait in later), rel=0.3)


def test_what_is_assumed_holds_until_there_is_something_to_go_by() -> None:
    cost = MovingCost(MovingRates(50e6, 0.01))
    assert cost.rates() == MovingRates(50e6, 0.01)
    assert not cost.measured
    cost.add([CatchUp(0, 0, 1.0), CatchUp(1e6, 1, float("nan"))])
    assert cost.rates() == MovingRates(50e6, 0.01)
    assert not cost.measured
    cost.add([CatchUp(100e6, 1, 4.0)])
    assert cost.measured
    assert 25e6 < cost.rates().bytes_per_s < 30e6


def test_one_long_wait_does_not_make_moving_dear_for_long() -> None:
    cost = MovingCost()
    cost.add(waits(MovingRates(), 30, 1))
    cost.add([CatchUp(1e6, 1, 1000.0)])
    assert cost.rates().expected_s(100e6, 100) == pytest.approx(1.05, rel=0.1)
    # If it goes on, it is not an accident any more.
    cost.add(waits(MovingRates(20e6, 0.0005), 64, 2))
    assert cost.rates().bytes_per_s == pytest.approx(20e6, rel=0.1)


def test_waits_of_one_kind_are_no_division_by_zero() -> None:
    cost = MovingCost()
    for _ in range(300):
        cost.add([CatchUp(1e6, 10, 0.1)])
    assert cost.rates().expected_s(1e6, 10) == pytest.approx(0.1, rel=0.1)
    nothing = MovingCost()
    for _ in range(300):
        nothing.add([CatchUp(0.0, 10, 0.0)])
    assert nothing.rates().slot_s < 0.0001
    assert nothing.rates().bytes_per_s > 0

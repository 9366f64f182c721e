"""Windows of slots: calm while nothing changes, quick when something does; one batch fools none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.measure.slot_loads import SlotWindow

COST_S = 0.001


def batch(chance: np.random.Generator, share: np.ndarray, rows: int = 20_000) -> np.ndarray:
    return chance.poisson(share * rows).astype(float)


@given(st.integers(0, 2**32 - 1))
def test_shares_come_nearer_to_the_truth_with_every_batch(seed: int) -> None:
    chance = np.random.default_rng(seed)
    share = chance.dirichlet(np.ones(50))
    window, errors = SlotWindow(50, length_batches=16), []
    for _ in range(24):
        rows = batch(chance, share, 5000)
        window.add(rows, rows * COST_S)
        errors.append(float(np.abs(window.loads().share - share).sum()))
    assert np.mean(errors[12:]) < 0.6 * errors[0]
    assert window.loads().share.sum() == pytest.approx(1)


def test_a_new_hotspot_is_known_after_one_batch_in_a_long_window() -> None:
    window = SlotWindow(10, length_batches=50)
    even = np.full(10, 1000.0)
    for _ in range(30):
        window.add(even, even * COST_S)
    hot = even.copy()
    hot[3] = 9000
    window.add(hot, hot * COST_S)
    assert window.loads().share[3] == pytest.approx(0.5, abs=0.05)
    assert window.loads().load(18_000)[3] == pytest.approx(9, rel=0.1)


def test_shuffled_keys_are_known_after_one_batch_though_no_slot_stands_out() -> None:
    chance = np.random.default_rng(1)
    before, after = (1 + 0.3 * chance.standard_normal((2, 400)).clip(-2, 2)) / 400
    window = SlotWindow(400, length_batches=20)
    for _ in range(20):
        rows = batch(chance, before)
        window.add(rows, rows * COST_S)
    rows = batch(chance, after)
    window.add(rows, rows * COST_S)
    # What one batch can tell, and nothing of what was before.
    assert np.allclose(window.loads().share, rows / rows.sum())


def test_rows_that_only_vary_by_chance_do_not_end_a_window() -> None:
    chance = np.random.default_rng(2)
    share = np.full(200, 1 / 200)
    window = SlotWindow(200, length_batches=10)
    for _ in range(40):
        window.add(batch(chance, share, 10_000), np.zeros(200))
    one_batch = np.sqrt(50) / 10_000
    assert np.std(window.loads().share) < 0.5 * one_batch


def test_a_pause_that_falls_on_one_slot_is_not_taken_for_its_cost() -> None:
    window = SlotWindow(4, length_batches=5)
    rows = np.full(4, 100.0)
    for _ in range(10):
        window.add(rows, rows * COST_S)
    paused = rows * COST_S
    paused[2] += 3.0
    window.add(rows, paused)
    assert window.loads().cost_s == pytest.approx(COST_S)
    window.add(rows, paused)  # twice is no accident
    assert window.loads().cost_s[2] > 3 * COST_S


@pytest.mark.parametrize("rows_per_s", [300, 800])
def test_timers_that_fire_by_chance_are_all_in_the_sum(rows_per_s: int) -> None:
    """Slots with hardly a row each, and timers that take a few milliseconds: to each slot they come
    in bursts, and together they are most of the work.
    """
    chance = np.random.default_rng(4)
    slots, timer_s, timers_per_s = 256, 0.003, 270
    window, seen = SlotWindow(slots), []
    for number in range(120):
        rows = chance.poisson(rows_per_s / slots, slots).astype(float)
        timers = chance.poisson(timers_per_s / slots, slots)
        window.add(rows, rows * 0.0002 + timers * timer_s)
        if number >= 20:
            loads = window.loads()
            seen.append(float((loads.load(rows_per_s) + loads.rowless_s * rows_per_s).sum()))
    real = rows_per_s * 0.0002 + timers_per_s * timer_s
    assert np.mean(seen) == pytest.approx(real, rel=0.05)


def test_a_slot_with_few_rows_is_expected_to_cost_what_others_do() -> None:
    window = SlotWindow(50)
    rows = np.full(50, 500.0)
    rows[7] = 1
    busy = rows * COST_S
    busy[7] = 0.05
    window.add(rows, busy)
    assert window.loads().cost_s[7] < 8 * COST_S
    assert window.loads().cost_s[0] == pytest.approx(COST_S, rel=0.01)


def test_a_batch_without_rows_changes_nothing() -> None:
    window = SlotWindow(3)
    window.add([1, 2, 3], [1, 2, 3])
    before = window.loads().share.tolist()
    window.add([0, 0, 0], [0, 0, 0])
    assert window.loads().share.tolist() == before
    assert SlotWindow(3).loads().share.tolist() == [0, 0, 0]
    assert SlotWindow(3).loads().load(10).tolist() == [0, 0, 0]


def test_windows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        SlotWindow(0)
    with pytest.raises(ValueError, match="one batch long"):
        SlotWindow(3, 0.5)
    with pytest.raises(ValueError, match="for 3 slots"):
        SlotWindow(3).add([1, 2], [1, 2])

"""The estimator: reports add up within a batch, and batches fade behind newer ones."""

from __future__ import annotations

import numpy as np
import pytest

from braided.control.measure.estimator import Estimator, SlotTotals, slot_totals
from braided.control.measure.slot_loads import SlotLoads

Report = tuple[list[int], list[int], list[int]]


def add(estimator: Estimator, slots: int, *reports: Report) -> SlotLoads:
    """One batch of an operator: its reports have slots, rows and busy nanoseconds."""
    return estimator.add({"o": slot_totals(slots, reports)})["o"]


def length(half_life_batches: float) -> float:
    """The window in which a batch counts half after so many others."""
    return 1 / (1 - 0.5 ** (1 / half_life_batches))


def test_reports_of_one_batch_add_up() -> None:
    totals = slot_totals(4, [([0, 2], [5, 1], [500, 100]), ([2, 2], [1, 1], [50, 50])])
    assert totals.rows.tolist() == [5, 0, 3, 0]
    assert (totals.busy_s * 1e9).tolist() == pytest.approx([500, 0, 200, 0])


def test_a_steady_load_is_reported_as_it_is_from_the_first_batch_on() -> None:
    estimator = Estimator(length(2))
    for _ in range(9):
        loads = add(estimator, 2, ([0, 1], [10, 20], [100, 200]))
        np.testing.assert_allclose(loads.load(30) * 1e9, [100, 200])
        np.testing.assert_allclose(estimator.load("o") * 30e9, [100, 200])


def test_after_a_half_life_what_was_counts_half() -> None:
    estimator = Estimator(length(3))
    add(estimator, 3, ([0], [2], [80]))
    for _ in range(2):
        add(estimator, 3, ([2], [1], [40]))
    before, now, _ = add(estimator, 3, ([1], [1], [40])).load().tolist()
    assert before == pytest.approx(now)


def test_a_new_hotspot_of_single_rows_shows_within_a_half_life() -> None:
    estimator = Estimator(length(4))
    for batch in range(24):
        loads = add(estimator, 2, ([int(batch >= 20)], [1], [100]))
    old, new = loads.load().tolist()
    assert new == pytest.approx(old, rel=0.05)


def test_rows_stand_in_while_no_time_is_measured() -> None:
    loads = add(Estimator(), 2, ([0, 1], [1, 3], [0, 0]))
    assert (loads.load() * 4).tolist() == [1, 3]


def test_nothing_measured_is_no_load() -> None:
    estimator = Estimator(slots={"o": 3})
    assert estimator.load("o").tolist() == [0, 0, 0]
    assert add(estimator, 3, ([], [], [])).load().tolist() == [0, 0, 0]
    assert add(estimator, 3).load().tolist() == [0, 0, 0]
    assert estimator.load("o").tolist() == [0, 0, 0]


def test_a_clock_that_went_back_counts_as_nothing() -> None:
    totals = slot_totals(2, [([0, 1], [1, 1], [-5, 10])])
    assert (totals.busy_s * 1e9).tolist() == pytest.approx([0, 10])


@pytest.mark.parametrize(
    ("slots", "rows", "busy"), [([2], [1], [1]), ([-1], [1], [1]), ([0, 1], [1], [1])]
)
def test_a_report_that_does_not_fit_is_refused(
    slots: list[int], rows: list[int], busy: list[int]
) -> None:
    with pytest.raises(ValueError, match="a report"):
        slot_totals(2, [(slots, rows, busy)])


def test_what_was_handed_out_stays_as_it_was() -> None:
    estimator = Estimator()
    first = estimator.add({"o": SlotTotals(np.array([10.0, 30.0]), np.array([1.0, 3.0]))})
    share, cost_s = first["o"].share.tolist(), first["o"].cost_s.tolist()
    second = estimator.add({"o": SlotTotals(np.array([900.0, 30.0]), np.array([9.0, 9.0]))})
    assert (first["o"].share.tolist(), first["o"].cost_s.tolist()) == (share, cost_s)
    assert second["o"].share.tolist() != share


def test_a_cold_batch_counts_until_there_are_rows_in_a_later_one() -> None:
    estimator = Estimator(slots={"o": 2}, cold_batches=1)
    cold = add(estimator, 2, ([0, 1], [100, 100], [90_000, 10_000]))
    assert cold.load()[0] > 5 * cold.load()[1]
    assert add(estimator, 2).load().tolist() == cold.load().tolist()
    for _ in range(2):
        warm = add(estimator, 2, ([0, 1], [100, 100], [1000, 1000]))
        np.testing.assert_allclose(warm.cost_s * 1e9, [10, 10])


def test_time_of_timers_counts_where_slots_are_compared() -> None:
    estimator = Estimator(4)
    for _ in range(3):
        add(estimator, 3, ([0, 2], [0, 0], [300, 100]))
    only_timers = estimator.load("o")
    assert only_timers[0] == pytest.approx(3 * only_timers[2]) and only_timers[1] == 0
    add(estimator, 3, ([0, 1], [0, 10], [2_000_000, 10]))
    both = estimator.load("o")
    assert both.argmax() == 0 and both[1] > 0
    # Compared with rows, a timer's second is a second.
    steady = Estimator(4)
    for _ in range(5):
        add(steady, 2, ([0, 1], [0, 100], [50_000, 50_000]))
    timers, rows = steady.load("o").tolist()
    assert timers == pytest.approx(rows, rel=0.01)

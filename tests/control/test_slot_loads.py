"""Measurements: reports add up within a batch and fade from batch to batch."""

from __future__ import annotations

import numpy as np
import pytest

from braided.control.measure.slot_loads import SlotLoads


def test_reports_of_one_batch_add_up() -> None:
    loads = SlotLoads(4)
    loads.begin_batch()
    loads.add([0, 2], [5, 1], [500, 100])
    loads.add([2, 2], [1, 1], [50, 50])
    assert loads.rows().tolist() == [5, 0, 3, 0]
    assert loads.load().tolist() == loads.busy_ns().tolist() == [500, 0, 200, 0]


def test_a_steady_load_is_reported_as_it_is_from_the_first_batch_on() -> None:
    loads = SlotLoads(2, half_life_batches=2)
    for _ in range(9):
        loads.begin_batch()
        loads.add([0, 1], [10, 20], [100, 200])
        np.testing.assert_allclose(loads.load(), [100, 200])


def test_after_a_half_life_what_was_counts_half() -> None:
    loads = SlotLoads(2, half_life_batches=3)
    loads.begin_batch()
    loads.add([0], [1], [80])
    for _ in range(3):
        loads.begin_batch()
    loads.add([1], [1], [40])
    before, now = loads.load().tolist()
    assert before == pytest.approx(now)


def test_a_new_hotspot_shows_within_a_half_life() -> None:
    loads = SlotLoads(2, half_life_batches=4)
    for batch in range(24):
        loads.begin_batch()
        loads.add([int(batch >= 20)], [1], [100])
    old, new = loads.load().tolist()
    assert new == pytest.approx(old, rel=0.05)


def test_rows_stand_in_while_no_time_is_measured() -> None:
    loads = SlotLoads(2)
    loads.add([0, 1], [1, 3], [0, 0])
    assert loads.load().tolist() == [1, 3]


def test_nothing_measured_is_no_load() -> None:
    loads = SlotLoads(3)
    assert loads.load().tolist() == [0, 0, 0]
    loads.add([], [], [])
    loads.begin_batch()
    assert loads.load().tolist() == [0, 0, 0]


def test_a_clock_that_went_back_counts_as_nothing() -> None:
    loads = SlotLoads(2)
    loads.add([0, 1], [1, 1], [-5, 10])
    assert loads.load().tolist() == [0, 10]


@pytest.mark.parametrize(
    ("slots", "rows", "busy"), [([2], [1], [1]), ([-1], [1], [1]), ([0, 1], [1], [1])]
)
def test_a_report_that_does_not_fit_is_refused(
    slots: list[int], rows: list[int], busy: list[int]
) -> None:
    with pytest.raises(ValueError, match="a report"):
        SlotLoads(2).add(slots, rows, busy)

"""When a query has recovered from a surge."""

from __future__ import annotations

from braided.bench.recovery import recovery_batches


def recovered(before: list[float], during: list[float], after: list[float]) -> int | None:
    """By the ages of rows, batch by batch; the surge is from 10 to 20."""
    batches = [
        *((number / 100, age) for number, age in enumerate(before)),
        *((10 + number / 100, age) for number, age in enumerate(during)),
        *((20 + number / 100, age) for number, age in enumerate(after)),
    ]
    return recovery_batches(batches, 10.0, 20.0)


def test_batches_are_counted_until_three_in_a_row_are_as_before() -> None:
    assert recovered([100, 120], [900], [900, 700, 151, 150, 90, 100]) == 3
    assert recovered([100], [900], [100, 100, 100]) == 0
    assert recovered([100], [], [125, 125, 125]) == 0


def test_a_batch_that_is_quick_by_chance_is_no_recovery() -> None:
    assert recovered([100], [900], [900, 100, 100, 900, 100, 100, 100]) == 4


def test_a_batch_that_is_late_long_afterwards_does_not_count() -> None:
    assert recovered([100], [900], [900, 100, 100, 100, 100, 900, 100]) == 1


def test_nothing_is_said_where_there_is_nothing_to_go_by() -> None:
    assert recovered([], [900], [100, 100, 100, 100]) is None
    assert recovered([100], [900], [900, 900, 100, 100]) is None
    assert recovered([100], [900], []) is None

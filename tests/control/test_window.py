"""The last values of a number, and their mean."""

from __future__ import annotations

import pytest

from braided.control.measure.window import Recent


def test_one_outlier_does_not_move_the_mean_and_two_alike_do() -> None:
    recent = Recent(8)
    for value in (10, 11, 10, 9, 10):
        recent.add(value)
    recent.add(100)
    assert recent.mean() == pytest.approx(10)
    recent.add(101)
    assert recent.mean() == pytest.approx(100.5)
    assert Recent(3).mean() == 0


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one value long"):
        Recent(0)

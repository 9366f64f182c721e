"""The goals of `braided bench routing`: which a run has missed."""

from __future__ import annotations

import pytest

from braided.bench.routing import missed


@pytest.mark.parametrize(
    ("ratio", "lines", "names"),
    [
        (1.1, 0, []),
        (1.101, 0, ["ratio"]),
        (1.0, 2, ["plan_lines_added"]),
    ],
)
def test_goals_that_were_not_reached_are_named(ratio: float, lines: int, names: list[str]) -> None:
    assert missed({"ratio": ratio, "plan_lines_added": lines}) == names

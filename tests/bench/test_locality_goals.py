"""The goals of `braided bench locality`: which a run has missed, what came of promises, and what
counting takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from braided.bench.locality import JudgedPeriod, LocalitySize, counting_us, missed, promise
from braided.control.events import Located
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.table import RoutingTable
from braided.options import Options
from braided.spark.shuffle_bytes import ReadBytes
from braided.tasks.key_pairs import PairSetting

REACHED: dict[str, Any] = {
    "locality_ratio": 2.5,
    "remote_bytes_ratio": 0.5,
    "imbalance": 1.1,
    "prediction_error": 0.05,
    "hot_path_cost": 0.02,
    "identical": True,
}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ({}, []),
        ({"locality_ratio": 2.49}, ["locality_ratio"]),
        ({"remote_bytes_ratio": 0.501, "imbalance": 1.2}, ["remote_bytes_ratio", "imbalance"]),
        ({"prediction_error": 0.06}, ["prediction_error"]),
        ({"prediction_error": None}, ["prediction_error"]),  # nothing was promised
        ({"hot_path_cost": 0.021}, ["hot_path_cost"]),
    ],
)
def test_goals_that_were_not_reached_are_named(found: dict[str, Any], names: list[str]) -> None:
    assert missed({**REACHED, **found}) == names


TABLE = RoutingTable(0, 2, np.arange(4) % 2, hosts=("a", "b"))


def _judged(batch: int, keys: int, locality: float) -> JudgedPeriod:
    numbers = np.arange(keys)
    assigned = KeyAssignment.of([b"%d" % n for n in numbers], numbers, numbers, numbers % 4)
    tables = {"here": replace(TABLE, assigned=assigned), "there": TABLE}
    return JudgedPeriod(batch, tables, ReadBytes(0, 0, 0, 0), locality, 1.0)


def _located(batch: int, entries: int, held: str = "") -> Located:
    return Located(
        batch, ("here", "there"), 1, "", 0.2, 0.6, 0.55, 1, 1, 1, entries, 9, 0, 0, 0, 0, held
    )


def test_a_promise_is_held_against_the_rows_after_the_table_that_it_was_made_for() -> None:
    found = [_judged(20, 7, 0.4), _judged(32, 9, 0.5)]
    assert promise(_located(12, 7), found)["came"] == 0.4
    assert promise(_located(24, 9), found)["came"] == 0.5
    assert promise(_located(36, 9), found)["came"] is None  # nothing was judged after it
    assert promise(_located(12, 9), found)["came"] is None  # not in effect by then
    assert promise(_located(12, 7, "it does not pay"), found)["came"] is None


def test_what_counting_takes_is_measured_on_the_rows_of_the_benchmark() -> None:
    assert 0 < counting_us(LocalitySize(batches=2)) < 1000
    assert 0 < counting_us(LocalitySize(batches=2), every=2) < 1000
    assert PairSetting.every == Options.locality_every  # which is what the goal is judged at

"""Rows that arrive by the clock, as benchmarks have them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from braided.bench.arrivals import arrive


def test_a_query_that_fails_before_it_begins_is_not_fed_for_ever(tmp_path: Path) -> None:
    looks, begun = iter([True, True]), list[float]()
    of_feed = (
        tmp_path,
        3,
        lambda number: np.arange(number + 1),
        lambda: False,
        begun.append,
        lambda: next(looks, False),
    )
    feeder = threading.Thread(target=arrive, args=of_feed, daemon=True)
    feeder.start()
    feeder.join(20)
    assert not feeder.is_alive()
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert not begun


def test_all_rows_come_that_are_due_once_it_has_begun(tmp_path: Path) -> None:
    begun = list[float]()
    arrive(tmp_path, 2, lambda number: np.arange(9), lambda: True, begun.append, lambda: True)
    # One before the clock starts, and two that count.
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    assert len(begun) == 1

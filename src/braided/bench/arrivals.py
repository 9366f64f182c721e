"""Rows that arrive by the clock, in files, whether or not anybody keeps up with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from braided.bench.session import KeyNumbers

__all__ = ["FILE_S", "arrive", "show_rows"]

FILE_S = 0.25
"""A file comes every so often."""


def arrive(
    directory: Path,
    files: int,
    keys_of: Callable[[int], KeyNumbers],
    is_begun: Callable[[], bool],
    begin: Callable[[float], None],
    is_running: Callable[[], bool],
) -> None:
    """Writes so many files of rows (k, v), each when it is due; `v` is when a row arrived.

    Until `is_begun`, rows come that nobody counts, like those of the first file. `begin` is told
    when the first file that counts is due. A query that is not running any more, because it has
    failed, gets no more of them, and would never begin.
    """
    start_s, number, counts = time.time(), 0, False
    while (not counts or number < files) and is_running():
        due_s = start_s + (number + 1) * FILE_S
        keys = keys_of(number if counts else 0)
        time.sleep(max(0.0, due_s - time.time()))
        show_rows(directory, keys, due_s)
        number += 1
        if not counts and is_begun():
            start_s, number, counts = due_s, 0, True
            begin(due_s)


def show_rows(directory: Path, keys: KeyNumbers, due_s: float) -> None:
    """One more file, with a row for each key, all of which arrived then."""
    # A microsecond apart, so that the files are as long as their rows are many.
    arrived = due_s - np.arange(len(keys)) * 1e-6
    hidden = directory / f".{due_s:.3f}.parquet"
    pq.write_table(pa.table({"k": keys, "v": arrived}), hidden)
    hidden.rename(directory / f"{due_s:.3f}.parquet")

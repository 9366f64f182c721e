"""What holds for all tests: their cases, where they write, and in which order they run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import settings

# Hypothesis draws the same cases in every run of `make test`; `make fuzz` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

_HERE = Path(__file__).parent
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 << 30


def _write_to_memory() -> None:
    """Lets temporary directories, pytest's too, be in memory where there is room.

    Nothing here cuts the power, so a sync proves nothing; on a disk it is most of what a small
    batch takes. Processes that tests start inherit this.
    """
    if "TMPDIR" in os.environ or not _MEMORY.is_dir():
        return
    if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # found anew at the next use


_write_to_memory()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder, and puts the long ones first.

    The processes that share the work (pytest-xdist) begin with a part of the list each and then
    take from each other's ends. So every part gets the tests that kill drivers, which take minutes,
    then modules that share a Spark session, and what takes no time last, to fill what is left.
    """
    for item in items:
        for name in _markers(item.path):
            item.add_marker(name)
    kill: list[pytest.Item] = []
    spark: list[pytest.Item] = []
    quick: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        (kill if "kill" in marks else spark if "spark" in marks else quick).append(item)
    modules = [list(module) for _, module in groupby(spark, key=lambda item: item.path)]
    parts: list[list[pytest.Item]] = [
        [] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    ]
    for group in (*([item] for item in kill), *modules, *([item] for item in quick)):
        min(parts, key=len).extend(group)
    items[:] = [item for part in parts for item in part]


def _markers(path: Path) -> Iterable[str]:
    folder = path.relative_to(_HERE).parts[0]
    return {"kill": ("kill", "spark", "slow"), "spark": ("spark",)}.get(folder, ())

"""Exactly once under kill -9 with the checkpoint and the output in an object store, and two drivers
on one checkpoint there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from braided.bench.s3_server import S3Server
from support.kill.crashes import Scene
from support.kill.exact import OFTEN, is_exact
from support.kill.oracle import random_batches

# Each step of the commit, in a first batch or in a later one.
COMMIT_STEPS = {
    "task-after-changelog:1": 0,
    "manifest-writing:1": 0,
    "manifest-linked:1": 1,
    "publishing:2": 1,
    "after-manifest:2": 1,
    "after-publish:2": 0,
    "gc:5": 0,
}
"""And by how many batches what readers see is behind what is committed."""


def test_a_driver_killed_at_each_step_of_the_commit_loses_and_repeats_nothing_on_s3(
    tmp_path: Path, java: str, s3_server: S3Server
) -> None:
    batches = random_batches(12)
    scene = Scene(tmp_path, batches, "totals", java=java, s3=s3_server, **OFTEN)
    try:
        for point, behind in COMMIT_STEPS.items():
            scene.dies_at(point)
            committed = scene.committed_batch()
            assert committed < len(batches) - 1, "too little input for so many deaths"
            is_exact(scene, batches, committed - behind, committed)
        scene.finishes()
        last = len(batches) - 1
        assert scene.committed_batch() == scene.spark_batch() == last
        is_exact(scene, batches, last, last)
    finally:
        scene.end_all()


@pytest.mark.parametrize("point", ["manifest-writing:2", "after-manifest:2"])
def test_a_driver_that_was_taken_over_from_commits_and_publishes_nothing_more(
    point: str, tmp_path: Path, java: str, s3_server: S3Server
) -> None:
    batches = random_batches(5)
    scene = Scene(tmp_path, batches, "totals", java=java, s3=s3_server)
    try:
        paused = scene.pauses_at(point)
        assert "is held by" in (said := scene.is_refused()) and f"pid {paused.driver.pid}" in said
        scene.takes_over()
        last = len(batches) - 1
        is_exact(scene, batches, last, last)
        files = sorted(path for path in scene.home.rglob("*") if path.is_file())
        said = paused.goes_on()
        assert "FencedError" in said
        assert scene.committed_batch() == scene.spark_batch() == last
        is_exact(scene, batches, last, last)
        left = {path for path in scene.home.rglob("*") if path.is_file()} - set(files)
        assert not {path for path in left if "manifests" in path.parts or "output" in path.parts}
    finally:
        scene.end_all()

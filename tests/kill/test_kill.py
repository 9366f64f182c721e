"""Exactly once under kill -9.

A driver is killed at one step of a batch after the other, on one checkpoint, and started again each
time. After every death and at the end, what readers see and what is committed is compared with
a plain recomputation of the input.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import braided
from braided.bench.s3_server import S3Server
from support.cluster_session import settings_of_cluster
from support.kill.branches import SINKS, expected
from support.kill.crashes import Progress, Scene
from support.kill.exact import KAFKA_STEPS, OFTEN, TABLE_STEPS, is_exact, ordered
from support.kill.oracle import InputRow, TotalsRow, random_batches, totals

# Where a manifest is there, but its output is not.
UNPUBLISHED = ("manifest-linked", "after-manifest", "publishing")
# Where a batch is abandoned although all its tasks have updated the cache.
ABANDONED = "manifest-writing"


SHOWN_BY_ALL = tuple(SINKS)


class Stage:
    """Makes scenes, and ends what is left of them."""

    def __init__(self, directory: Path, java: str, s3: S3Server | None) -> None:
        self._directory = directory
        self._java = java
        self._s3 = s3
        self.scenes: list[Scene] = []

    def scene(self, batches: list[list[InputRow]], operator: str, **more: Any) -> Scene:
        # Other sinks write files themselves, to where they are told.
        s3 = self._s3 if more.get("sink", "parquet") == "parquet" else None
        scene = Scene(self._directory, batches, operator, java=self._java, s3=s3, **more)
        self.scenes.append(scene)
        return self.scenes[-1]


@pytest.fixture
def stage(tmp_path: Path, java: str, s3_if_asked: S3Server | None) -> Iterator[Stage]:
    stage = Stage(tmp_path, java, s3_if_asked)
    try:
        yield stage
    finally:
        for scene in stage.scenes:
            scene.end_all()


def sums(progress: list[Progress]) -> dict[str, int]:
    names = ("slotsOpened", "cacheHits", "rolledBack", "caughtUp", "rebuilt", "cacheErrors")
    return {name: sum(p.counters.get(name, 0) for p in progress) for name in names}


# Each place in the first batch or in a later one; some in both.
EVERY_STEP = [
    "before-routing:1",
    "task-rows:1",
    "manifest-writing:1",
    "manifest-linked:1",  # the fourth try of batch 0
    "publishing:1",  # of the redelivered batch 0
    "task-after-changelog:4",  # the other channel has updated the cache, or is about to
    "gc:1",  # of orphans, at the start
    "snapshot:8",
    "manifest-writing:2",
    "after-manifest:2",
    "publishing:3",
    "after-publish:2",
    "gc:5",
]


def test_driver_killed_at_every_step_loses_and_repeats_nothing(stage: Stage) -> None:
    batches = random_batches(16)
    scene = stage.scene(batches, "totals", **OFTEN)
    for point in EVERY_STEP:
        scene.dies_at(point)
        name = point.partition(":")[0]
        committed = scene.committed_batch()
        published = committed - (name in UNPUBLISHED)
        assert committed < len(batches) - 1, "too little input for so many deaths"
        if name != "gc":  # which may come before the first batch of a run
            assert scene.spark_batch() == published - (name == "after-publish")
        is_exact(scene, batches, published, committed)
    scene.finishes()

    last = len(batches) - 1
    assert scene.committed_batch() == scene.spark_batch() == last
    is_exact(scene, batches, last, last)
    through_cache = scene.state(cached=True)
    assert through_cache.records == scene.state().records
    assert through_cache.opening.hits == through_cache.opening.opened
    rolls_back_and_never_rebuilds(scene, EVERY_STEP)


# Fail point, and which of the three sinks show the newest batch that is committed.
SEVERAL_SINKS: dict[str, tuple[str, ...]] = {
    "between-prepares:2": SHOWN_BY_ALL,  # of batch 0: the third sink has run nothing
    "between-sinks:2": ("first", "by-batch"),  # of batch 0
    "between-sinks:3": ("first",),  # of batch 1: batch 0 came again
}


def test_a_flow_with_three_sinks_commits_for_all_or_none_wherever_it_is_killed(
    stage: Stage,
) -> None:
    batches = random_batches(3, rows=48, keys=7)
    scene = stage.scene(batches, "totals", sink="branches", **OFTEN)
    for point, shown in SEVERAL_SINKS.items():
        scene.dies_at(point)
        are_exact(scene, batches, scene.committed_batch(), shown)
    assert scene.committed_batch() == 1
    scene.finishes()

    assert scene.committed_batch() == scene.spark_batch() == 2
    are_exact(scene, batches, 2, SHOWN_BY_ALL)
    nothing_is_left_behind(scene)


def are_exact(
    scene: Scene, batches: list[list[InputRow]], committed: int, shown: tuple[str, ...]
) -> None:
    """State is the oracle's at one batch; sinks show it, or the one before."""
    now, before = expected(batches[: committed + 1]), expected(batches[: max(committed, 0)])
    for name in SINKS:
        rows = (now if name in shown else before).rows[name]
        given = scene.by_batch(name) if name == "by-batch" else scene.published(name)
        assert ordered(given) == ordered(rows), name
    for name, state in now.state.items():
        assert scene.state(name=name).records == state


def nothing_is_left_behind(scene: Scene) -> None:
    waiting = list((scene.checkpoint / "braided" / "out").iterdir())
    assert not [path for path in waiting if path.name.endswith(".list") or not any(path.iterdir())]


def test_aggregates_count_each_row_once_wherever_the_driver_is_killed(stage: Stage) -> None:
    batches = random_batches(5)
    scene = stage.scene(batches, "aggregates", **OFTEN)
    for point in ("task-after-changelog:4", "publishing:2"):
        scene.dies_at(point)
    scene.finishes()
    expected = []
    running: dict[str, tuple[int, int]] = {}
    for batch in batches:
        for row in batch:
            count, total = running.get(row.key, (0, 0))
            running[row.key] = count + 1, total + row.amount
        expected += [(key, *running[key]) for key in {row.key for row in batch}]
    assert ordered(scene.published()) == sorted(expected)


def test_columnar_operators_lose_and_repeat_nothing_wherever_they_are_killed(stage: Stage) -> None:
    batches = random_batches(6)
    scene = stage.scene(batches, "columns", **OFTEN)
    for point in ("task-rows:2", "task-after-changelog:4", "manifest-writing:2", "publishing:2"):
        scene.dies_at(point)
        committed = scene.committed_batch()
        is_exact(scene, batches, committed - (point == "publishing:2"), committed)
    scene.finishes()
    last = len(batches) - 1
    is_exact(scene, batches, last, last)
    assert scene.state(cached=True).records == scene.state().records
    figures = sums(scene.progress())
    assert figures["rebuilt"] == figures["cacheErrors"] == 0 < figures["rolledBack"]


# The task that has a key's state, those of its shares, and the driver that merges them.
SPLIT_KEYS = ("task-after-changelog:5", "merged:2", "manifest-linked:2")


def test_split_keys_count_each_row_once_wherever_the_driver_is_killed(stage: Stage) -> None:
    """All keys are assigned to other slots in every batch, too."""
    batches = random_batches(8, keys=4)
    scene = stage.scene(batches, "sums", **OFTEN)

    def counted(committed: int) -> dict[str, tuple[int, int]]:
        state: dict[str, tuple[int, int]] = {}
        for row in (row for batch in batches[: committed + 1] for row in batch):
            count, total = state.get(row.key, (0, 0))
            state[row.key] = count + 1, total + row.amount
        return state

    for point in SPLIT_KEYS:
        scene.dies_at(point)
        assert scene.state().records == counted(scene.committed_batch())
    scene.finishes()
    last = len(batches) - 1
    assert scene.state().records == scene.state(cached=True).records == counted(last)
    rows = [(row.id, row.key, 1, row.amount) for batch in batches for row in batch]
    assert ordered(scene.published()) == rows
    written = scene.checkpoint / "braided" / "state" / "op"
    assert list(written.glob("*-merge-*")), "none was split"
    assert list(written.glob("*-assigned-*")), "none was assigned"
    # A slot whose first state was merged is read from nothing once; there are three such keys.
    figures = sums(scene.progress())
    assert figures["rebuilt"] <= 3 and figures["cacheErrors"] == 0


def test_every_fail_point_in_the_source_is_died_at() -> None:
    source = Path(braided.__file__).parent.rglob("*.py")
    places = {
        name for path in source for name in re.findall(r'reach\("([a-z-]+)"\)', path.read_text())
    }
    # In the middle of a create: tests/store/test_local_store.py cuts the power there.
    in_store = ("create-written", "create-linked")
    tables = (*TABLE_STEPS, *KAFKA_STEPS)
    deaths = (*EVERY_STEP, *SEVERAL_SINKS, *SPLIT_KEYS, *COUNTED, *tables, *in_store)
    assert places == {point.partition(":")[0] for point in deaths}


def rolls_back_and_never_rebuilds(scene: Scene, deaths: list[str]) -> None:
    progress = scene.progress()
    print(f"\n{len(deaths)} deaths: {sums(progress)}")
    assert sums(progress)["rebuilt"] == sums(progress)["cacheErrors"] == 0
    for run, point in enumerate(deaths, 2):
        first = next((p for p in progress if p.run == run and not p.redelivered), None)
        if point.startswith(ABANDONED) and first is not None and first.batch > 0:
            assert first.counters["rolledBack"] == first.counters["slotsOpened"] > 0


def test_carried_rows_and_moving_slots_survive_deaths(stage: Stage) -> None:
    batches = random_batches(8)
    rows, state = totals(batches)
    scene = stage.scene(batches, "totals", restless=True, **OFTEN)
    for point in ("after-manifest:3", "manifest-writing:3", "gc:5"):
        scene.dies_at(point)
        assert starts_of_keys(scene.published(), rows)
    scene.finishes()

    assert ordered(scene.published()) == ordered(rows)
    assert scene.state().records == state
    assert scene.state(cached=True).records == state
    figures = sums(scene.progress())
    print(f"\nrestless: {figures}")
    assert figures["rebuilt"] == figures["cacheErrors"] == 0
    assert figures["rolledBack"] > 0
    assert sum(p.counters.get("moves", 0) for p in scene.progress()) > 0
    assert scene.committed_batch() > len(batches), "nothing was carried"


def test_batches_that_are_cut_while_they_run_lose_and_repeat_nothing(stage: Stage) -> None:
    batches = random_batches(8)
    rows, state = totals(batches)
    scene = stage.scene(batches, "slow", **OFTEN)
    for point in ("manifest-linked:3", "after-publish:3"):
        scene.dies_at(point, cuts=True)
        assert starts_of_keys(scene.published(), rows)
    assert any(progress.is_cut for progress in scene.progress()), "no batch was cut"
    scene.finishes()

    assert ordered(scene.published()) == ordered(rows)
    assert scene.state().records == scene.state(cached=True).records == state
    figures = sums(scene.progress())
    assert figures["rebuilt"] == figures["cacheErrors"] == 0


def test_an_adversary_at_the_helm_loses_and_repeats_nothing(stage: Stage) -> None:
    batches = random_batches(20)
    scene = stage.scene(batches, "totals", adversary=True, **OFTEN)
    # Of a process, the fifth batch is the first that the controller has changed.
    for point in ("manifest-writing:6", "manifest-linked:6"):
        scene.dies_at(point)
        committed = scene.committed_batch()
        published = committed - (point.partition(":")[0] in UNPUBLISHED)
        is_exact(scene, batches, published, committed)
    scene.finishes()

    last = len(batches) - 1
    is_exact(scene, batches, last, last)
    assert scene.state(cached=True).records == scene.state().records
    figures = sums(scene.progress())
    moves = [p.counters["moves"] for p in scene.progress() if "moves" in p.counters]
    print(f"\nadversary: {figures}, {sum(moves)} moves")
    assert figures["rebuilt"] == figures["cacheErrors"] == 0
    assert sum(map(bool, moves)) >= 3


# Between the count of a batch's rows and their routing, by tables made for them.
COUNTED = ["counted:1", "counted:3"]


def test_slots_that_move_by_the_rows_of_their_own_batch_survive_deaths(stage: Stage) -> None:
    batches = random_batches(14)
    options = {**OFTEN, "braided.balance.sameBatch": "on"}
    scene = stage.scene(batches, "totals", adversary=True, **options)
    for point in COUNTED:
        scene.dies_at(point)
        committed = scene.committed_batch()
        is_exact(scene, batches, committed, committed)
    scene.finishes()
    last = len(batches) - 1
    is_exact(scene, batches, last, last)
    assert scene.state(cached=True).records == scene.state().records


def starts_of_keys(published: list[dict[str, Any]], rows: list[TotalsRow]) -> bool:
    """Whether, for every key, the first of its rows are there, each once."""
    expected = defaultdict(list)
    for row in rows:
        expected[row.key].append(tuple(row))
    found = defaultdict(list)
    for row in ordered(published):
        found[row[1]].append(row)
    return all(given == expected[key][: len(given)] for key, given in found.items())


def test_nondeterministic_operator_and_its_output_agree_after_every_death(stage: Stage) -> None:
    batches = random_batches(8)
    scene = stage.scene(batches, "tokens")
    scene.dies_at("manifest-linked:2")
    scene.keep_cache()
    # The JVM and the workers that outlive this driver are there when the next one starts.
    scene.dies_at("task-after-changelog:2", leave_rest=True)
    for point in ("manifest-writing:2", "publishing:1"):
        scene.dies_at(point)
        unpublished = point.partition(":")[0] in UNPUBLISHED
        tokens_follow(scene.published(), batches[: scene.committed_batch() + 1 - unpublished])
    # As on a host that had no part in the batches since.
    scene.restore_cache()
    scene.finishes()

    newest = tokens_follow(scene.published(), batches)
    assert scene.state().records == newest
    assert scene.state(cached=True).records == newest
    progress = scene.progress()
    print(f"\ncaught up: {sums(progress)}")
    assert sums(progress)["rebuilt"] == sums(progress)["cacheErrors"] == 0
    caught_up = next(p for p in progress if p.run == scene.runs and not p.redelivered)
    assert caught_up.counters["caughtUp"] == caught_up.counters["slotsOpened"] > 0


def tokens_follow(
    rows: list[dict[str, Any]], batches: list[list[InputRow]]
) -> dict[str, tuple[str, int]]:
    """Every input row has one output row, which gives out the token of its key's row before.

    The newest token of every key, and the number of its rows.
    """
    rows = sorted(rows, key=lambda row: row["id"])
    given = [(row.id, row.key) for batch in batches for row in batch]
    assert [(row["id"], row["key"]) for row in rows] == given
    newest: dict[str, tuple[str, int]] = {}
    for row in rows:
        token, count = newest.get(row["key"], ("", 0))
        assert row["before"] == token
        newest[row["key"]] = (row["token"], count + 1)
    return newest


def test_batch_runs_again_when_worker_processes_are_killed(stage: Stage, tmp_path: Path) -> None:
    batches = random_batches(6)
    for batch in (1, 3):
        batches[batch][30] = batches[batch][30]._replace(amount=-1)  # deadly to a worker, once
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    scene = stage.scene(batches, "dying", **OFTEN)
    # In batch 4 or 5, whether or not the workers beside those that died came so far.
    scene.loses_worker_at("task-after-changelog:11", {"DEATHS": str(deaths)})

    assert {int(path.name) for path in deaths.iterdir()} == {
        row.id for batch in batches for row in batch if row.amount < 0
    }
    again = scene.log.count("runs again: a worker process was lost")
    if settings_of_cluster():  # Spark runs the task again there, and no other one
        assert (scene.log.count("Lost task "), again) == (3, 0)
    else:
        assert again == 3
    is_exact(scene, batches, 5, 5)
    assert scene.state(cached=True).records == scene.state().records
    figures = sums(scene.progress())
    print(f"\n3 workers lost: {figures}")
    assert figures["rebuilt"] == figures["cacheErrors"] == 0


def test_foreach_batch_gets_identical_rows_again_after_a_death(stage: Stage) -> None:
    batches = random_batches(7)
    scene = stage.scene(batches, "tokens", sink="foreachBatch", **OFTEN)
    scene.dies_at("handing-over:2")
    scene.dies_at("publishing:2")
    scene.dies_at("after-publish:1")
    scene.finishes()

    complete: dict[int, list[tuple[Any, ...]]] = {}
    rows = []
    for batch, returned, given in scene.deliveries():
        if returned and batch not in complete:
            complete[batch] = ordered(given)
            rows += given
        elif returned:
            assert ordered(given) == complete[batch]
    assert sorted(complete) == list(range(len(batches)))
    for batch, returned, given in scene.deliveries():
        assert returned or set(ordered(given)) < set(complete[batch])
    # Half of batch 1 before a death and all of it after; 3 was done, but Spark did not know.
    assert [(batch, returned) for batch, returned, _ in scene.deliveries()] == [
        (0, True),
        (1, False),
        (1, True),
        (2, True),
        (3, True),
        (3, True),
        (4, True),
        (5, True),
        (6, True),
    ]
    assert scene.state().records == tokens_follow(rows, batches)
    waiting = {path.name.partition("-")[0] for path in (scene.checkpoint / "braided/out").iterdir()}
    assert waiting <= {"5", "6"}, "prepared output is kept for ever"

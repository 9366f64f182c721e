"""What a migration is said to have taken, from made-up times of its batches."""

from __future__ import annotations

from braided.migrate.metrics import Commit, MigrationTimeline
from braided.migrate.steps import Strategy

BEFORE = [Commit(at_s, 80) for at_s in (70.0, 80.0, 90.0, 100.0)]


def test_a_batch_that_was_captured_whole_ends_no_pause() -> None:
    timeline = MigrationTimeline(Strategy.CCR, 102.0, BEFORE)
    timeline.prepared(103.0)
    timeline.paused(103.0, is_running=True)
    timeline.batch_ended(104.0, confined=False, rows_out=0, rows_left=80)
    timeline.batch_began(104.5, confined=True)
    timeline.batch_ended(112.0, confined=True, rows_out=80, rows_left=0)
    metrics = timeline.metrics
    assert (metrics.prepare_s, metrics.drain_s, metrics.rebalance_s) == (1.0, 1.0, 0.5)
    assert metrics.restore_s == metrics.catch_up_s == 10.0
    assert metrics.pause_s == 12.0


def test_output_before_the_move_is_not_taken_for_stable_output_after_it() -> None:
    timeline = MigrationTimeline(Strategy.DSM, 100.0, BEFORE)
    timeline.killed(100.0, is_running=True)
    for at_s in range(110, 180, 10):  # while executors come
        timeline.batch_ended(float(at_s), confined=False, rows_out=80, rows_left=0)
    timeline.batch_ended(200.0, confined=True, rows_out=80, rows_left=0)
    assert (timeline.metrics.recovery_s, timeline.metrics.restore_s) == (10.0, 100.0)
    assert timeline.metrics.stabilise_s is None
    for at_s in range(210, 260, 10):
        timeline.batch_ended(float(at_s), confined=True, rows_out=80, rows_left=0)
        assert timeline.metrics.stabilise_s is None
    timeline.batch_ended(260.0, confined=True, rows_out=80, rows_left=0)
    assert timeline.metrics.stabilise_s == 100.0


def test_the_batch_that_dsm_has_done_again_is_the_one_that_has_moved() -> None:
    timeline = MigrationTimeline(Strategy.DSM, 102.0, BEFORE)
    timeline.killed(102.0, is_running=True)
    timeline.batch_ended(109.0, confined=True, rows_out=80, rows_left=0, rows_redone=40)
    timeline.batch_began(109.5, confined=True)
    timeline.batch_ended(118.0, confined=True, rows_out=80, rows_left=0)
    metrics = timeline.metrics
    assert metrics.restore_s == metrics.recovery_s == metrics.catch_up_s == 7.0
    assert (metrics.rebalance_s, metrics.pause_s, metrics.rows_redone) == (None, 9.0, 40)


def test_dsm_between_two_batches_has_nothing_to_do_again() -> None:
    timeline = MigrationTimeline(Strategy.DSM, 102.0, BEFORE)
    timeline.killed(102.0, is_running=False)
    timeline.batch_began(102.5, confined=True)
    timeline.batch_ended(110.0, confined=True, rows_out=80, rows_left=0)
    assert (timeline.metrics.recovery_s, timeline.metrics.restore_s) == (0.0, 8.0)
    nobody_is_killed = MigrationTimeline(Strategy.DSM, 102.0, BEFORE)
    nobody_is_killed.batch_ended(110.0, confined=True, rows_out=80, rows_left=0)
    assert nobody_is_killed.metrics.recovery_s is None

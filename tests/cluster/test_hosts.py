"""Channels run where their state is: placed, moved with their state brought ahead, and after hosts
and executors were lost or given back. Whatever happens, the output is that of a plain loop.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from braided.bench.standalone_cluster import StandaloneCluster
from braided.errors import (
    CheckpointReadError,
    MigrationError,
    OptionError,
    WorkerPythonError,
)
from braided.hosts import opening, probe, transition
from braided.spark import java_classes, placed_frames
from braided.spark.executors import SparkExecutors
from support.cluster_flow import SLOTS, Flow, caught_up, channels_of, placed, slots_of
from support.reassigning import Reassigner
from support.restless import RestlessBalance
from support.stream_harness import Lab, wait_until

PATIENCE_S = 400.0


def test_placed_channels_read_nothing_and_others_read_their_state_wherever_they_come_to_run(
    lab: Lab, tmp_path: Path
) -> None:
    flow = Flow(lab)
    flow.run_on_all_hosts()
    sections = flow.run(50)
    elsewhere = sum(placed(each)["elsewhere"] for each in sections)
    assert elsewhere <= 0.01 * 50 * 4
    stayed = [each for each in sections if not placed(each)["elsewhere"]]
    assert {len(set(placed(each)["plannedHosts"])) for each in stayed} == {4}
    # A batch after one that ran elsewhere reads what it missed.
    settled = [b for a, b in pairwise(stayed) if b["batchId"] == a["batchId"] + 1]
    assert {caught_up(each) for each in settled} == {(0, 0)}
    flow.check()
    with Lab(lab.spark, tmp_path / "unplaced") as other:
        unplaced = Flow(other, placement="off")
        unplaced.run(2)
        sections = unplaced.run(12)
        assert sum(caught_up(each)[1] for each in sections) > 0
        assert all("cluster" not in each for each in sections)
        unplaced.check()


def brought_in(flow: Flow) -> list[dict[str, Any]]:
    """What was brought ahead, by batches without rows, too: a rescale asks for one."""
    return [
        progress["braided"]["cluster"]["prefetched"]
        for progress in flow.query.recentProgress
        if "addBatch" in progress.durationMs
    ]


def test_a_slot_that_changes_hosts_is_there_before_the_batch_that_needs_it(lab: Lab) -> None:
    """Also more than once, and with nothing brought ahead it is read by the batch."""
    flow = Flow(lab, ballast=32768)
    flow.run_on_all_hosts()
    flow.query.rescale(2)
    sections = flow.run_until(lambda each: channels_of(each) == 2)
    brought = brought_in(flow)
    assert sum(each["slots"] for each in brought) == SLOTS // 2
    assert sum(each["bytes"] for each in brought) > 32768
    # What is left to read are the changes of the batches since.
    changed = sections[-1]
    assert caught_up(changed)[0] <= SLOTS // 2
    assert caught_up(changed)[1] < 0.5 * sum(each["bytes"] for each in brought)
    assert caught_up(flow.run()[0]) == (0, 0)
    # So are the slots that keys leave for those of another host; they stay where they were.
    before = flow.query.routing()["sums"]
    assert Reassigner(3).propose(flow.query) > 10
    flow.run_until(lambda _: len(flow.query.routing()["sums"].assigned) > 10)
    guests = sum(each["slots"] for each in brought_in(flow)) - sum(
        each["slots"] for each in brought
    )
    assert 0 < guests <= SLOTS
    assert flow.query.routing()["sums"].hosts == before.hosts
    assert caught_up(flow.run()[0])[0] == 0
    flow.check()


def test_rows_are_counted_before_they_are_routed_also_while_tables_wait_for_their_state(
    lab: Lab,
) -> None:
    """After every batch another table is asked for, and what it needs is on its way for a while."""
    flow = Flow(lab, ballast=32768, balance=RestlessBalance(5), **{"balance.sameBatch": "on"})
    flow.run_until(lambda each: each["sameBatch"]["counted"])
    for _ in range(3):
        assert flow.query._opened.control.settled(PATIENCE_S)
        shown = flow.run()[0]["sameBatch"]
        assert shown["counted"] and shown["movedSlots"]["sums"] > 0
    flow.query.rescale(2)  # which is not put off by what is counted
    flow.run_until(lambda each: channels_of(each) == 2)
    assert sum(each["slots"] for each in brought_in(flow)) > 0
    flow.check()


def test_without_prefetch_the_batch_reads_what_it_lacks_as_a_dry_run_says(lab: Lab) -> None:
    flow = Flow(lab, ballast=32768, prefetch=False)
    flow.run_on_all_hosts()
    before, plan = flow.query.routing()["sums"], flow.query.rescale(2, dry_run=True)
    assert (plan.slots_to_other_hosts, plan.is_prefetched) == (SLOTS // 2, False)
    assert plan.bytes_to_other_hosts > 32768 and plan.pause_s > 0
    flow.query.rescale(2)
    changed = flow.run_until(lambda each: channels_of(each) == 2)[-1]
    assert flow.query.routing()["sums"] == plan.operators["sums"].after
    assert caught_up(changed)[0] == SLOTS // 2
    assert caught_up(changed)[1] > 32768
    assert changed["cluster"]["prefetched"]["slots"] == 0
    flow.query.revert()
    flow.run_until(lambda each: channels_of(each) == 4)
    assert flow.query.routing()["sums"].slots.tolist() == before.slots.tolist()
    flow.check()


def test_a_killed_executor_costs_only_the_slots_that_it_had(
    lab: Lab, cluster: StandaloneCluster
) -> None:
    flow = Flow(lab, ballast=1024)
    flow.run_on_all_hosts()
    host = placed(flow.newest())["plannedHosts"][1]
    had, before = slots_of(flow, host), len(flow.rows)
    executors = SparkExecutors(lab.spark)
    killed = {executor.id for executor in executors.observed() if executor.host == host}
    assert cluster.kill_executor(host) == 1
    # At once: the batch is planned for a host whose executor is gone, or goes while it runs.
    first = flow.run()[0]
    assert caught_up(first)[0] <= had
    wait_until(
        lambda: any(e.host == host and e.id not in killed for e in executors.observed()),
        "another executor there",
        PATIENCE_S,
    )
    # Later it is back, and used again, with the cache that it had.
    later = flow.run_until(lambda each: len(set(placed(each)["plannedHosts"])) == 4)
    assert all(caught_up(each)[0] <= had for each in later)
    assert len(flow.rows) > before
    assert caught_up(flow.run(2)[1]) == (0, 0)
    flow.check()


def test_a_lost_host_gives_its_channels_to_the_others(lab: Lab, cluster: StandaloneCluster) -> None:
    flow = Flow(lab, ballast=1024)
    flow.run_on_all_hosts()
    host = placed(flow.newest())["plannedHosts"][2]
    had = slots_of(flow, host)
    cluster.kill_worker(host)
    sections = flow.run_until(lambda each: host not in placed(each)["plannedHosts"])
    sections += flow.run(3)
    assert sum(caught_up(each)[0] for each in sections) <= 2 * had
    assert caught_up(sections[-1]) == (0, 0)
    assert {h for h, work in placed(sections[-1])["hosts"].items() if work["channels"]} == set(
        placed(sections[-1])["plannedHosts"]
    )
    flow.check()


def test_executors_come_with_channels_and_go_with_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two channels need two executors; those too many go, more are asked for and warmed first."""
    # However long a busy machine takes to start them, all are waited for.
    monkeypatch.setattr(transition, "_PATIENCE_S", 600.0)
    executors = SparkExecutors(lab.spark)
    flow = Flow(
        lab, ballast=1024, channels=2, **{"cluster.minExecutors": 1, "cluster.maxExecutors": 4}
    )
    flow.run(2)
    wait_until(lambda: len(executors.observed()) == 2, "2 executors", PATIENCE_S)
    flow.query.rescale(4)
    grown = flow.run_until(lambda each: channels_of(each) == 4)
    assert grown[-1]["cluster"]["executors"] == {"planned": 4, "requested": 4, "observed": 4}
    assert len(set(placed(grown[-1])["plannedHosts"])) == 4
    # Until they were there, the query went on with what it had.
    assert {channels_of(each) for each in grown[:-1]} == {2}
    assert placed(grown[-1])["elsewhere"] == 0
    with pytest.raises(MigrationError, match=r"to 5 executors, where .*maxExecutors is 4"):
        flow.query.migrate("dcr", executors=5)
    flow.query.rescale(1)
    shrunk = flow.run_until(lambda each: channels_of(each) == 1)
    assert shrunk[-1]["cluster"]["executors"]["planned"] == 1
    wait_until(lambda: len(executors.observed()) == 1, "1 executors", PATIENCE_S)
    [left] = executors.observed()
    assert placed(shrunk[-1])["plannedHosts"] == [left.host]
    assert caught_up(flow.run(2)[-1]) == (0, 0)
    flow.check()


def test_a_restart_places_channels_anew(lab: Lab) -> None:
    flow = Flow(lab)
    flow.run(2)
    flow.query.stop()
    again = Flow(lab)
    again.rows = flow.rows + again.rows
    sections = again.run(3)
    assert placed(sections[-1])["elsewhere"] == 0
    assert caught_up(sections[-1]) == (0, 0)
    again.check()


def test_hosts_that_can_not_do_are_refused_by_name_before_the_first_batch(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(probe, "VERSION", "9.9.9")
        with pytest.raises(WorkerPythonError, match=r"host 127\.0\.0\.2 has braided .*9\.9\.9"):
            Flow(lab)
    with monkeypatch.context() as patch:
        # As on a host that has another disk of that name.
        patch.setattr(opening, "leave_word", lambda store, word: None)
        found = r"host 127\.0\.0\.2 (does not find|finds something else).*where all of them see it"
        with pytest.raises(CheckpointReadError, match=found):
            Flow(lab)
        # So it is where Spark chooses the hosts of channels.
        with pytest.raises(CheckpointReadError, match="where all of them see it"):
            Flow(lab, placement="off")
    flow = Flow(lab)
    flow.rows *= 4  # those of the flows that were refused are there as well
    flow.check()


def test_where_channels_can_not_be_placed_the_query_runs_and_the_log_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placed_frames, "_SOURCE", "this is no Java")
    monkeypatch.setattr(java_classes, "_made", {})
    flow = Flow(lab)
    assert "cluster" not in flow.run(2)[-1]
    said = [record.getMessage() for record in caplog.records if record.name == "braided"]
    assert [line for line in said if line.startswith("channels run where Spark puts them")] == said
    assert len(said) == 1
    flow.check()


def test_executors_are_asked_for_by_one_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"maxExecutors.*placement can't be off"):
        Flow(lab, placement="off", **{"cluster.maxExecutors": 4})
    with pytest.raises(OptionError, match=r"cluster\.maxExecutors is not set"):
        Flow(lab, **{"cluster.minExecutors": 4})
    with monkeypatch.context() as patch:
        patch.setattr(SparkExecutors, "has_dynamic_allocation", True)
        with pytest.raises(OptionError, match=r"dynamicAllocation\.enabled=false"):
            Flow(lab, **{"cluster.maxExecutors": 4})
    flow = Flow(lab, **{"cluster.maxExecutors": 4})
    with (
        Lab(lab.spark, lab.home / "other") as other,
        pytest.raises(OptionError, match="another query of this session"),
    ):
        Flow(other, **{"cluster.maxExecutors": 4})
    flow.query.stop()

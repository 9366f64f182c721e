"""Garbage goes, and what any manifest kept needs stays, wherever a crash comes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided import failpoints
from braided.store.durable.store import beside
from braided.store.history import garbage as gc_module
from braided.store.history.garbage import Collector, collect
from braided.store.history.manifest import CarryFile
from braided.store.history.runs import batch_of
from braided.store.slots.channel_state import SnapshotLimits
from support.cases import cases
from support.small_flow import OPERATOR, SmallFlow, applied

SNAPSHOTS = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.5, snapshots_per_task=2)


class Crash(Exception):
    pass


@pytest.fixture
def flow(tmp_path: Path) -> SmallFlow:
    return SmallFlow(tmp_path / "cp", limits=SNAPSHOTS, full_every=3)


def every_manifest_can_be_read(flow: SmallFlow) -> None:
    for batch in flow.manifests.batches():
        for name in flow.manifests.view_at(batch).live_files():
            flow.files.get(name)


def run_batches(flow: SmallFlow, count: int) -> None:
    for _ in range(count):
        number = flow.batch + 1
        flow.task(None, {0: {b"ka": b"abandoned"}})
        flow.files.put(f"out/{number}-0-x.parquet", b"rows")
        flow.run(None, {number % 6: {b"ka": b"%d" % number}, 0: {b"k%d" % number: b"1"}})


def test_a_sweep_leaves_exactly_what_the_kept_manifests_need(flow: SmallFlow) -> None:
    run_batches(flow, 12)
    expected = flow.contents(None)
    assert collect(flow.files, flow.manifests, retain=2) > 0
    assert flow.manifests.batches() == [9, 10, 11]
    needed = set().union(*(flow.manifests.view_at(b).live_files() for b in (9, 10, 11)))
    assert set(flow.files.list("state")) == needed
    assert flow.files.list("out") == ["out/10-0-x.parquet", "out/11-0-x.parquet"]
    assert flow.contents(None) == expected
    assert collect(flow.files, flow.manifests, retain=2) == 0


def test_collecting_batch_by_batch_leaves_what_a_sweep_would(
    flow: SmallFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_module, "ORPHANS_EVERY", 1)
    collector = Collector(flow.files, flow.manifests, retain=2)
    for _ in range(14):
        flow.files.put(f"out/{flow.batch + 1}-0-x.parquet", b"rows")
        flow.run(None, {(flow.batch + 1) % 3: {b"ka": b"%d" % flow.batch}})
        collector.collect(flow.batch)
        every_manifest_can_be_read(flow)
    assert len(flow.manifests.batches()) <= 2 + 3
    assert collect(flow.files, flow.manifests, retain=2) == 0


def test_batches_in_between_list_no_state(flow: SmallFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(flow.files, flow.manifests, retain=2)
    run_batches(flow, 2)
    collector.collect_orphans()
    listed: list[str] = []
    original = flow.files.list
    monkeypatch.setattr(flow.files, "list", lambda name: listed.append(name) or original(name))
    for _ in range(6):
        run_batches(flow, 1)
        collector.collect(flow.batch)
    assert set(listed) <= {"manifests"}


def test_orphans_go_while_the_query_runs(flow: SmallFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_module, "ORPHANS_EVERY", 4)
    collector = Collector(flow.files, flow.manifests, retain=100)
    run_batches(flow, 1)
    collector.collect_orphans()
    for _ in range(11):
        run_batches(flow, 1)
        straggler = flow.task(None, {1: {b"ka": b"of the batch that runs"}})
        collector.collect(flow.batch)
    named = set().union(*(flow.manifests.view_at(b).live_files() for b in flow.manifests.batches()))
    assert straggler.log is not None
    # Batches 9 to 11 are newer than the last listing. Each has a task that lost, and left a
    # straggler of the next behind.
    orphans = set(flow.files.list("state")) - named
    assert straggler.log.name in orphans
    assert {batch_of(name) for name in orphans} == {9, 10, 11, 12}


def test_files_of_a_batch_not_yet_committed_are_never_touched(flow: SmallFlow) -> None:
    run_batches(flow, 3)
    running = flow.task(None, {0: {b"ka": b"running"}})
    flow.files.put("out/3-0-x.parquet", b"rows")
    flow.files.put("carry/3-0-x.arrow", b"rows")
    flow.files.put("state/README", b"not ours")
    collect(flow.files, flow.manifests, retain=1)
    flow.commit([running])
    assert flow.contents(None)[0][b"ka"] == b"running"
    assert flow.files.get("out/3-0-x.parquet") and flow.files.get("carry/3-0-x.arrow")
    assert flow.files.get("state/README")


def test_carry_stays_as_long_as_a_manifest_names_it(flow: SmallFlow) -> None:
    collector = Collector(flow.files, flow.manifests, retain=1)
    carried = CarryFile(OPERATOR, "carry/0-0-x.arrow", "d", 1)
    flow.files.put(carried.name, b"rows")
    for number in range(9):
        manifest = flow.manifest([flow.task(None, {0: {b"ka": b"%d" % number}})])
        if number <= 4:
            manifest = msgspec.structs.replace(manifest, carry=(carried,))
        flow.manifests.write(manifest)
        flow.batch = number
        collector.collect(number)
        kept = flow.manifests.batches()
        named = any(flow.manifests.read(batch).carry for batch in kept)
        assert (carried.name in flow.files.list("carry")) is named
    assert flow.files.list("carry") == []


def test_what_a_dead_writer_left_half_done_goes(flow: SmallFlow) -> None:
    run_batches(flow, 1)
    flow.files.put("manifests/.00000001.json.ab12.tmp", b"{")
    flow.files.put("import/.op.json.ab12.tmp", b"{")
    collect(flow.files, flow.manifests, retain=1)
    assert flow.files.list("manifests") == ["manifests/00000000.json"]
    assert flow.files.list("import") == []


@pytest.mark.parametrize("directory", ["state/op", "carry", "dead", "sources"])
def test_what_is_written_beside_its_name_goes_with_its_batch(
    flow: SmallFlow, directory: str
) -> None:
    """On HDFS, which renames, a process that was killed leaves a file that has no name yet."""
    run_batches(flow, 2)
    committed, running = (beside(f"{directory}/{batch}-0-x.bin") for batch in (1, 2))
    for name in (committed, running):
        flow.files.put(name, b"half")
    collect(flow.files, flow.manifests, retain=5)
    left = flow.files.list(directory)
    assert committed not in left and running in left


def test_the_newest_manifest_must_be_kept(flow: SmallFlow) -> None:
    with pytest.raises(ValueError, match="retain"):
        Collector(flow.files, flow.manifests, retain=0)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=cases(25),
)
@given(
    batches=st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=12),
    retain=st.integers(1, 4),
    full_every=st.integers(1, 4),
    crashes=st.sets(st.integers(0, 25)),
    sweeps=st.booleans(),
)
def test_a_crash_at_any_deletion_leaves_a_valid_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[set[int]],
    retain: int,
    full_every: int,
    crashes: set[int],
    sweeps: bool,
) -> None:
    root = tmp_path_factory.mktemp("cp")
    flow = SmallFlow(root, limits=SNAPSHOTS, full_every=full_every)
    reached = iter(range(10_000))

    def reach(name: str) -> None:
        if name == "gc" and next(reached) in crashes:
            raise Crash

    monkeypatch.setattr(failpoints, "reach", reach)
    monkeypatch.setattr(gc_module, "_DELETED_TOGETHER", 1)
    model: dict[int, dict[bytes, bytes]] = {}
    collector = Collector(flow.files, flow.manifests, retain)
    for number, slots in enumerate(batches):
        writes = {slot: {b"ka": b"%d" % number} for slot in slots}
        flow.task(None, writes)
        flow.run(None, writes)
        model = applied(model, writes)
        try:
            if sweeps:
                collect(flow.files, flow.manifests, retain)
            else:
                collector.collect(number)
        except Crash:
            collector = Collector(flow.files, flow.manifests, retain)
        kept = flow.manifests.batches()
        assert kept[-min(retain, number + 1) :] == list(range(number + 1))[-retain:]
        every_manifest_can_be_read(flow)
        assert flow.contents(None) == model

"""The contract of a channel's state, for every cache there is."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided import failpoints
from braided.errors import CheckpointCorruptError
from braided.store.history import manifest_log as manifests
from braided.store.history import run_blocks
from braided.store.history.runs import read_run, slots_of
from braided.store.slots import catch_up as opening
from braided.store.slots.cache_port import MemoryCache, SlotCache, address_of
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.diff import changes_of
from braided.store.slots.lmdb_cache import Cache
from support.small_flow import OPERATOR, SmallFlow, timer, write

MAP = 1 << 28
MakeHost = Callable[[], SlotCache]


@pytest.fixture(params=["lmdb", "memory"])
def new_host(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHost:
    hosts = iter(range(100))

    def make() -> SlotCache:
        number = next(hosts)
        return MemoryCache() if request.param == "memory" else Cache(tmp_path / f"h{number}", MAP)

    return make


@pytest.fixture
def flow(tmp_path: Path) -> SmallFlow:
    return SmallFlow(tmp_path / "checkpoint")


def test_a_slot_shows_its_own_writes_in_order(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {1: {b"ka": b"1", b"kc": b"3", b"kd": b"4", timer(3, b"a"): b""}})
    state = flow.open(host)
    slot = state.slot(1)
    slot.put(b"kb", b"2")
    slot.put(b"kc", b"33")
    slot.delete(b"kd")
    slot.put(timer(-3, b"z"), b"")
    assert [slot.get(b"k" + key) for key in (b"a", b"b", b"c", b"d", b"e")] == [
        b"1",
        b"2",
        b"33",
        None,
        None,
    ]
    assert list(slot.scan(b"k")) == [(b"ka", b"1"), (b"kb", b"2"), (b"kc", b"33")]
    assert list(slot.scan(b"k", b"kb")) == [(b"ka", b"1")]
    assert slot.first(b"t") == timer(-3, b"z")
    assert [suffix[:1] for suffix, _ in slot.scan(b"")] == [b"k", b"k", b"k", b"t", b"t"]


def test_many_at_a_time_is_as_one_by_one(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {0: {b"ka": b"1", b"kb": b"2"}})
    state = flow.open(host)
    slot = state.slot(0)
    assert slot.get_many([b"kb", b"kc", b"ka"]) == [b"2", None, b"1"]
    slot.put_many([b"ka", b"kc"], [b"5", b"6"])
    slot.delete(b"kb")
    assert slot.get_many([b"ka", b"kb", b"kc", b"kd"]) == [b"5", None, b"6", None]
    flow.commit([flow.finish(state)])
    assert flow.contents(None) == {0: {b"ka": b"5", b"kc": b"6"}}


def test_a_scan_does_not_see_what_is_changed_while_it_runs(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    host = new_host()
    flow.run(host, {0: {timer(ms, b"a"): b"" for ms in range(5)}})
    slot = flow.open(host).slot(0)
    fired = []
    for suffix, _ in slot.scan(b"t", timer(3, b"")):
        slot.delete(suffix)
        slot.put(timer(2, b"again"), b"")
        fired.append(suffix)
    assert fired == [timer(ms, b"a") for ms in range(3)]
    assert slot.first(b"t") == timer(2, b"again")


def test_what_stays_as_it_was_is_not_written(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {0: {b"ka": b"1", b"kb": b"2"}})
    same = flow.task(host, {0: {b"ka": b"1", b"kx": None}})
    assert same.log is None
    mixed = flow.task(host, {0: {b"ka": b"1", b"kb": b"3", b"kx": None}})
    assert mixed.log is not None
    assert list(read_run(flow.files, mixed.log)) == [(0, [b"kb"], [b"3"])]


def test_the_report_counts_keys_bytes_and_timers(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {2: {b"ka": b"123", b"K" + bytes(32): b"", timer(70, b"a"): b""}})
    changes = flow.task(host, {2: {b"ka": None, b"kb": b"4", timer(-5, b"b"): b"x"}, 4: {}})
    slot, untouched = changes.slots
    assert (slot.slot, slot.keys, slot.keys_added, slot.due_ms) == (2, 2, 0, -5)
    sizes = [33, 10, 2 + 1, 10 + 1]
    assert slot.bytes == sum(sizes)
    assert slot.bytes_added == sum(sizes) - (33 + 10 + 5)
    assert (untouched.slot, untouched.keys, untouched.due_ms) == (4, 0, None)


def test_a_warm_cache_reads_no_run(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    for number in range(3):
        flow.run(host, {0: {b"ka": b"%d" % number}, 3: {b"kb": b"%d" % number}})
    changes = flow.task(host, {0: {b"ka": b"9"}, 3: {}})
    assert (changes.opened, changes.hits, changes.bytes_caught_up) == (2, 2, 0)


def test_an_abandoned_batch_is_rolled_back_not_rebuilt(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {0: {b"ka": b"1", b"kb": b"2"}, 1: {b"kc": b"3"}})
    flow.task(host, {0: {b"ka": b"never", b"kb": None, b"kz": b"never"}, 1: {b"kc": b"no"}})
    again = flow.task(host, {0: {b"ka": b"5"}, 1: {}})
    assert (again.rolled_back, again.rebuilt, again.caught_up, again.hits) == (2, 0, 0, 0)
    assert again.bytes_caught_up == 0
    flow.commit([again])
    assert flow.contents(host) == {0: {b"ka": b"5", b"kb": b"2"}, 1: {b"kc": b"3"}}


def test_an_abandoned_first_batch_leaves_an_empty_slot(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.task(host, {0: {b"ka": b"never"}})
    again = flow.task(host, {0: {b"kb": b"1"}})
    assert (again.rolled_back, again.rebuilt) == (1, 0)
    flow.commit([again])
    assert flow.contents(host) == {0: {b"kb": b"1"}}


def test_another_attempt_that_committed_is_caught_up_with(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.run(here, {0: {b"ka": b"1"}})
    flow.task(here, {0: {b"ka": b"never", b"kx": b"never"}})
    flow.run(there, {0: {b"ka": b"2"}})
    after = flow.task(here, {0: {}})
    assert (after.rolled_back, after.caught_up, after.rebuilt) == (1, 1, 0)
    assert flow.contents(here) == {0: {b"ka": b"2"}}


def test_a_twin_that_did_the_same_is_a_hit(flow: SmallFlow, new_host: MakeHost) -> None:
    here, there = new_host(), new_host()
    flow.task(here, {0: {b"ka": b"1"}})
    flow.run(there, {0: {b"ka": b"1"}})
    assert flow.task(here, {0: {}}).hits == 1


def test_a_host_that_fell_behind_reads_only_what_it_missed(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.run(here, {0: {b"k%d" % n: b"x" * 100 for n in range(50)}})
    flow.run(there, {0: {b"ka": b"1"}})
    flow.run(there, {0: {b"kb": b"2", b"k0": None}})
    after = flow.task(here, {0: {}})
    assert (after.caught_up, after.rebuilt) == (1, 0)
    assert after.bytes_caught_up == 3 + 3 + 2
    assert flow.contents(here) == flow.contents(None)


def test_a_zombie_that_finishes_late_does_no_harm(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {0: {b"ka": b"1"}, 1: {b"kb": b"1"}})
    zombie = flow.open(host)
    write(zombie, 0, {b"ka": b"dead", b"kz": b"dead"})
    flow.run(host, {0: {b"ka": b"2", b"kc": b"2"}})
    zombie.finish(f"state/{OPERATOR}/1-0-zombie")
    after = flow.task(host, {0: {}, 1: {}})
    assert after.hits == 2
    flow.run(host, {0: {b"kd": b"3"}})
    assert flow.contents(host) == {
        0: {b"ka": b"2", b"kc": b"2", b"kd": b"3"},
        1: {b"kb": b"1"},
    }


def test_a_zombie_still_reads_the_version_it_opened(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {0: {b"ka": b"1"}})
    zombie = flow.open(host)
    slot = zombie.slot(0)
    flow.run(host, {0: {b"ka": b"2"}})
    assert slot.get(b"ka") == b"1"
    assert list(slot.scan(b"")) == [(b"ka", b"1")]


def test_equal_changes_in_different_batches_are_different_versions(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.run(here, {0: {b"ka": b"1"}})
    flow.run(there, {0: {b"ka": b"2", b"kb": b"2"}})
    flow.run(there, {0: {b"ka": b"1"}})
    assert flow.contents(here) == {0: {b"ka": b"1", b"kb": b"2"}}


def test_the_same_batch_gives_the_same_digests_on_any_host(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1)
    flow.run(None, {0: {b"ka": b"1"}, 1: {b"kb": b"1"}})
    flow.run(new_host(), {0: {b"ka": b"2"}})
    writes = {0: {b"ka": b"3"}, 1: {b"kb": b"3"}}
    one, two = flow.task(new_host(), writes), flow.task(None, writes)
    assert one.log and two.log and one.snap and two.snap
    assert one.log.name != two.log.name
    assert (one.log.digest, one.snap.digest) == (two.log.digest, two.snap.digest)
    assert one.slots == two.slots


def test_slots_move_between_channels_without_reading(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.run(host, {slot: {b"ka": b"%d" % slot} for slot in range(6)})
    left = flow.task(host, {0: {b"kb": b"x"}, 3: {}, 5: {b"kb": b"y"}}, channel=0)
    right = flow.task(host, {1: {b"kb": b"z"}, 2: {}, 4: {}}, channel=1)
    assert (left.hits, right.hits) == (3, 3)
    flow.commit([left, right])
    assert flow.contents(host) == flow.contents(None)


def test_a_snapshot_restarts_the_chain_and_the_cache_stays_warm(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    host = new_host()
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=1.0, snapshots_per_task=1)
    flow.run(host, {0: {b"ka": b"1" * 50}, 1: {b"ka": b"1"}})
    flow.run(host, {0: {b"ka": b"2" * 50}, 1: {b"ka": b"2"}})
    changes = flow.run(host, {0: {b"kb": b"3"}, 1: {}})
    assert changes.snap is not None and slots_of(changes.snap) == [0]
    assert flow.view().chain(0) == (changes.snap, changes.log)
    assert [
        (slot, dict(zip(suffixes, values, strict=True)))
        for slot, suffixes, values in read_run(flow.files, changes.snap)
    ] == [(0, {b"ka": b"2" * 50})]  # as of the batch before
    unchanged = flow.run(host, {1: {}})
    assert unchanged.log is None and unchanged.snap is not None
    assert flow.view().chain(1) == (unchanged.snap,)
    assert flow.task(host, {0: {}, 1: {}}).hits == 2
    assert flow.contents(None) == {0: {b"ka": b"2" * 50, b"kb": b"3"}, 1: {b"ka": b"2"}}


def test_an_abandoned_snapshot_is_forgotten(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1, snapshots_per_task=1)
    flow.run(host, {0: {b"ka": b"1"}})
    assert flow.task(host, {0: {}}).snap is not None
    again = flow.task(host, {0: {b"kb": b"1"}})
    assert (again.rolled_back, again.rebuilt) == (1, 0)


def test_a_snapshot_elsewhere_costs_a_current_host_nothing(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.full_every = 100
    flow.run(here, {0: {b"k%d" % n: b"x" * 100 for n in range(20)}})
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1)
    changes = flow.run(there, {0: {b"ka": b"1"}})
    assert changes.snap is not None
    after = flow.task(here, {0: {}})
    assert (after.caught_up, after.rebuilt, after.bytes_caught_up) == (1, 0, 3)
    assert flow.contents(here) == flow.contents(None)


def test_an_emptied_slot_is_snapshotted_as_empty(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=1.0)
    flow.run(host, {0: {b"ka": b"1"}})
    flow.run(host, {0: {b"ka": None}})
    changes = flow.run(host, {0: {}})
    assert changes.snap is not None and flow.view().chain(0) == (changes.snap,)
    assert flow.contents(None) == {} == flow.contents(new_host())


def test_many_small_changelogs_are_snapshotted_too(flow: SmallFlow, new_host: MakeHost) -> None:
    host = new_host()
    flow.limits = SnapshotLimits(snapshot_runs=5)
    for number in range(20):
        flow.run(host, {0: {b"ka": b"%d" % number}})
        assert flow.view().length(0) <= 7
    assert flow.contents(None) == {0: {b"ka": b"19"}}


def test_opening_many_cold_slots_reads_each_file_once(
    flow: SmallFlow, new_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        flow.run(None, {slot: {b"k": b"%d" % number} for slot in range(6)})
    read: list[str] = []

    def counting(files, run, wanted):  # type: ignore[no-untyped-def]
        read.append(run.name)
        return read_run(files, run, wanted)

    monkeypatch.setattr(opening, "read_run", counting)
    state = flow.open(new_host())
    state.open_slots(range(6))
    assert len(read) == len(set(read)) == 3


def test_a_rebuilt_slot_keeps_nothing_of_what_was_cached(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.full_every = 1
    flow.run(here, {0: {b"ka": b"1"}})
    flow.run(here, {0: {b"kx": b"stale"}})
    flow.run(there, {0: {b"kx": None}})
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1)
    assert flow.run(there, {0: {}}).snap is not None
    manifests._remembered.clear()  # a full manifest does not tell what a snapshot replaced
    assert flow.task(here, {0: {}}).rebuilt == 1
    assert flow.contents(here) == {0: {b"ka": b"1"}}


def test_a_large_slot_is_passed_on_to_the_cache_in_parts(
    flow: SmallFlow, new_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_HELD_BYTES", 1)
    for number in range(5):
        flow.run(None, {0: {b"k%d" % number: b"1", b"ka": b"%d" % number}, 2: {b"kb": b"2"}})
    host = new_host()
    assert flow.contents(host) == flow.contents(None)
    state, alone = flow.open(host), flow.open(None)
    assert [state.slot(n).tag for n in (0, 2)] == [alone.slot(n).tag for n in (0, 2)]
    assert flow.task(host, {0: {}, 2: {}}).hits == 2


def test_a_slot_that_was_half_read_when_its_task_died_is_read_anew(
    flow: SmallFlow, new_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_HELD_BYTES", 1)
    monkeypatch.setattr(run_blocks, "_BLOCK_BYTES", 30)
    flow.run(None, {0: {b"k%d" % number: b"x" * 10 for number in range(9)}, 1: {b"ka": b"1"}})
    host = new_host()
    parts = iter(range(3))

    def dying(files, run, wanted):  # type: ignore[no-untyped-def]
        for part in read_run(files, run, wanted):
            if next(parts, None) is None:
                raise PowerCut
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(opening, "read_run", dying)
        with pytest.raises(PowerCut):
            flow.open(host).open_slots([0, 1])
    [half] = host.read([address_of(0, 0)]).values()
    assert 0 < half.tag.keys < 9  # some of it is there, and says that it is no version
    after = flow.task(host, {0: {}, 1: {}})
    assert (after.hits, after.rebuilt) == (0, 2)
    assert flow.contents(host) == flow.contents(None)
    assert flow.task(host, {0: {}, 1: {}}).hits == 2


def test_a_slot_larger_than_memory_is_rebuilt_and_snapshotted_in_parts(
    flow: SmallFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_HELD_BYTES", 2 << 20)
    flow.run(None, {3: {b"k%06d" % number: os.urandom(2000) for number in range(15_000)}})
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1)
    tracemalloc.start()
    try:
        changes = flow.task(Cache(tmp_path / "host", MAP), {3: {b"ka": b"1"}})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert changes.rebuilt == 1 and changes.snap is not None
    assert changes.snap.bytes > 30_000_000
    assert peak < 20 << 20, peak


def test_tags_do_not_tell_how_a_slot_came_to_its_version(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.5)
    for number in range(9):
        flow.run(there, {0: {b"ka": b"%d" % number, b"k%d" % number: b"1"}})
        if number % 2:
            flow.contents(here)
        tags = [flow.open(host).slot(0).tag for host in (here, there, None)]
        assert tags[0] == tags[1] == tags[2]


def test_there_is_no_way_back_from_a_version_that_was_caught_up_with(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    here, there = new_host(), new_host()
    flow.run(here, {0: {b"ka": b"1"}})
    old = flow.view()
    flow.run(here, {0: {b"ka": b"2"}})
    flow.run(there, {0: {b"kb": b"3"}})
    flow.contents(here)
    zombie = ChannelState(flow.files, here, OPERATOR, old, flow.limits)
    assert dict(zombie.slot(0).scan(b"")) == {b"ka": b"1"}
    assert flow.contents(here) == {0: {b"ka": b"2", b"kb": b"3"}}


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("place", ["snapshot", "task-after-changelog"])
def test_the_cache_never_runs_ahead_of_the_changelog(
    flow: SmallFlow, new_host: MakeHost, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    host = new_host()
    flow.limits = SnapshotLimits(snapshot_min_bytes=1, snapshot_factor=0.1)
    flow.run(host, {0: {b"ka": b"1"}, 1: {b"ka": b"1"}})

    def reach(name: str) -> None:
        if name == place:
            raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(PowerCut):
            flow.task(host, {0: {b"ka": b"2"}, 1: {}})
    written = [name for name in flow.files.list("state") if "/1-" in name]
    logs = [name for name in written if name.endswith(".log.run")]
    snaps = [name for name in written if name.endswith(".snap.run")]
    assert (len(logs), len(snaps)) == (1, 0 if place == "snapshot" else 1)
    again = flow.task(host, {0: {}, 1: {}})
    assert again.hits == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "deleted"])
def test_damage_is_named_and_never_read_as_state(
    flow: SmallFlow, new_host: MakeHost, damage: str
) -> None:
    flow.run(None, {3: {b"ka": b"1" * 100}})
    changes = flow.run(None, {3: {b"kb": b"2" * 100}, 5: {b"kb": b"2"}})
    assert changes.log is not None and flow.files.directory is not None
    path = flow.files.directory / changes.log.name
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[:-7])
    elif damage == "flipped":
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    else:
        path.unlink()
    for host in (new_host(), None):
        with pytest.raises(CheckpointCorruptError) as caught:
            flow.open(host).slot(3)
        message = str(caught.value)
        assert str(path) in message and "slots 3 " in message and "batch 1" in message


def test_a_suffix_the_cache_keeps_for_itself_is_refused(
    flow: SmallFlow, new_host: MakeHost
) -> None:
    for suffix in (b"", b"\x00tag", b"k" * 481):
        state = flow.open(new_host())
        state.slot(0).put(suffix, b"1")
        with pytest.raises(ValueError, match="suffix"):
            flow.finish(state)


def test_reading_after_the_end_is_an_error(flow: SmallFlow, tmp_path: Path) -> None:
    host = Cache(tmp_path / "host", MAP)
    flow.run(host, {0: {b"ka": b"1"}})
    state = flow.open(host)
    slot = state.slot(0)
    flow.finish(state)
    with pytest.raises(ValueError, match="finished"):
        slot.get(b"kb")
    assert host.errors == 0


@given(
    st.dictionaries(st.binary(max_size=2), st.binary(max_size=2)),
    st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=2)),
)
def test_changes_lead_from_old_to_new_and_back(
    before: dict[bytes, bytes], new: dict[bytes, bytes | None]
) -> None:
    before = {b"k" + key: value for key, value in before.items()}
    new = {b"k" + key: value for key, value in new.items()}
    suffixes = sorted(new)
    changes = changes_of(suffixes, [new[s] for s in suffixes], [before.get(s) for s in suffixes])
    after = {s: v for s, v in {**before, **new}.items() if v is not None}
    there = {**before, **dict(zip(changes.suffixes, changes.values, strict=True))}
    assert {s: v for s, v in there.items() if v is not None} == after
    back = {**after, **dict(zip(changes.suffixes, changes.olds, strict=True))}
    assert {s: v for s, v in back.items() if v is not None} == before
    assert changes.keys_added == len(after) - len(before)
    assert changes.bytes_added == sum(len(s) + len(v) for s, v in after.items()) - sum(
        len(s) + len(v) for s, v in before.items()
    )
    assert all(v != o for v, o in zip(changes.values, changes.olds, strict=True))

"""What the LMDB cache does when the host is unkind to it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from braided.store.slots import lmdb_cache as cache_module
from braided.store.slots.cache_port import EMPTY, Tag, Update, address_of
from braided.store.slots.lmdb_cache import ENVIRONMENTS, HANDLES_KEPT, Cache
from support.small_flow import SmallFlow

MAP = 1 << 28
PAGE = 4096
ALL: dict[int, dict[bytes, bytes | None]] = {slot: {} for slot in range(16)}


@pytest.fixture
def flow(tmp_path: Path) -> SmallFlow:
    flow = SmallFlow(tmp_path / "checkpoint", slots=16)
    return flow


def filled(flow: SmallFlow, cache: Cache | None) -> dict[int, dict[bytes, bytes]]:
    writes = {slot: {b"k%d" % n: b"x" * 50 for n in range(40)} for slot in range(16)}
    flow.run(cache, writes)
    flow.run(cache, {slot: {b"kz": b"%d" % slot} for slot in range(16)})
    return flow.contents(None)


def data_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/data.mdb"))


def test_a_deleted_directory_is_rebuilt(flow: SmallFlow, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    shutil.rmtree(tmp_path / "host")
    changes = flow.task(cache, ALL)
    assert (changes.rebuilt, changes.hits) == (16, 0)
    assert flow.contents(cache) == expected
    assert flow.task(cache, ALL).hits == 16


def test_a_file_of_garbage_is_thrown_away_and_rebuilt(flow: SmallFlow, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    cache_module._handles.clear()
    for path in data_files(tmp_path / "host"):
        path.write_bytes(os.urandom(path.stat().st_size))
    changes = flow.task(cache, ALL)
    assert changes.rebuilt == 16 and changes.cache_errors == ENVIRONMENTS
    assert flow.contents(cache) == expected


def test_a_file_cut_short_under_an_open_handle_is_not_touched(
    flow: SmallFlow, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    for path in data_files(tmp_path / "host"):
        os.truncate(path, 2 * PAGE)
    assert flow.task(cache, ALL).rebuilt == 16
    assert flow.contents(cache) == expected


def test_pages_damaged_during_a_task_send_it_to_the_runs(flow: SmallFlow, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    state = flow.open(cache)
    state.open_slots(range(16))
    for path in data_files(tmp_path / "host"):
        with open(path, "r+b") as file:
            file.seek(2 * PAGE)
            file.write(bytes(path.stat().st_size - 2 * PAGE))
    assert state.slot(3).get(b"kz") == b"3"
    assert dict(state.slot(4).scan(b"")) == expected[4]
    state.slot(3).put(b"kz", b"new")
    state.slot(5).put(b"kz", b"new")
    changes = flow.finish(state)
    assert changes.cache_errors > 0
    flow.commit([changes])
    for slot in (3, 5):
        expected[slot][b"kz"] = b"new"
    assert flow.contents(cache) == expected == flow.contents(None)


def test_a_full_cache_only_loses_the_cache(flow: SmallFlow, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", map_size=16 * PAGE)
    writes = {slot: {b"k%d" % n: b"x" * 2000 for n in range(40)} for slot in range(16)}
    first = flow.run(cache, writes)
    assert first.log is not None and first.cache_errors == ENVIRONMENTS
    second = flow.run(cache, {slot: {b"ka": b"1"} for slot in range(16)})
    assert second.cache_errors > 0 and second.rebuilt == 16
    assert flow.contents(None) == {
        slot: {**changes, b"ka": b"1"} for slot, changes in writes.items()
    }


def test_a_cache_directory_that_cannot_be_made_is_done_without(
    flow: SmallFlow, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = Cache(tmp_path / "file" / "cache", MAP)
    changes = flow.run(cache, {0: {b"ka": b"1"}})
    assert changes.cache_errors > 0
    assert flow.contents(cache) == {0: {b"ka": b"1"}}


def in_child(check: Callable[[], bool]) -> bool:
    """Runs a check as a worker process that the parent forks."""
    child = os.fork()
    if child == 0:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_takes_over_the_environments_that_another_has_put_in_place(
    flow: SmallFlow, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)

    def replace() -> bool:
        shutil.rmtree(tmp_path / "host")
        return flow.task(cache, ALL).rebuilt == 16

    for _ in range(3):
        assert in_child(replace)
        assert flow.task(cache, ALL).hits == 16
        assert flow.contents(cache) == expected
        assert len(data_files(tmp_path / "host")) == ENVIRONMENTS


def test_forked_workers_share_the_slots_of_their_host(flow: SmallFlow, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", MAP)
    filled(flow, None)
    assert in_child(lambda: flow.task(cache, ALL).rebuilt == 16)
    assert in_child(lambda: flow.task(cache, {0: {b"kc": b"1"}}).hits == 1)
    assert in_child(lambda: flow.task(cache, ALL).rolled_back == 1)


def test_a_worker_forked_from_a_process_that_uses_the_cache_is_right_too(
    flow: SmallFlow, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    assert in_child(lambda: flow.contents(cache) == expected)
    assert in_child(lambda: flow.task(cache, {0: {b"kz": b"child"}}).log is not None)
    assert flow.contents(cache) == expected


def test_a_worker_killed_while_reading_does_not_stop_the_others(
    flow: SmallFlow, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, None)
    assert in_child(lambda: flow.contents(cache) == expected)
    child = os.fork()
    if child == 0:
        state = flow.open(cache)
        state.open_slots(range(16))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    changes = flow.run(cache, {0: {b"kc": b"1"}})
    assert (changes.hits, changes.cache_errors) == (1, 0)
    expected[0][b"kc"] = b"1"
    assert flow.contents(cache) == expected
    readers = [handle.lmdb.readers() for handle in cache_module._handles.values()]
    assert all(str(child) not in text for text in readers)


def test_many_queries_in_one_process_do_not_run_out_of_descriptors(tmp_path: Path) -> None:
    address = [address_of(0, slot) for slot in range(ENVIRONMENTS)]
    cache_module._handles.clear()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        cache = Cache(tmp_path / str(number), MAP)
        cache.write([Update(a, "", Tag("d", 1, 1, 1), [b"ka"], [b"1"]) for a in address])
        assert {c.tag.digest for c in cache.read(address).values()} == {"d"}
    assert len(os.listdir("/proc/self/fd")) <= before + 3 * HANDLES_KEPT
    assert len(cache_module._handles) == HANDLES_KEPT


def test_an_operator_sees_only_its_own_slots(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "host", MAP)
    ours, next_slot, theirs = address_of(0, 0), address_of(0, 8), address_of(1, 0)
    step = [Update(a, "", Tag("d", 1, 4, 4), [b"ka"], [a]) for a in (ours, next_slot, theirs)]
    assert cache.write(step) == {ours, next_slot, theirs}
    wiped = Update(next_slot, "d", EMPTY, [], [], wipe=True)
    assert cache.write([wiped]) == {next_slot}
    found = cache.read([ours, next_slot, theirs])
    assert found[next_slot].tag == EMPTY
    assert found[next_slot].image.get(next_slot + b"ka") is None
    assert found[ours].image.get(ours + b"ka") == ours
    assert found[theirs].image.get(theirs + b"ka") == theirs


def test_the_slots_used_longest_ago_leave_a_cache_that_is_too_large(
    flow: SmallFlow, tmp_path: Path
) -> None:
    # An environment has two of the slots 0 to 15, and room for one and a half.
    max_bytes = ENVIRONMENTS * 200_000

    def cache() -> Cache:
        return Cache(tmp_path / "host", MAP, max_bytes)

    def content(number: int) -> dict[bytes, bytes | None]:
        return {b"k%03d" % key: b"%03d" % number + b"x" * 150 for key in range(500)}

    old, new = range(8), range(8, 16)
    flow.run(cache(), {slot: content(0) for slot in old})
    assert flow.task(cache(), {slot: {} for slot in old}).hits == 8
    flow.run(cache(), {slot: content(0) for slot in new})
    assert flow.task(cache(), {slot: {} for slot in new}).hits == 8
    assert flow.task(cache(), {slot: {} for slot in old}).rebuilt == 8  # which drives out the new
    for number in range(20):
        turn = old if number % 2 else new
        flow.run(cache(), {slot: content(number) for slot in turn})
        sizes = [path.stat().st_size for path in data_files(tmp_path / "host")]
        assert sum(sizes) <= 2 * max_bytes
    assert flow.contents(cache()) == flow.contents(None)


def test_reading_a_slot_is_using_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_TOUCH_AFTER_NS", 0)
    first, second, third = (address_of(0, ENVIRONMENTS * n) for n in range(3))

    def step(address: bytes) -> Update:
        return Update(address, "", Tag("d", 1, 50_000), [b"k"], [b"x" * 50_000])

    host = Cache(tmp_path / "host", MAP, ENVIRONMENTS * 150_000)
    assert host.write([step(first)]) and host.write([step(second)])
    host.read([first])
    assert host.write([step(third)])
    found = host.read([first, second, third])
    assert [found[address].tag.digest for address in (first, second, third)] == ["d", "", "d"]


def test_a_slot_that_is_larger_than_the_cache_drives_out_no_others(tmp_path: Path) -> None:
    host = Cache(tmp_path / "host", MAP, ENVIRONMENTS * 120_000)
    small, large = address_of(0, 0), address_of(0, ENVIRONMENTS)
    assert host.write([Update(small, "", Tag("d", 1, 9), [b"k"], [b"12345678"])]) == {small}
    value = b"x" * 200_000
    assert host.write([Update(large, "", Tag("d", 1, 200_001), [b"k"], [value])]) == set()
    assert host.read([small])[small].tag.digest == "d"


def test_a_cache_that_is_given_less_than_its_files_take_starts_anew(
    flow: SmallFlow, tmp_path: Path
) -> None:
    expected = filled(flow, Cache(tmp_path / "host", MAP))
    before = data_files(tmp_path / "host")
    cache = Cache(tmp_path / "host", MAP, ENVIRONMENTS * 2 * PAGE)
    flow.run(cache, {0: {b"kz": b"new"}})
    expected[0][b"kz"] = b"new"
    assert len(set(before) - set(data_files(tmp_path / "host"))) == 1
    assert cache.errors == 0 and flow.contents(cache) == expected


def test_a_damaged_undo_record_costs_the_cache_and_nothing_else(
    flow: SmallFlow, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "host", MAP)
    expected = filled(flow, cache)
    flow.task(cache, {0: {b"kz": b"never committed"}})  # the cache is ahead and must roll back
    address = address_of(flow.meta.ordinal, 0)
    environment = cache._open(address[3] % ENVIRONMENTS)
    with environment.lmdb.begin(write=True) as transaction:
        transaction.put(address + b"\x00undo", b"no msgpack at all")
    changes = flow.task(cache, {0: {}})
    assert changes.cache_errors > 0 and changes.rebuilt == 1
    assert flow.contents(cache) == expected

"""Which caches a host has, who may look at them, and which of them go."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braided.store.slots import host_directory as module
from braided.store.slots.cache_port import SlotCache, Tag, Update, address_of
from braided.store.slots.host_cache import open_host_cache
from braided.store.slots.host_directory import host_directory, locked
from braided.store.slots.lmdb_cache import Cache

ADDRESS = address_of(0, 1)
LONG_AGO_S = 1_000_000_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    root = tmp_path / "disk" / "query" / "braided"
    root.mkdir(parents=True)
    return root


def fill(base: Path, flow: str, root: Path | str) -> Path:
    """A cache with a slot in it, as a task of a process that has just begun leaves it."""
    module._claimed.clear()
    for cleaned in base.glob("braided-cache-*/cleaned"):
        os.utime(cleaned, (LONG_AGO_S, LONG_AGO_S))
    cache = open_host_cache(base, flow, str(root), None)
    cache.write([Update(ADDRESS, "", Tag(flow), [b"k"], [b"v"])])
    assert holds(cache) == flow
    return host_directory(base, flow)


def age(directory: Path, time_s: float) -> None:
    for path in (*directory.rglob("*"), directory):
        os.utime(path, (time_s, time_s))


def holds(cache: SlotCache) -> str:
    return cache.read([ADDRESS])[ADDRESS].tag.digest


def test_a_directory_outlives_the_query_and_is_for_its_flow_and_user(
    tmp_path: Path, checkpoint: Path
) -> None:
    (tmp_path / "users-own").mkdir()
    umask = os.umask(0)
    try:
        here, there = fill(tmp_path, "flow", checkpoint), fill(tmp_path, "other", checkpoint)
    finally:
        os.umask(umask)
    assert here != there
    assert holds(open_host_cache(tmp_path, "flow", str(checkpoint), None)) == "flow"
    home = here.parent.parent
    assert home.parent == tmp_path and str(os.geteuid()) in home.name
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    home.chmod(0o755)
    fill(tmp_path, "third", checkpoint)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (tmp_path / "users-own").is_dir()


def test_a_directory_that_somebody_else_has_put_there_is_done_without(
    tmp_path: Path, checkpoint: Path
) -> None:
    home = host_directory(tmp_path, "flow").parent.parent
    (tmp_path / "theirs").mkdir()
    home.symlink_to(tmp_path / "theirs")
    cache = open_host_cache(tmp_path, "flow", str(checkpoint), None)
    assert cache.read([ADDRESS]) == {} and cache.write([]) == set()
    cache.discard(ADDRESS)
    assert cache.errors == 1
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.skipif(shutil.which("unshare") is None, reason="Linux has it")
def test_containers_that_count_processes_for_themselves_do_not_meet() -> None:
    program = (
        "from pathlib import Path; from braided.store.slots.host_directory import host_directory; "
        "print(host_directory(Path('base'), 'flow'))"
    )
    contained = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("no namespace of process numbers can be made here")
    source = {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    ran = subprocess.run(
        contained, env={**os.environ, **source}, capture_output=True, text=True, check=True
    )
    inside = Path(ran.stdout.strip())
    outside = host_directory(Path("base"), "flow")
    assert inside.parent.parent == outside.parent.parent
    assert inside.parent != outside.parent


def test_the_cache_of_a_deleted_checkpoint_goes(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "disk/other").mkdir()
    gone = fill(tmp_path, "gone", checkpoint)
    shutil.rmtree(tmp_path / "disk/query")
    kept = fill(tmp_path, "kept", tmp_path / "disk/other")
    assert not gone.exists() and kept.exists()


def test_a_checkpoint_that_is_out_of_sight_proves_nothing(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "other").mkdir()
    there = fill(tmp_path, "there", checkpoint)
    remote = fill(tmp_path, "remote", "s3://bucket/query/braided")
    # A disk that is away leaves the directory behind that it was mounted on.
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").mkdir()
    fill(tmp_path, "kept", tmp_path / "other")
    assert there.exists() and remote.exists()
    # Nor does one that can't be said to have been there.
    (there / "checkpoint").write_text("no claim")
    fill(tmp_path, "kept", tmp_path / "other")
    assert there.exists()


def test_what_nobody_has_used_for_long_goes_unless_somebody_is_at_it(
    tmp_path: Path, checkpoint: Path
) -> None:
    unused, used, busy = (fill(tmp_path, name, checkpoint) for name in ("unused", "used", "busy"))
    of_container = unused.parent.with_name(unused.parent.name + "7") / "flow"
    shutil.copytree(unused, of_container)
    own = fill(tmp_path, "own", checkpoint)
    for directory in (unused, busy, own, of_container):
        age(directory, LONG_AGO_S)
    left = own.parent / "dead.of-a-process-that-was-killed"
    left.mkdir()
    with locked(busy):
        fill(tmp_path, "own", checkpoint)
    assert [path.exists() for path in (unused, used, busy, own, left)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert not of_container.parent.exists()


def test_what_is_of_an_earlier_boot_of_this_host_goes(tmp_path: Path, checkpoint: Path) -> None:
    here = fill(tmp_path, "flow", checkpoint)
    boot = "00000000-0000-0000-0000-000000000000"
    earlier = here.parent.with_name(f"{socket.gethostname()}-{boot}-1")
    of_others = here.parent.with_name(f"other-{boot}-1")
    of_a_namesake = here.parent.with_name(f"{socket.gethostname()}-{boot}-2")
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for place in (earlier, of_others, of_a_namesake):
        shutil.copytree(here.parent, place)
        age(place, started_s - 60)
    (of_a_namesake / "flow" / "lock").touch()
    fill(tmp_path, "flow", checkpoint)
    assert [place.exists() for place in (earlier, of_others, of_a_namesake)] == [False, True, True]


def test_a_process_that_has_a_removed_directory_open_makes_another(
    tmp_path: Path, checkpoint: Path
) -> None:
    directory = fill(tmp_path, "flow", checkpoint)
    cache = Cache(directory)
    assert holds(cache) == "flow"
    module._remove(directory)
    assert not directory.exists()
    assert holds(cache) == ""
    assert cache.errors == 0 and directory.exists()

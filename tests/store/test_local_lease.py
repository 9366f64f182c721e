"""One writer per checkpoint, for as long as its process lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from braided.errors import CheckpointWriteError, FencedError
from braided.store.durable.local_lease import LocalLease
from braided.store.durable.local_store import LocalStore

HOLD = """
import sys
from braided.store.durable.local_store import LocalStore
from braided.store.durable.local_lease import LocalLease
lease = LocalLease.acquire(LocalStore(sys.argv[1]), "query trades")
print("held", flush=True)
sys.stdin.read()
"""


HOLD_AND_FORK = """
import os, sys
from braided.store.durable.local_store import LocalStore
from braided.store.durable.local_lease import LocalLease
lease = LocalLease.acquire(LocalStore(sys.argv[1]), "query trades")
if os.fork() == 0:
    print("held", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def holder(root: Path, program: str = HOLD) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_query_is_told_who_holds_the_checkpoint(tmp_path: Path) -> None:
    files = LocalStore(tmp_path / "cp" / "braided")
    with LocalLease.acquire(files, "query trades") as lease:
        assert lease.held() and "query trades" in lease.owner
        with pytest.raises(FencedError, match=rf"query trades \(pid {os.getpid()} on .*since"):
            LocalLease.acquire(files, "query other")
        assert lease.held()
    assert not lease.held()
    LocalLease.acquire(files, "query other").release()


def test_releasing_twice_is_fine(tmp_path: Path) -> None:
    lease = LocalLease.acquire(LocalStore(tmp_path), "q")
    lease.release()
    lease.release()
    other = LocalLease.acquire(LocalStore(tmp_path), "q")
    lease.release()
    assert other.held()
    other.release()


def test_two_threads_may_release_at_once(tmp_path: Path) -> None:
    # As the thread that stops a query and the one that waits for its end do.
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(200):
                lease = LocalLease.acquire(LocalStore(tmp_path), "q")
                for released in [threads.submit(lease.release) for _ in range(4)]:
                    released.result()
    finally:
        sys.setswitchinterval(switch)


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(FencedError, match=rf"pid {process.pid} "):
        LocalLease.acquire(LocalStore(tmp_path), "query next")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with LocalLease.acquire(LocalStore(tmp_path), "query next"):
        assert json.loads((tmp_path / "lease").read_text())["owner"] == "query next"


def test_a_forked_child_does_not_take_the_lease_away(tmp_path: Path) -> None:
    with LocalLease.acquire(LocalStore(tmp_path), "q") as lease:
        child = os.fork()
        if child == 0:
            lease.release()
            os._exit(1 if lease.held() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lease.held()
        with pytest.raises(FencedError):
            LocalLease.acquire(LocalStore(tmp_path), "q2")


def test_a_child_that_outlives_the_holder_does_not_keep_the_lease(tmp_path: Path) -> None:
    process = holder(tmp_path, HOLD_AND_FORK)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with LocalLease.acquire(LocalStore(tmp_path), "query next") as lease:
        assert lease.held()
    assert process.stdin is not None
    process.stdin.close()  # lets the child go


def test_a_lease_whose_file_was_replaced_is_lost(tmp_path: Path) -> None:
    lease = LocalLease.acquire(LocalStore(tmp_path), "q")
    (tmp_path / "lease").unlink()
    assert not lease.held()
    with LocalLease.acquire(LocalStore(tmp_path), "q2") as other:
        assert other.held() and not lease.held()
        assert (lease.successor() or "").startswith("q2 (pid ") and other.successor() is None
    lease.release()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointWriteError, match="file/braided"):
        LocalLease.acquire(LocalStore(tmp_path / "file" / "braided"), "q")

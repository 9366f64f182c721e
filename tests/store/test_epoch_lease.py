"""The lease in an object store: one holder at a time, and an old one that learns of a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from braided.bench.s3_server import S3Server
from braided.errors import (
    CheckpointReadError,
    CheckpointWriteError,
    FencedError,
    LateWriteError,
)
from braided.query.losing import explain_concurrent
from braided.store.durable import epoch_lease
from braided.store.durable.epoch_lease import EpochLease
from braided.store.durable.lease import Lease, acquire_lease
from braided.store.durable.local_lease import LocalLease
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store, beside

HOLD = """
import pickle, sys
from braided.store.durable.lease import acquire_lease
lease = acquire_lease(pickle.loads(bytes.fromhex(sys.argv[1])), "query trades")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "s3", "hdfs"])
def remote(request: pytest.FixtureRequest) -> Store:
    name = f"{request.node.name}-{os.getpid()}".replace("[", "-").replace("]", "")
    if request.param == "memory":
        return open_store(f"memory://{name}/braided")
    if request.param == "hdfs":
        return open_store(f"{request.getfixturevalue('hdfs')}/{name}/braided")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(f"{server.url}/{name}/braided", server.settings)


@pytest.fixture
def leases() -> Iterator[list[Lease]]:
    """Those that are released at the end, whatever becomes of the test."""
    taken: list[Lease] = []
    yield taken
    for lease in taken:
        lease.release()


def _age(store: Store, seconds: float, **changes: object) -> None:
    """Makes the newest lease look as if it was renewed so long ago."""
    name = store.list("lease")[-1]
    holder = msgspec.json.decode(store.get(name), type=epoch_lease._Holder)
    aged = msgspec.structs.replace(
        holder, renewed_ms=holder.renewed_ms - int(seconds * 1000), **changes
    )
    store.put(name, msgspec.json.encode(aged))


def test_one_holder_at_a_time(remote: Store, leases: list[Lease]) -> None:
    leases.append(first := acquire_lease(remote, "query trades"))
    assert first.held() and "query trades" in first.owner and "epoch 1" in first.owner
    with pytest.raises(FencedError, match=r"lease/.*held by query trades \(pid.*braided\.takeover"):
        acquire_lease(remote, "query next")
    first.release()
    first.release()
    assert not first.held()
    leases.append(second := acquire_lease(remote, "query next"))
    assert second.held() and "epoch 2" in second.owner
    assert len(remote.list("lease")) == 1  # what is left of earlier ones goes


def test_what_a_holder_that_was_killed_was_writing_goes_with_its_epoch(
    remote: Store, leases: list[Lease]
) -> None:
    """On HDFS, which renames, a renewal that is killed leaves a file that has no name yet."""
    leases.append(old := acquire_lease(remote, "query old"))
    old.release()
    killed, of_others = beside("lease/00000001.json"), beside("lease/00000003.json")
    for name in (killed, of_others):
        remote.put(name, b"half")
    leases.append(acquire_lease(remote, "query next"))
    assert set(remote.list("lease")) == {"lease/00000002.json", of_others}


def test_a_holder_that_was_taken_over_from_knows(remote: Store, leases: list[Lease]) -> None:
    leases.append(old := acquire_lease(remote, "query old"))
    leases.append(new := acquire_lease(remote, "query new", takeover=True))
    assert new.held() and not old.held()
    old.release()  # takes nothing from the new one
    assert new.held()
    with pytest.raises(FencedError, match="query new"):
        acquire_lease(remote, "query third")


def test_a_lease_of_another_machine_is_held_as_long_as_it_is_fresh(
    remote: Store, leases: list[Lease]
) -> None:
    leases.append(old := acquire_lease(remote, "query far away"))
    _age(remote, epoch_lease.FRESH_S - 10, process="another machine/17")
    with pytest.raises(FencedError, match="query far away"):
        acquire_lease(remote, "query next")
    _age(remote, 20)
    leases.append(new := acquire_lease(remote, "query next"))
    assert new.held() and not old.held()


def test_a_holder_renews_its_lease_and_may_come_late(
    remote: Store, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    put = type(remote).put

    def seen(store: Store, name: str, data: bytes) -> None:
        put(store, name, data)
        renewed.set()

    monkeypatch.setattr(epoch_lease, "RENEWED_EVERY_S", 0.01)
    leases.append(lease := acquire_lease(remote, "query trades"))
    _age(remote, 1000, process="another machine/17")
    monkeypatch.setattr(type(remote), "put", seen)
    assert renewed.wait(60)
    with pytest.raises(FencedError):
        acquire_lease(remote, "query next")
    leases.append(new := acquire_lease(remote, "query next", takeover=True))
    assert new.held() and not lease.held()


def test_a_lease_of_this_process_that_could_not_be_given_back_holds_nobody_up(
    remote: Store, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = acquire_lease(remote, "query old")

    def fail(store: Store, name: str, data: bytes) -> None:
        raise CheckpointWriteError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(type(remote), "put", fail)
        lease.release()
    leases.append(acquire_lease(remote, "query new"))


def test_an_idle_holder_is_told_that_it_was_replaced(
    remote: Store, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_lease, "RENEWED_EVERY_S", 0.01)
    told = threading.Event()
    leases.append(old := acquire_lease(remote, "query old"))
    old.call_when_lost(told.set)
    leases.append(new := acquire_lease(remote, "query new", takeover=True))
    assert told.wait(60)
    assert new.held() and not old.held()
    assert (old.successor() or "").startswith("query new (pid ") and new.successor() is None
    # Words of Spark's that may mean either: of one that was replaced, and of who replaced it.
    said = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."
    assert isinstance(explain_concurrent(said, old, "there"), FencedError)
    assert isinstance(explain_concurrent(said, new, "there"), LateWriteError)
    assert explain_concurrent("something else", old, "there") is None


def test_a_newcomer_that_comes_late_does_not_take_an_epoch_that_is_over(
    remote: Store, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.append(acquire_lease(remote, "first"))
    leases[0].release()
    listed, late = type(remote).list, [True]

    def list_then_stall(store: Store, directory: str) -> list[str]:
        names = listed(store, directory)
        if late:  # others come and go between its look and its create
            late.clear()
            acquire_lease(store, "second").release()
            leases.append(acquire_lease(store, "third"))
        return names

    monkeypatch.setattr(type(remote), "list", list_then_stall)
    with pytest.raises(FencedError, match="third"):
        acquire_lease(remote, "late")
    assert leases[-1].held()


def test_of_many_newcomers_one_gets_the_lease(remote: Store, leases: list[Lease]) -> None:
    def take(number: int) -> Lease | None:
        try:
            return acquire_lease(remote, f"query {number}", takeover=number % 2 == 0)
        except FencedError:
            return None

    with ThreadPoolExecutor(8) as threads:
        leases += filter(None, threads.map(take, range(8)))
    assert sum(lease.held() for lease in leases) == 1


def test_a_killed_holder_of_this_machine_holds_nothing(
    s3_server: S3Server, leases: list[Lease]
) -> None:
    import pickle

    store = open_store(f"{s3_server.url}/killed/braided", s3_server.settings)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, pickle.dumps(store).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(FencedError, match=rf"pid {process.pid} "):
        acquire_lease(store, "query next")
    process.send_signal(signal.SIGKILL)
    process.wait()
    leases.append(lease := acquire_lease(store, "query next"))
    assert lease.held()


def test_a_lease_that_can_not_be_looked_at_is_an_error_and_no_answer(
    s3_server: S3Server, leases: list[Lease]
) -> None:
    good = open_store(f"{s3_server.url}/looked/braided", s3_server.settings)
    leases.append(acquire_lease(good, "q"))
    settings = {**s3_server.settings, "secret_access_key": "wrong"}
    with pytest.raises(CheckpointReadError):
        EpochLease.acquire(open_store(f"{s3_server.url}/looked/braided", settings), "q", True)


def test_a_local_path_has_the_operating_systems_lock(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    lease = acquire_lease(store, "q", takeover=True)
    assert isinstance(lease, LocalLease)
    with pytest.raises(FencedError):
        acquire_lease(store, "q", takeover=True)
    lease.release()

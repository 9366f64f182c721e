"""How each kind of fault is done to a cluster, its drivers and its store."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from braided.bench.process_tree import children, descendants, kill
from braided.bench.standalone_cluster import ClusterError, StandaloneCluster
from support.chaos.disks import empty, fill
from support.chaos.driver_process import DriverProcess, Drivers, send_signal
from support.chaos.plan import Fault, Kind
from support.chaos.store_proxy import Misbehaviour, StoreProxy

__all__ = ["Saboteur"]

_Found = TypeVar("_Found")

_PATIENCE_S = 240.0
"""How long a process may take to come, or to go; a busy machine is no fault of the query's."""
_LOOK_S = 0.1

_MISBEHAVIOURS = {
    Kind.STORE_LATE: Misbehaviour.LATE,
    Kind.STORE_ERRORS: Misbehaviour.ERRORS,
    Kind.STORE_SILENT: Misbehaviour.SILENT,
    Kind.STORE_GONE: Misbehaviour.GONE,
    Kind.STORE_LOST_ANSWERS: Misbehaviour.LOST_ANSWERS,
}


@dataclass(frozen=True)
class Saboteur:
    """Does faults, each from its beginning to its end."""

    cluster: StandaloneCluster
    drivers: Drivers
    proxy: StoreProxy

    def do(self, fault: Fault) -> str:
        """One fault; returns when it is over, with a word on whom it hit."""
        if fault.kind in _MISBEHAVIOURS:
            return self._store(fault)
        done: dict[Kind, Callable[[Fault], str]] = {
            Kind.KILL_EXECUTOR: self._kill_executor,
            Kind.KILL_PYTHON: self._kill_python,
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_DRIVER: self._kill_driver,
            Kind.KILL_DRIVER_JVM: self._kill_driver,
            Kind.KILL_DRIVER_PYTHON: self._kill_driver,
            Kind.STOP_EXECUTOR: self._stop_executor,
            Kind.STOP_PYTHON: self._stop_python,
            Kind.STOP_DRIVER: self._stop_driver,
            Kind.TAKE_OVER: self._take_over,
            Kind.FILL_DISK: self._fill_disk,
            Kind.DELETE_CACHE: self._delete_cache,
        }
        return done[fault.kind](fault)

    # -- executors and their Python --------------------------------------------------------

    def _kill_executor(self, fault: Fault) -> str:
        pid = fault.choose(self._await(self._executors, "an executor"))
        kill([pid])
        return f"pid {pid}"

    def _kill_python(self, fault: Fault) -> str:
        pid = fault.choose(self._await(self._pythons, "a Python worker"))
        kill([pid])
        return f"pid {pid}"

    def _stop_executor(self, fault: Fault) -> str:
        return self._stop(fault, [fault.choose(self._await(self._executors, "an executor"))])

    def _stop_python(self, fault: Fault) -> str:
        return self._stop(fault, [fault.choose(self._await(self._pythons, "a Python worker"))])

    def _executors(self) -> list[int]:
        found = []
        for worker in self.cluster.workers:
            found += children(worker.pid)
        return found

    def _pythons(self) -> list[int]:
        """The daemons that fork workers, and the workers."""
        return [pid for executor in self._executors() for pid in descendants(executor)]

    def _stop(self, fault: Fault, pids: list[int]) -> str:
        send_signal(pids, signal.SIGSTOP)
        time.sleep(fault.seconds)
        send_signal(pids, signal.SIGCONT)
        return f"pid {pids[0]} for {fault.seconds} s"

    # -- hosts -----------------------------------------------------------------------------

    def _kill_worker(self, fault: Fault) -> str:
        host = fault.choose(self.cluster.workers).host
        self.cluster.kill_worker(host)
        time.sleep(fault.seconds)
        self.cluster.start_worker(host)
        return f"{host} for {fault.seconds} s"

    def _fill_disk(self, fault: Fault) -> str:
        worker = fault.choose(self.cluster.workers)
        try:
            fill(worker.local_dir)
            time.sleep(fault.seconds)
        finally:
            empty(worker.local_dir)
        return f"{worker.host} for {fault.seconds} s"

    def _delete_cache(self, fault: Fault) -> str:
        there = self._await(self._caches, "a cache of state")
        cache = fault.choose(there)
        shutil.rmtree(cache, ignore_errors=True)  # somebody may be writing to it
        return str(cache.relative_to(self.cluster.work))

    def _caches(self) -> list[Path]:
        found = []
        for worker in self.cluster.workers:
            for directory, below, _ in os.walk(worker.local_dir):
                caches = [name for name in below if name.startswith("braided-cache-")]
                found += [Path(directory, name) for name in caches]
                below[:] = [name for name in below if name not in caches]
        return sorted(found)

    # -- the driver ------------------------------------------------------------------------

    def _kill_driver(self, fault: Fault) -> str:
        driver = self._started_driver()
        if fault.kind is Kind.KILL_DRIVER_JVM:
            pids = driver.jvm
        elif fault.kind is Kind.KILL_DRIVER_PYTHON:
            pids = driver.python
        else:
            pids = driver.pids
        kill(pids)
        return f"driver {driver.number}"

    def _stop_driver(self, fault: Fault) -> str:
        self._stop(fault, self._started_driver().pids)
        return f"driver {self.drivers.current.number} for {fault.seconds} s"

    def _take_over(self, fault: Fault) -> str:
        """Another driver takes the checkpoint over from one that stands still and then goes on:
        it has to end by itself, and whatever it still does must change nothing.
        """
        zombie = self._started_driver()
        asleep = zombie.pids
        send_signal(asleep, signal.SIGSTOP)
        heir = self.drivers.start(takeover=True)
        try:
            self._await(lambda: heir.has_started, f"driver {heir.number} in its place")
        finally:
            send_signal(asleep, signal.SIGCONT)
        self._await(lambda: not zombie.runs, f"the end of driver {zombie.number}, taken over from")
        ended = [said["error"] for said in zombie.said() if "error" in said]
        assert ended[-1:] == ["FencedError"], (
            f"driver {zombie.number} was taken over from and ended with {ended}\n{zombie.tail()}"
        )
        return f"driver {heir.number} from driver {zombie.number}"

    def _started_driver(self) -> DriverProcess:
        self._await(lambda: self.drivers.current.has_started, "a driver that has started")
        return self.drivers.current

    # -- the store -------------------------------------------------------------------------

    def _store(self, fault: Fault) -> str:
        before = self.proxy.affected
        self.proxy.misbehave(_MISBEHAVIOURS[fault.kind])
        try:
            time.sleep(fault.seconds)
            # Whom nobody has asked has not misbehaved; a query that is idle asks for its lease.
            self._await(lambda: self.proxy.affected > before, "a request to the store")
        finally:
            self.proxy.misbehave(None)
        return f"for {fault.seconds} s, {self.proxy.affected - before} requests"

    def _await(self, look: Callable[[], _Found], what: str) -> _Found:
        """What there is, as soon as there is something."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if found := look():
                    return found
            except ClusterError:
                pass  # a worker that is just being killed by another fault
            if time.monotonic() > deadline:
                raise TimeoutError(f"there is not {what} within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

"""A real Spark standalone cluster on this machine, for demo, tests and benchmarks.

The master is 127.0.0.1, workers are 127.0.0.2 and following: Spark takes each for a host of its
own, with its own executors, local directory and address, and any of them can be lost on purpose.
Nothing listens but on loopback. Every daemon has a keeper (`process_tree.py`), so that nothing of a
cluster outlives the process that started it, however that ends.

Linux answers on all of 127.0.0.0/8 without being told to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braided.bench.free_port import free_port
from braided.bench.process_tree import children, keep, kill, kill_below

__all__ = [
    "LOST_EXECUTOR_SETTINGS",
    "ClusterError",
    "StandaloneCluster",
    "Worker",
    "standalone_cluster",
]

LOST_EXECUTOR_SETTINGS = {
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
    "spark.locality.wait": "500ms",
}
"""What keeps tasks from waiting for an executor that is gone; docs/cluster.md has the figures."""

_MASTER = "127.0.0.1"
_DAEMON = ("-Xms64m", "-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_EXECUTOR = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_START_S = 300.0
_LOOK_S = 0.05
_LOG_CHARACTERS = 2_000


class ClusterError(RuntimeError):
    """A daemon does not start, or is not there."""


@dataclass(frozen=True)
class Worker:
    """A host of the cluster: its address, its worker process and where it keeps its files."""

    host: str
    pid: int
    local_dir: Path


@dataclass
class StandaloneCluster:
    """A cluster that runs. `standalone_cluster` makes one."""

    work: Path
    cores: int
    memory_mb: int
    _port: int
    _page: int
    """The port of the master's page, which says as JSON which workers it has."""
    _keepers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://{_MASTER}:{self._port}"

    @property
    def spark_settings(self) -> dict[str, str]:
        """For a driver on this machine, one executor on each worker."""
        return {
            "spark.master": self.url,
            "spark.driver.host": _MASTER,
            "spark.driver.bindAddress": _MASTER,
            "spark.executor.cores": str(self.cores),
            "spark.executor.memory": f"{self.memory_mb}m",
            # Executors start more often here than they live long.
            "spark.executor.extraJavaOptions": _EXECUTOR,
            "spark.pyspark.python": sys.executable,
            "spark.python.daemon.module": "braided.worker_daemon",
            "spark.ui.enabled": "false",
            **LOST_EXECUTOR_SETTINGS,
        }

    @property
    def workers(self) -> list[Worker]:
        """The workers whose process runs."""
        found = []
        for host, keeper in sorted(self._keepers.items()):
            if host != _MASTER:
                found += [
                    Worker(host, pid, self._local_dir(host)) for pid in children(keeper.pid)[:1]
                ]
        return found

    def start_worker(self, host: str) -> Worker:
        """Adds a worker, or brings back one that was lost; the master has it at the end."""
        self._launch_worker(host)
        self._await_workers([host])
        return self._worker(host)

    def kill_worker(self, host: str) -> None:
        """Loses a host: the worker and all that runs on it, with kill -9. Its files stay."""
        keeper = self._keeper(host)
        kill_below(keeper.pid)
        keeper.wait()
        del self._keepers[host]

    def executor_pids(self, host: str) -> list[int]:
        """The executors' JVMs on a host; none while the worker starts another."""
        return children(self._worker(host).pid)

    def kill_executor(self, host: str) -> int:
        """Kills a host's executors, not its worker, which starts another; how many there were."""
        pids = self.executor_pids(host)
        kill(pids)
        return len(pids)

    def log(self, host: str) -> Path:
        """What the daemon of a host has said; executors' words are below the worker's `work`."""
        return self.work / host / "daemon.log"

    def _keeper(self, host: str) -> subprocess.Popen[bytes]:
        if host not in self._keepers:
            known = ", ".join(worker.host for worker in self.workers)
            raise ClusterError(f"no worker runs on {host!r}; there are {known or 'none'}")
        return self._keepers[host]

    def _worker(self, host: str) -> Worker:
        self._keeper(host)
        for worker in self.workers:
            if worker.host == host:
                return worker
        raise ClusterError(f"the worker on {host} has ended: {self._tail(host)}")

    def _local_dir(self, host: str) -> Path:
        return self.work / host / "local"

    def _launch_master(self) -> None:
        arguments = ["--port", str(self._port), "--webui-port", str(self._page)]
        self._launch(_MASTER, "master.Master", arguments)
        self._await(self._alive_hosts, lambda hosts: hosts is not None, [_MASTER])

    def _launch_worker(self, host: str) -> None:
        if host in self._keepers and self._keepers[host].poll() is None:
            raise ClusterError(f"a worker runs on {host} already")
        arguments = ["--cores", str(self.cores), "--memory", f"{self.memory_mb}M"]
        arguments += ["--webui-port", "0", "--work-dir", str(self.work / host / "work"), self.url]
        self._launch(host, "worker.Worker", arguments)

    def _launch(self, host: str, name: str, arguments: Sequence[str]) -> None:
        """Starts a daemon, with Java itself: Spark's scripts would start another Java first."""
        local = self._local_dir(host)
        local.mkdir(parents=True, exist_ok=True)
        home = _spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": _scala_version(home),  # a worker asks for it, as scripts set it
            "SPARK_LOCAL_IP": host,  # where web pages listen, which else is everywhere
            "SPARK_LOCAL_DIRS": str(local),
        }
        for variable in ("SPARK_WORKER_DIR", "SPARK_WORKER_INSTANCES", "SPARK_PUBLIC_DNS"):
            environment.pop(variable, None)
        settings = ["-Dspark.master.rest.enabled=false", f"-Djava.io.tmpdir={local}"]
        command = [_java(), *_DAEMON, *settings, "-cp", f"{home / 'conf'}:{home / 'jars'}/*"]
        command += [f"org.apache.spark.deploy.{name}", "--host", host, *arguments]
        self._keepers[host] = keep(command, environment, self.log(host))

    def _await_workers(self, hosts: Sequence[str]) -> None:
        self._await(
            self._alive_hosts, lambda alive: alive is not None and alive >= set(hosts), hosts
        )

    def _await(
        self, look: Callable[[], Any], enough: Callable[[Any], bool], hosts: Sequence[str]
    ) -> None:
        """Waits for a condition on daemons that start."""
        deadline = time.monotonic() + _START_S
        while not enough(seen := look()):
            for host in hosts:
                if self._keepers[host].poll() is not None:
                    raise ClusterError(f"the daemon on {host} has ended: {self._tail(host)}")
            if time.monotonic() > deadline:
                said = "; ".join(f"{host} says: {self._tail(host)}" for host in hosts)
                raise ClusterError(
                    f"after {_START_S:.0f} s the master at {self.url} has workers {seen}: {said}"
                )
            time.sleep(_LOOK_S)

    def _alive_hosts(self) -> set[str] | None:
        """The workers that the master counts on; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{_MASTER}:{self._page}/json/", timeout=5) as page:
                status = json.load(page)
        except (OSError, ValueError):
            return None
        return {w["host"] for w in status["workers"] if w["state"] == "ALIVE"}

    def _tail(self, host: str) -> str:
        return self.log(host).read_text(errors="replace")[-_LOG_CHARACTERS:].strip() or "nothing"

    def _stop(self) -> None:
        """Ends all daemons, with everything below them, at once."""
        for keeper in self._keepers.values():
            assert keeper.stdin is not None
            keeper.stdin.close()
        for keeper in self._keepers.values():
            keeper.wait()
        self._keepers.clear()


@contextmanager
def standalone_cluster(
    work: Path, workers: int = 4, cores: int = 1, memory_mb: int = 768
) -> Iterator[StandaloneCluster]:
    """A master and so many workers, each with so many cores and so much memory, until it ends.

    `memory_mb` is the heap of a worker's one executor; its Python processes come on top.
    """
    page, port = free_port(_MASTER), free_port(_MASTER)
    cluster = StandaloneCluster(work, cores, memory_mb, port, page)
    hosts = [f"127.0.0.{number}" for number in range(2, 2 + workers)]
    try:
        cluster._launch_master()
        for host in hosts:
            cluster._launch_worker(host)
        cluster._await_workers(hosts)
        yield cluster
    finally:
        cluster._stop()


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__path__[0])


def _scala_version(home: Path) -> str:
    core = next((home / "jars").glob("spark-core_*.jar"))
    return core.name.removeprefix("spark-core_").partition("-")[0]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        raise ClusterError("there is no Java: install Java 17 or newer, or set JAVA_HOME")
    return java

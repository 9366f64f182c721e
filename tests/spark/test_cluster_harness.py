"""A cluster of several hosts on this machine: a query goes on when one of them is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from braided.bench.process_tree import descendants
from braided.bench.standalone_cluster import ClusterError, standalone_cluster
from support.bare import ROOT
from support.listening import listening_at
from support.lost_host_program import KEYS, ROWS

PROGRAM = ROOT / "tests/support/lost_host_program.py"
PATIENCE_S = 400.0
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Driver:
    """A program that prints lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def next(self) -> dict[str, Any]:
        line = self._lines.get(timeout=PATIENCE_S)
        assert line, self.process.communicate()[1]
        said: dict[str, Any] = json.loads(line)
        return said

    def await_batch(self, number: int) -> int:
        """Waits until a batch of this number or a later one has ended; which one."""
        while (ended := int(self.next()["batch"])) < number:
            pass
        return ended

    def finish(self) -> dict[str, Any]:
        """Ends its input; the last thing that it says."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while "last" not in (said := self.next()):
            pass
        assert self.process.wait(PATIENCE_S) == 0
        return said


@contextmanager
def driver(settings: dict[str, str], home: Path) -> Iterator[Driver]:
    arguments = [json.dumps(settings), str(home)]
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Driver(process)
    finally:
        process.kill()
        process.wait()


def processes_of(directory: Path) -> list[int]:
    """Processes that were told to keep files below a directory, executors and Python too."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            said = (entry / "environ").read_bytes()
        except OSError:
            continue  # no process, or one that has ended
        if entry.name.isdigit() and os.fsencode(directory) in said:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_a_query_goes_on_when_a_host_is_lost_and_nothing_is_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever listens meanwhile does so on loopback."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]))
    work, others = tmp_path / "cluster", set(descendants(os.getpid()))
    with standalone_cluster(work, workers=2, memory_mb=512) as cluster:
        here, lost = (worker.host for worker in cluster.workers)
        settings = {**cluster.spark_settings, "spark.driver.extraJavaOptions": JAVA}
        with driver(settings, tmp_path) as program:
            ended = program.await_batch(2)
            assert cluster.executor_pids(here) and cluster.executor_pids(lost)
            reached_at = listening_at(set(descendants(os.getpid())) - others)
            assert all(address.is_loopback for address in reached_at), reached_at
            assert {"127.0.0.1", here, lost} <= set(map(str, reached_at))
            cluster.kill_worker(lost)
            assert [worker.host for worker in cluster.workers] == [here]
            assert processes_of(work / lost) == []
            with pytest.raises(ClusterError, match=f"no worker runs on '{lost}'; there are {here}"):
                cluster.kill_executor(lost)
            program.await_batch(ended + 3)
            said = program.finish()
        left = set(descendants(os.getpid())) - others
        assert left
    rows = said["rows"]
    assert rows >= ROWS * (ended + 3)
    assert said["distinct"] == rows  # each count of each key once
    assert (said["least"], said["most"]) == (1, rows // KEYS)
    assert processes_of(work) == []
    assert not left & set(descendants(os.getpid()))

"""Drivers of one query, one after the other, seen from outside: started, killed, stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec

from braided.bench.process_tree import children, descendants, keep
from support.chaos.driver import Job

__all__ = ["DriverProcess", "Drivers", "send_signal"]

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = Path(__file__).with_name("driver.py")
_LINES = 40


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    """To those of these processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class DriverProcess:
    """A driver, with a keeper, so that nothing of it outlives the run."""

    def __init__(self, home: Path, number: int, job: Job) -> None:
        self.number = number
        self.log = home / f"driver-{number:03d}.log"
        self._commands, self._said = Path(job.commands), Path(job.said)
        self._commands.touch()
        written = home / f"driver-{number:03d}.json"
        written.write_bytes(msgspec.json.encode(job))
        temporary = home / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT / 'tests'}",
            "TZ": "UTC",
            "TMPDIR": str(temporary),  # who is killed tidies nothing up
        }
        command = [sys.executable, "-P", str(_PROGRAM), str(written)]
        self._keeper: Popen[bytes] = keep(command, environment, self.log)

    @property
    def runs(self) -> bool:
        return self._keeper.poll() is None

    @property
    def pids(self) -> list[int]:
        """Its Python, its JVM, and what else it has started."""
        return descendants(self._keeper.pid)

    @property
    def python(self) -> list[int]:
        return children(self._keeper.pid)[:1]

    @property
    def jvm(self) -> list[int]:
        return [pid for pid in self.pids if _program_of(pid).endswith("/java")]

    def command(self, method: str, *arguments: Any) -> None:
        with self._commands.open("a") as file:
            file.write(json.dumps([method, *arguments]) + "\n")

    def said(self) -> list[dict[str, Any]]:
        if not self._said.exists():
            return []
        return [json.loads(line) for line in self._said.read_text().split("\n")[:-1]]

    @property
    def has_started(self) -> bool:
        return any("started" in each for each in self.said())

    def await_end(self, timeout_s: float) -> None:
        self._keeper.wait(timeout_s)

    def end(self) -> None:
        """Ends all of it, whatever state it is in."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    def tail(self) -> str:
        said = "\n".join(json.dumps(each) for each in self.said()[-_LINES:])
        logged = self.log.read_text(errors="replace").splitlines()[-_LINES:]
        return f"driver {self.number} has said:\n{said}\nand logged:\n" + "\n".join(logged)


class Drivers:
    """The driver of a query, and those that were before it."""

    def __init__(self, home: Path, job: Job) -> None:
        """`job` lacks what is different for each of them."""
        self._home = home
        self._job = job
        self._all: list[DriverProcess] = []
        self._told = 0

    @property
    def current(self) -> DriverProcess:
        return self._all[-1]

    @property
    def count(self) -> int:
        return len(self._all)

    def start(self, takeover: bool = False) -> DriverProcess:
        number = len(self._all) + 1
        job = msgspec.structs.replace(
            self._job,
            takeover=takeover,
            commands=str(self._home / f"driver-{number:03d}.commands"),
            said=str(self._home / f"driver-{number:03d}.said"),
        )
        self._all.append(DriverProcess(self._home, number, job))
        return self._all[-1]

    def mend(self) -> bool:
        """Starts another driver if the newest one has ended."""
        if self.current.runs:
            return False
        self.start()
        return True

    def errors(self) -> Counter[str]:
        """What queries have failed of, by the names of the errors."""
        return Counter(
            said["error"] for driver in self._all for said in driver.said() if "error" in said
        )

    def new_errors(self) -> list[str]:
        """The first lines of those that were not asked about before."""
        errors = [
            f"driver {driver.number}, {said['error']}: {said['text'].partition(chr(10))[0]}"
            for driver in self._all
            for said in driver.said()
            if "error" in said
        ]
        new = errors[self._told :]
        self._told = len(errors)
        return new

    def end(self) -> None:
        for driver in self._all:
            driver.end()


def _program_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""

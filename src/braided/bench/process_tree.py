"""Processes below a process: found in /proc, ended together, and none of them left behind.

This file is also a program, the keeper of a command: it runs the command, and when its standard
input is closed, which the death of whoever holds the other end does as well, it ends the command
and everything that the command started. A signal at a parent's death does less: it goes with the
thread that started the child, and it does not reach grandchildren.

It runs without any package, so that a keeper starts at once and weighs little.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "descendants", "keep", "kill", "kill_below"]

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans below become children, and are found
_LOOK_S = 0.02
_KILL_S = 60.0


def keep(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Starts a command under a keeper of its own; closing the keeper's input ends both.

    In a session of its own, Ctrl-C does not reach it: its starter decides when it ends.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *command],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def children(pid: int) -> list[int]:
    """The processes that this one started and that still run."""
    return sorted(_by_parent()[pid])


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents before their children."""
    below, by_parent = [pid], _by_parent()
    for parent in below:
        below.extend(by_parent[parent])
    return below[1:]


def kill(pids: Sequence[int]) -> None:
    """Ends these processes, with kill -9, and waits until they have."""
    for pid in pids:
        _signal(pid)
    _await(lambda: not any(map(_runs, pids)), f"processes {pids} do not end")


def kill_below(pid: int) -> None:
    """Ends all processes below this one, with those that they start meanwhile.

    Parents die first and orphans come to the keeper, so nobody escapes for long.
    """

    def none_left() -> bool:
        below = descendants(pid)
        for each in below:
            _signal(each)
        return not below

    _await(none_left, f"processes below {pid} do not end")


def _await(done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _KILL_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(_LOOK_S)


def _by_parent() -> dict[int, list[int]]:
    """Which processes each process has started; dead ones that nobody has asked about are none."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            status = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        state, parent, *_ = status.rpartition(") ")[2].split()  # names may have spaces
        if state not in "ZX":
            found[int(parent)].append(int(entry))
    return found


def _runs(pid: int) -> bool:
    return any(pid in each for each in _by_parent().values())


def _signal(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _main(command: Sequence[str]) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended, tell = os.pipe()

    def wait() -> None:
        # Not by Popen: this also takes note of the orphans that end here, until all have.
        with suppress(ChildProcessError):
            while os.wait()[0] != process.pid:
                pass
        os.close(tell)

    threading.Thread(target=wait, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        select.select([sys.stdin.fileno(), ended], [], [])
    finally:
        kill_below(os.getpid())
        with suppress(ChildProcessError):
            while True:
                os.wait()  # so that the dead are gone from the table of processes
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

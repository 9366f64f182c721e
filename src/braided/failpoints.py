"""Fail points: where a test can end the process as a power cut would, or the batch with an error.

`BRAIDED_FAILPOINT=name` (or `name:3` for the third time it is reached) names one point and
`BRAIDED_FAILPOINT_PID` the process to kill with SIGKILL: the driver, wherever the point is reached.
Workers count in a file, `BRAIDED_FAILPOINT_COUNT`, because they come and go. Another signal than
SIGKILL is named by `BRAIDED_FAILPOINT_SIGNAL`: SIGSTOP makes a process that a later one replaces.

`arm(name)` makes a point of `POINTS` raise instead, once, which ends the query and leaves the
process. Batches take the name along to their tasks. Unarmed, a point costs two comparisons.
"""

from __future__ import annotations

import fcntl
import os
import signal

__all__ = ["POINTS", "Crash", "arm", "armed", "message", "reach"]

POINTS = (
    "before-routing",
    "task-rows",
    "task-after-changelog",
    "merged",
    "manifest-writing",
    "manifest-linked",
    "after-manifest",
    "publishing",
    "after-publish",
)
"""The way of a batch, in order; `manifest-linked` is the first after the commit."""

_ARMED, _, _NTH = os.environ.get("BRAIDED_FAILPOINT", "").partition(":")
_raising = ""


class Crash(RuntimeError):
    """Ends a batch at a fail point, as a test has asked."""


def message(name: str) -> str:
    """What the error of a point says."""
    return f"crashed at {name}, as asked"


def arm(name: str | None) -> None:
    """Makes a point raise `Crash` the next time it is reached in this process; none, if None."""
    global _raising
    _raising = name or ""


def armed() -> str:
    """The point that raises; empty if there is none."""
    return _raising


def reach(name: str) -> None:
    """Says that the program has come to the point `name`."""
    if name == _raising:
        arm(None)
        raise Crash(message(name))
    if name != _ARMED:
        return
    if _count() == int(_NTH or 1):
        pid = int(os.environ.get("BRAIDED_FAILPOINT_PID") or os.getpid())
        os.kill(pid, signal.Signals[os.environ.get("BRAIDED_FAILPOINT_SIGNAL") or "SIGKILL"])
        if pid != os.getpid():
            # A dead driver never reads what this worker would go on to write.
            os.kill(os.getpid(), signal.SIGKILL)


def _count() -> int:
    path = os.environ.get("BRAIDED_FAILPOINT_COUNT")
    if not path:
        return 1
    with open(path, "a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.write("x")
        counter.flush()
        return os.fstat(counter.fileno()).st_size

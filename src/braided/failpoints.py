"""Places where a test can end the process as a power cut would.

`BRAIDED_FAILPOINT=name` (or `name:3` for the third time it is reached) names one place and
`BRAIDED_FAILPOINT_PID` the process to kill with SIGKILL: the driver, wherever the place is reached.
Workers count in a file, `BRAIDED_FAILPOINT_COUNT`, because they come and go. Without the
variables a place costs one comparison.
"""

from __future__ import annotations

import fcntl
import os
import signal

__all__ = ["reach"]

_ARMED, _, _NTH = os.environ.get("BRAIDED_FAILPOINT", "").partition(":")


def reach(name: str) -> None:
    """Says that the program has come to the place `name`."""
    if name != _ARMED:
        return
    if _count() == int(_NTH or 1):
        pid = int(os.environ.get("BRAIDED_FAILPOINT_PID") or os.getpid())
        os.kill(pid, signal.SIGKILL)
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

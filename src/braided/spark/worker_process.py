"""What makes PySpark's worker processes answer quickly; it changes no result.

Two habits of theirs cost every task more than its rows do:

- Rows come in small writes over a loopback socket. The JVM's Nagle algorithm holds a write back
  until the one before is acknowledged, and the worker's kernel delays that by 40 ms. A socket that
  acknowledges at once ends the wait (16 tasks of 125 rows on 2 cores: 500 ms become 200 ms).
- After each task the worker collects garbage through every object of pyspark, pandas and pyarrow
  (about 12 ms). Frozen once, they are not looked at again. And while a task runs, Python looks for
  cycles whenever there are 700 new objects; rows and records are in none, and very many.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import stat
import tempfile
import zlib

__all__ = ["EXECUTOR_PROPERTY", "acknowledge_at_once", "freeze_heap", "local_directory"]

EXECUTOR_PROPERTY = "braided.executor"
"""The local property that has the id of a task's executor, where channels have hosts."""

_COLLECT_AFTER = 10_000
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


@functools.cache
def freeze_heap() -> None:
    """Once per process, when everything is imported: leave what is there out of collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])


def local_directory(user: str) -> str:
    """Where on this host something may be kept that outlives the process, as Spark was told.

    Spark tells a worker the directories of its executor, one on each disk, which go with that;
    their parents are what was configured, for this executor. Who uses it decides on which disk.
    """
    own = filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(","))
    disks = sorted({os.path.dirname(directory) for directory in own})
    return disks[zlib.crc32(user.encode()) % len(disks)] if disks else tempfile.gettempdir()


def acknowledge_at_once() -> None:
    """Before a read: the kernel falls back to delays by itself, so this is said again and again."""
    if _QUICKACK is None:
        return
    for number in _connections():
        try:
            connection = socket.socket(fileno=number)
        except OSError:
            continue
        try:
            connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        except OSError:
            pass  # closed, or no TCP after all: slower, that is all
        finally:
            connection.detach()


@functools.cache
def _connections() -> tuple[int, ...]:
    """The TCP connections of this process; a worker has the one to its executor."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return ()
    return tuple(filter(_is_tcp, numbers))


def _is_tcp(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        connection = socket.socket(fileno=number)
    except OSError:
        return False
    try:
        return (
            connection.family in (socket.AF_INET, socket.AF_INET6)
            and connection.type == socket.SOCK_STREAM
        )
    finally:
        connection.detach()

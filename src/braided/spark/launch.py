"""Starts Spark's own query so that its logs cost little.

Spark writes two files for every batch (`offsets/`, `commits/`), and a source may write a third. Its
default way to do so atomically on a local disk starts about ten processes (`chmod`, `readlink`) for
each file where Hadoop's native library is missing, as it is in PySpark from PyPI. Its other way,
to write a hidden file and rename it, is atomic on a local disk as well and starts two. What it
lacks is a guard against a second writer, and that is our lease.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from braided.spark.jvm import RENAMED_LOGS, Jvm

__all__ = ["launch"]

_SOURCES_MS = 10_000
"""How long we wait for sources to open; one that takes longer opens with the usual setting."""

_lock = threading.Lock()
_starting: Counter[str] = Counter()
"""How many queries of a session are being started with our setting."""


class _Stoppable(Protocol):
    def stop(self) -> None: ...


_Query = TypeVar("_Query", bound=_Stoppable)


def launch(
    spark: SparkSession,
    writer: DataStreamWriter,
    wrap: Callable[[StreamingQuery], _Query],
    renames: bool,
) -> _Query:
    """`writer.start()`; `wrap` makes a query of ours of Spark's, which knows when it can be stopped
    without harm. `renames` is whether to rename a file is atomic where the checkpoint is.
    """
    with _renamed_logs(spark) if renames else contextlib.nullcontext():
        started = writer.start()
        query = wrap(started)
        try:
            Jvm(spark).await_sources(started, _SOURCES_MS)
        except BaseException:  # the user's Ctrl-C: nobody would have the query to stop it
            query.stop()
            raise
    return query


@contextlib.contextmanager
def _renamed_logs(spark: SparkSession) -> Iterator[None]:
    """Has the setting in the session until the query has its copy of it; a user's own stays."""
    name, value = RENAMED_LOGS
    session = Jvm(spark).session_id()
    with _lock:
        ours = session in _starting or spark.conf.get(name, None) is None
        if ours:
            spark.conf.set(name, value)
            _starting[session] += 1
    try:
        yield
    finally:
        with _lock:
            if ours:
                _starting[session] -= 1
                if not _starting[session]:
                    del _starting[session]
                    spark.conf.unset(name)

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
from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from braided.engine.jvm import RENAMED_LOGS, Jvm

__all__ = ["launch"]

_SOURCES_MS = 10_000
"""How long sources may take to be opened until they are left to open with the usual setting."""

_lock = threading.Lock()


def launch(spark: SparkSession, writer: DataStreamWriter) -> StreamingQuery:
    """`writer.start()`, for a checkpoint on a local disk."""
    with _renamed_logs(spark):
        query = writer.start()
        Jvm(spark).await_sources(query, _SOURCES_MS)
    return query


@contextlib.contextmanager
def _renamed_logs(spark: SparkSession) -> Iterator[None]:
    """The session's setting, for as long as the query takes its copy; a user's own stays."""
    name, value = RENAMED_LOGS
    with _lock:
        if spark.conf.get(name, None) is not None:
            yield
            return
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.unset(name)

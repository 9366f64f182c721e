"""Starts Spark's own query so that its logs cost little.

Spark writes two files for every batch (`offsets/`, `commits/`), and a source may write a third. Its
default way to do so atomically on a local disk starts about ten processes (`chmod`, `readlink`) for
each file where Hadoop's native library is missing, as it is in PySpark from PyPI. Its other way,
to write a hidden file and rename it, is atomic on a local disk as well and starts four, and none
with the files of `local_files.py`. What it lacks is a guard against a second writer, and that is
our lease.

Which way is taken is a setting of the session, which other queries are started in, too, at any
time: it is not touched. The logs of a query that was started are told themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from braided.spark.jvm import RENAMED_LOGS, Jvm
from braided.spark.local_files import LocalFiles

__all__ = ["launch"]

_SOURCES_MS = 10_000
"""How long we wait for sources to open; if they take longer, all logs are written the usual way."""


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
    jvm, files = Jvm(spark), LocalFiles(spark)
    started = writer.start()
    query = wrap(started)
    try:
        jvm.await_sources(started, _SOURCES_MS)
        if renames and spark.conf.get(RENAMED_LOGS[0], None) is None:  # a user's own setting stays
            jvm.rename_logs(started, files.serve)
    except BaseException:  # the user's Ctrl-C: nobody would have the query to stop it
        query.stop()
        raise
    return query

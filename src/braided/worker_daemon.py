"""PySpark's daemon with what tasks need in it already: workers are forked from it.

PySpark's own imports nothing, so that each worker that it forks imports pyarrow, numpy and the rest
anew: most of a second of CPU time for each, which is what a query waits for when it starts, grows
or moves to another host. Forked from this one, a worker is ready at once, and what was imported is
in memory once for all of an executor's workers.

PySpark is careful because libraries may start threads when they are imported, and threads are not
forked. Those of the libraries that are imported here are prepared for that: OpenBLAS (numpy) and
jemalloc (pyarrow) start theirs again in a child, and Arrow's own begin with the first use. That is
so on Linux, and only there it is used by itself (`spark/interpreter.py`). On a cluster it is up to
who makes the session: `spark.python.daemon.module` is `braided.worker_daemon` (docs/cluster.md).

The tasks of all kinds but processors are imported: what only these need, workers import themselves.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from braided.kinds.aggregate import task as _aggregate_task  # noqa: F401
from braided.kinds.columnar import task as _columnar_task  # noqa: F401
from braided.kinds.operator import task as _operator_task  # noqa: F401
from braided.spark.worker_process import freeze_heap

if __name__ == "__main__":
    freeze_heap()
    manager()

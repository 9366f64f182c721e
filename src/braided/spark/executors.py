"""Spark's executors as the driver sees them, and the requests for more and for fewer.

What Spark calls the allocation client is the same for standalone, YARN and Kubernetes. On a local
master there is none, and nothing here is used.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braided.spark.jvm import java_class

__all__ = [
    "Executor",
    "SparkExecutors",
    "cores_by_host",
    "driver_hosts",
    "local_cores",
    "local_cpus",
    "runs_on_executors",
    "site_of",
]

_DYNAMIC = "spark.dynamicAllocation.enabled"


@dataclass(frozen=True)
class Executor:
    """One executor: a process on a host that runs so many tasks at a time."""

    id: str
    host: str
    cores: int


def site_of(executor: Executor) -> str:
    """The executor as a site of tasks, in the words of Spark's scheduler; a host is one, too."""
    return f"executor_{executor.host}_{executor.id}"


def cores_by_host(executors: Iterable[Executor]) -> dict[str, int]:
    """How many tasks each host runs at a time, on these executors."""
    cores: dict[str, int] = {}
    for executor in executors:
        cores[executor.host] = cores.get(executor.host, 0) + executor.cores
    return cores


def driver_hosts(spark: SparkSession) -> tuple[str, str]:
    """The address that the driver listens on, and the one by which executors know it: as Spark's
    own ports have them. On a local master, nobody else's.
    """
    if not runs_on_executors(spark):
        return "127.0.0.1", "127.0.0.1"
    conf = spark.sparkContext.getConf()
    host = str(conf.get("spark.driver.host", "127.0.0.1"))
    return str(conf.get("spark.driver.bindAddress", host)), host


def runs_on_executors(spark: SparkSession) -> bool:
    """Whether tasks run elsewhere than in the driver's JVM."""
    return local_cores(spark) is None


def local_cores(spark: SparkSession) -> int | None:
    """How many tasks run at a time in the driver's JVM; None where there are executors."""
    threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", str(spark.sparkContext.master))
    if threads is None:
        return None
    return (os.cpu_count() or 1) if threads[1] == "*" else int(threads[1] or 1)


def local_cpus(spark: SparkSession) -> int | None:
    """How many processors all tasks share; None where they are on executors."""
    if local_cores(spark) is None:
        return None
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


class SparkExecutors:
    """The executors of a SparkContext."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        assert context._jvm is not None
        jvm: Any = context._jvm
        self._conf = context.getConf()
        self._context: Any = context._jsc.sc()
        self._backend: Any = self._context.schedulerBackend()
        self._python: Any = java_class(jvm, "org.apache.spark.api.python.PythonUtils")
        self._task_cpus = int(str(self._conf.get("spark.task.cpus", "1")))
        self._known: dict[str, Executor] = {}

    @property
    def has_dynamic_allocation(self) -> bool:
        return str(self._conf.get(_DYNAMIC, "false")).lower() == "true"

    @property
    def cores_each(self) -> int:
        """Tasks that an executor runs at a time, as far as settings say."""
        cores = int(str(self._conf.get("spark.executor.cores", "1")))
        return max(1, cores // self._task_cpus)

    def observed(self) -> list[Executor]:
        """Those that are there now, in the order of their ids."""
        ids = [each for each in self._backend.getExecutorIds().mkString(",").split(",") if each]
        self._known = {id: self._known.get(id) or self._look(id) for id in ids}  # type: ignore[misc]
        found = [executor for executor in self._known.values() if executor is not None]
        return sorted(found, key=lambda executor: (len(executor.id), executor.id))

    def request(self, total: int) -> None:
        """Asks for so many executors in all; they come when the cluster has room."""
        self._context.requestTotalExecutors(total, 0, self._python.toScalaMap({}))

    def release(self, ids: Collection[str], total: int) -> None:
        """Gives executors back, of which nothing of value may be on any more, so that there are so
        many in all.

        Spark by itself takes one off what was requested for each that goes, and takes that for 0
        where nobody has requested any: who is lost afterwards would never be replaced.
        """
        self._context.killExecutors(self._python.toSeq(list(ids)))
        self.request(total)

    def _look(self, id: str) -> Executor | None:
        """What is known of one; None as long as Spark has not written it down."""
        with contextlib.suppress(Py4JError, Py4JJavaError, PySparkException):
            found = self._context.statusStore().executorSummary(id)
            host = str(found.hostPort()).rsplit(":", 1)[0]
            return Executor(id, host, max(1, int(found.totalCores()) // self._task_cpus))
        return None

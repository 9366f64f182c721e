"""Which Python runs our tasks: that of the driver, or one that is seen to be fit for them.

PySpark hands `sc.pythonExec` to the JVM with every function it wraps: PYSPARK_PYTHON as it was when
the session was made, else whatever is `python3` on the PATH. The setting `spark.pyspark.python` is
for spark-submit, which makes that variable of it; a driver that was started as a plain program has
it read by nobody, so it is read here. On a local master, whose workers run beside the driver,
`python3` is the wrong one whenever the driver's virtual environment is not activated, so where
nobody has chosen, the driver's own is taken. On a cluster a path of the driver says nothing about
the workers, and there one small job looks at what they have.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import site
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braided.errors import WorkerPythonError
from braided.release import VERSION

__all__ = ["check_workers", "preload_workers", "use_driver_python"]

_UNSET = "python3"
"""What PySpark runs when it is told nothing."""
_SETTING, _VARIABLE = "spark.pyspark.python", "PYSPARK_PYTHON"
_DRIVER_SETTING, _DRIVER_VARIABLE = "spark.pyspark.driver.python", "PYSPARK_DRIVER_PYTHON"
_DAEMON_SETTING = "spark.python.daemon.module"
_NEEDED = ("braided", "lmdb", "msgspec", "numpy", "pyarrow")
"""What a task imports."""
_TASKS_MAX = 32

_lock = threading.Lock()
_fit: WeakKeyDictionary[SparkContext, str] = WeakKeyDictionary()
"""The interpreter with which the workers of a context were found to be fit."""


def use_driver_python(spark: SparkSession) -> None:
    """Functions wrapped from now on run in the Python that the session's settings name.

    If they name none and tasks run on this machine, that is the driver's. Functions that were
    wrapped before keep theirs; Spark has a pool of workers for each.
    """
    context = spark.sparkContext
    if context.pythonExec != _UNSET or os.environ.get(_VARIABLE):
        return
    settings = context.getConf()
    if python := settings.get(_SETTING):
        context.pythonExec = python
        return
    chosen = os.environ.get(_DRIVER_VARIABLE) or settings.get(_DRIVER_SETTING)
    if _is_local(context) and not chosen and sys.executable:
        context.pythonExec = sys.executable


def preload_workers(spark: SparkSession, daemon: str) -> None:
    """Workers of a local master are forked by a daemon that has what tasks need, a module; if they
    run the driver's Python, and nobody has chosen another one.
    """
    context = spark.sparkContext
    is_ours = _is_local(context) and context.pythonExec == sys.executable
    if sys.platform == "linux" and is_ours and _is_installed():
        # What was set is read whenever a task looks for a worker.
        jvm_conf = context._jsc.sc().conf()
        jvm_conf.setIfMissing(_DAEMON_SETTING, daemon)


@functools.cache
def _is_installed() -> bool:
    """Whether a new interpreter finds Braided by itself: Spark adds what it was given as files
    (`--py-files`) to workers only, after the daemon has forked them.
    """
    home = str(Path(__file__).resolve().parents[2])
    if home in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return True
    try:
        found = importlib.metadata.distribution("braided")
    except importlib.metadata.PackageNotFoundError:
        return False
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    where = Path(str(found.locate_file(""))).resolve()
    return where in [Path(each).resolve() for each in sites]


def check_workers(spark: SparkSession) -> None:
    """Sees, once per SparkContext, that the workers can run tasks of ours."""
    use_driver_python(spark)
    context = spark.sparkContext
    if _is_local(context) and context.pythonExec == sys.executable:
        return
    with _lock:
        if _fit.get(context) == context.pythonExec:
            return
        wrong = _wrong(context)
        if wrong is not None:
            raise WorkerPythonError(f"{wrong}. {_advice(context)}")
        _fit[context] = context.pythonExec


def _is_local(context: SparkContext) -> bool:
    """Whether tasks run in the driver's JVM; `local-cluster` has executors of its own."""
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def _wrong(context: SparkContext) -> str | None:
    """What is wrong with the first worker with which something is."""
    workers = f"Spark's workers on {context.master} run {context.pythonExec!r}"
    tasks = min(context.defaultParallelism, _TASKS_MAX)
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(_look(_NEEDED)).collect()
    except (PySparkException, Py4JJavaError) as error:
        reason = _why_not_run(str(error))
        if reason is None:
            raise  # not the interpreter's fault: a job that was cancelled, a cluster that is gone
        return f"{workers}, {reason}"
    for where, version, ours, missing in found:
        there = f"{workers}, which on {where} is Python {version}"
        if missing is not None:
            return f"{there} and can't import what tasks need: {missing}"
        if ours != VERSION:
            return f"{there} with braided {ours}; the driver has braided {VERSION}"
    return None


def _look(needed: tuple[str, ...]) -> Callable[[Iterable[int]], Iterator[Any]]:
    # Functions inside functions travel as code: the worker may have no module to find it in.
    def look(_: Iterable[int]) -> Iterator[Any]:
        import importlib
        import platform
        import sys

        version, missing = None, None
        try:
            for name in needed:
                module = importlib.import_module(name)
                if name == "braided":
                    version = module.__version__
        except Exception as error:  # a library may fail to load in any way
            missing = f"{type(error).__name__}: {error}"
        where = f"{platform.node()} ({sys.executable})"
        yield where, platform.python_version(), version, missing

    return look


def _why_not_run(error: str) -> str | None:
    """The sentence in a failed job that says why no function ran; None if another thing failed."""
    versions = re.search(r"different version: (\S+) than that in driver: (\S+?),", error)
    if versions is not None:
        return f"which is Python {versions[1]} there; the driver has Python {versions[2]}"
    missing = re.search(r"Cannot run program .*", error)
    return None if missing is None else f"which does not run there: {missing[0]}"


def _advice(context: SparkContext) -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    if _is_local(context):
        return (
            f"Before the session is made, set PYSPARK_PYTHON to {sys.executable}, or leave it and "
            f"{_SETTING} unset: then it is the driver's Python that runs"
        )
    return (
        f"Install braided {VERSION} into a Python {version} on every worker, and set "
        f"PYSPARK_PYTHON, or the session's {_SETTING}, to the path of that Python before the "
        "session is made; docs/cluster.md has the ways to do it"
    )

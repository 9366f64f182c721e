"""Sees that executors can do what tasks need, before they get any: the same Python, Braided and
PySpark as the driver, and a checkpoint in which they find what the driver wrote.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyspark
from pyspark.sql import SparkSession

from braided.errors import CheckpointReadError, WorkerPythonError
from braided.release import VERSION
from braided.spark.executors import Executor, site_of
from braided.spark.placed_frames import PlacedFrames
from braided.spark.worker_process import EXECUTOR_PROPERTY
from braided.store.durable.store import Store

__all__ = ["Found", "find", "leave_word", "refuse_unfit"]

_WORD = "word"
"""What the driver leaves in a checkpoint, for executors to find."""


_NEEDED = ("braided",)


class Found(NamedTuple):
    """What a task found where it ran."""

    executor: str
    python: str
    versions: dict[str, str]
    trouble: str
    """Why the checkpoint could not be read there, or Braided not be imported; "" if nothing."""
    node: str
    """What the host calls itself."""

    def problem(self) -> str:
        """What is wrong with it; "" if nothing."""
        ours = {"python": _minor(sys.version), "braided": VERSION, "pyspark": pyspark.__version__}
        for name, version in ours.items():
            theirs = self.versions.get(name, "none")
            if theirs != version:
                return f"has {name} {theirs} ({self.python}); the driver has {version}"
        return self.trouble


def leave_word(store: Store, word: str) -> None:
    """Writes what executors will look for."""
    store.put(_WORD, word.encode())


def find(
    spark: SparkSession,
    placed: PlacedFrames | None,
    store: Store,
    word: str,
    sites: Sequence[str],
    modules: Sequence[str] = (),
) -> list[Found]:
    """What tasks at these sites find there; they import `modules` too, which takes its time.
    Where tasks can't be placed, there are as many as there are sites, wherever Spark runs them.
    """
    needed = (*_NEEDED, *modules)
    looking = _look(pickle.dumps(store), word, EXECUTOR_PROPERTY, _WORD, needed)
    context, count = spark.sparkContext, len(sites)
    if placed is None:
        tasks = context.parallelize(range(count), count)
    else:
        tasks = placed.tasks(context, sites)
    return [Found(*each) for each in tasks.mapPartitions(looking).collect()]


def refuse_unfit(
    spark: SparkSession,
    placed: PlacedFrames | None,
    store: Store,
    word: str,
    there: Sequence[Executor],
) -> None:
    """Sees to it that all executors can run tasks; an error that names hosts if not. Where tasks
    can't be placed, a task for each core comes to most executors, and to all hosts that are free.
    """
    if not there:
        return  # who comes later is looked at before it gets a channel
    hosts = {executor.id: executor.host for executor in there}
    sites = [site_of(executor) for executor in there]
    if placed is None:
        sites = [site_of(executor) for executor in there for _ in range(executor.cores)]
    found = find(spark, placed, store, word, sites)
    wrong: dict[str, Found] = {}
    for each in found:
        if each.problem():
            wrong.setdefault(hosts.get(each.executor, each.node), each)
    if not wrong:
        return
    sentences = "; ".join(f"host {host} {each.problem()}" for host, each in sorted(wrong.items()))
    if any(each.trouble and each.problem() == each.trouble for each in wrong.values()):
        raise CheckpointReadError(
            f"the checkpoint {store.location.text} can't be used by every host: {sentences}. It "
            "has to be where all of them see it: an object store, HDFS, or a mount that they share"
        )
    raise WorkerPythonError(
        f"{sentences}. Install the same versions on every host (docs/cluster.md shows how), or "
        "set spark.pyspark.python to where they are"
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _look(
    packed: bytes, word: str, executor_property: str, name: str, needed: tuple[str, ...]
) -> Callable[[Iterable[int]], Iterator[tuple[str, str, dict[str, str], str, str]]]:
    # Functions inside functions travel as code: the worker may have no module to find it in.
    def look(_: Iterable[int]) -> Iterator[tuple[str, str, dict[str, str], str, str]]:
        import importlib
        import pickle
        import platform
        import sys

        import pyspark

        context = pyspark.TaskContext.get()
        executor = (context and context.getLocalProperty(executor_property)) or ""
        python = ".".join(platform.python_version().split(".")[:2])
        versions, trouble = {"python": python, "pyspark": pyspark.__version__}, ""
        try:
            for module in needed:
                found = importlib.import_module(module)
                versions.setdefault(module, getattr(found, "__version__", ""))
        except Exception as error:  # a library may fail to load in any way
            trouble = f"can't import braided: {type(error).__name__}: {error}"
        if not trouble:
            try:
                read = pickle.loads(packed).get(name)
                if read.to_pybytes() != word.encode():
                    trouble = "finds something else in it than the driver wrote"
            except Exception as error:
                trouble = f"does not find in it what the driver wrote ({error})"
        node = platform.node()
        yield executor, f"{sys.executable} on {node}", versions, trouble, node

    return look

"""Sessions whose executors are hosts of a cluster on this machine.

Tests that are not about clusters run on one, too, with `BRAIDED_TEST_MASTER=cluster`, as
`make cluster-tests` does: `cluster_if_asked` starts it, and drivers in processes of their own find
it in the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from braided.bench.standalone_cluster import StandaloneCluster, standalone_cluster

__all__ = ["HOSTS", "cluster_if_asked", "cluster_session", "settings_of_cluster"]

HOSTS = 4
_TESTS = Path(__file__).parents[1]
_SETTINGS = "BRAIDED_TEST_CLUSTER"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def cluster_session(cluster: StandaloneCluster, home: Path) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.appName("braided tests")
        .config(map={**cluster.spark_settings, **_environment()})
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", _JAVA)
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "2000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def cluster_if_asked(home: Path) -> Iterator[None]:
    """A cluster on which drivers run from now on, if that is what the run is for."""
    if os.environ.get("BRAIDED_TEST_MASTER") != "cluster":
        yield
        return
    with standalone_cluster(home, workers=2) as cluster:
        os.environ[_SETTINGS] = json.dumps(cluster.spark_settings)
        try:
            yield
        finally:
            del os.environ[_SETTINGS]


def settings_of_cluster() -> dict[str, str]:
    """What a driver needs to run on it; nothing if there is none."""
    text = os.environ.get(_SETTINGS)
    return {**json.loads(text), **_environment()} if text else {}


def _environment() -> dict[str, str]:
    """What executors get of this process: where to import the library and the operators of tests
    from, and where to fail.
    """
    ways = [str(_TESTS.parent / "src"), str(_TESTS), os.environ.get("PYTHONPATH", "")]
    passed = {"PYTHONPATH": os.pathsep.join(filter(None, ways))}
    for name, value in os.environ.items():
        if name.startswith("BRAIDED_FAILPOINT") or name == "DEATHS":
            passed[name] = value
    return {f"spark.executorEnv.{name}": value for name, value in passed.items()}

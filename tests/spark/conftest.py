"""One local Spark for all tests of this directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braided.bench.kafka_broker import connector_jars
from braided.bench.s3_server import S3Server, s3a_jars
from braided.spark.interpreter import use_driver_python
from support.cluster_session import cluster_if_asked, settings_of_cluster
from support.s3 import S3Lab, reach_s3, s3_server_for_tests, store_is_s3
from support.stream_harness import Lab

_HERE = Path(__file__).parent
# Short lives: compiling the hottest code well costs more than it gives. And many plans: in the room
# that Java then leaves for compiled code it would throw out what it needs again.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
# Queries of a few rows spend their time on being planned and written down.
_FOR_FEW_ROWS = {
    # How long a query without input waits before it lists its files again. By itself it lists them
    # a hundred times a second, for as long as a test looks at something else.
    "spark.sql.streaming.pollingDelay": "50ms",
    # What a user interface would show of earlier queries.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with cluster_if_asked(tmp_path_factory.mktemp("cluster")):
        yield from _session(tmp_path_factory)


def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    tests = _HERE.parent
    # Workers import the library and the operators of the tests from here.
    ways = [str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, ways))
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("braided tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", _JAVA)
        .config(map=_FOR_FEW_ROWS)
        .config("spark.local.dir", str(home))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        # What reaches S3 and Kafka, where it is installed; without a server it only lies there.
        .config("spark.jars", ",".join(map(str, [*s3a_jars(), *connector_jars()])))
        .config("spark.sql.session.timeZone", "UTC")
        .config(map={**settings_of_cluster()})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    use_driver_python(session)  # native queries that ours are held against as well
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that the session reaches."""
    with s3_server_for_tests(tmp_path_factory) as server:
        reach_s3(spark, server)
        yield server


@pytest.fixture(scope="session")
def new_lab(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[[Path], Lab]:
    """Makes a lab; in an object store, if that is what the run is for (`make s3-tests`)."""
    if not store_is_s3():
        return partial(Lab, spark)
    return partial(S3Lab, spark, server=request.getfixturevalue("s3_server"))


@pytest.fixture
def lab(new_lab: Callable[[Path], Lab], tmp_path: Path) -> Iterator[Lab]:
    """Queries on fresh directories; those still running at the end are stopped."""
    with new_lab(tmp_path) as made:
        yield made


@pytest.fixture
def s3_lab(spark: SparkSession, tmp_path: Path, s3_server: S3Server) -> Iterator[S3Lab]:
    """The same with checkpoint and output in an object store."""
    with S3Lab(spark, tmp_path, s3_server) as made:
        yield made

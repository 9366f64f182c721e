"""One local Spark for all tests of this directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braided.spark.interpreter import use_driver_python
from support.stream_harness import Lab

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
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
        # Short lives: compiling the hottest code well costs more than it gives.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", str(home))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    use_driver_python(session)  # native queries that ours are held against as well
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    """Queries on fresh directories; those still running at the end are stopped."""
    with Lab(spark, tmp_path) as made:
        yield made

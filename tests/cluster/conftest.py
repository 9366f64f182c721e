"""One cluster of four hosts, and one driver on it, for all tests of this directory.

A process has one SparkContext, so these tests have a process to themselves: `make test` runs them
after the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braided.bench.standalone_cluster import StandaloneCluster, standalone_cluster
from braided.spark.executors import SparkExecutors
from support.cluster_session import HOSTS, cluster_session
from support.stream_harness import Lab, wait_until


@pytest.fixture(scope="session")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[StandaloneCluster, SparkSession]]:
    home = tmp_path_factory.mktemp("cluster")
    with (
        standalone_cluster(home, workers=HOSTS) as cluster,
        cluster_session(cluster, home) as spark,
    ):
        yield cluster, spark


@pytest.fixture
def cluster(running: tuple[StandaloneCluster, SparkSession]) -> StandaloneCluster:
    return running[0]


@pytest.fixture
def spark(running: tuple[StandaloneCluster, SparkSession]) -> SparkSession:
    """A session with an executor on every host, whatever the test before did to them."""
    cluster, spark = running
    there = {worker.host for worker in cluster.workers}
    for number in range(HOSTS):
        host = f"127.0.0.{2 + number}"
        if host not in there:
            cluster.start_worker(host)
    executors = SparkExecutors(spark)
    executors.request(HOSTS)
    wait_until(
        lambda: len({executor.host for executor in executors.observed()}) == HOSTS,
        "an executor on every host",
        timeout_s=300,
    )
    return spark


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    with Lab(spark, tmp_path) as made:
        yield made

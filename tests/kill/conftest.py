"""What all drivers that are killed share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braided.bench.s3_server import S3Server
from support.cluster_session import cluster_if_asked
from support.kill.archive import class_archive
from support.s3 import s3_server_for_tests, store_is_s3


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cluster_if_asked(tmp_path_factory.mktemp("cluster")):
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server_for_tests(tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def s3_if_asked(request: pytest.FixtureRequest) -> S3Server | None:
    """A server for output and checkpoints, if that is what the run is for (`make s3-tests`)."""
    return request.getfixturevalue("s3_server") if store_is_s3() else None


@pytest.fixture(scope="session")
def java(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Options that let the JVMs of all drivers share the classes of Spark."""
    kept = pytestconfig.cache.mkdir("jvm")
    return f"-XX:SharedArchiveFile={class_archive(kept, tmp_path_factory.mktemp('archive'))}"

"""What all drivers that are killed share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster_session import cluster_if_asked
from support.kill.archive import class_archive


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cluster_if_asked(tmp_path_factory.mktemp("cluster")):
        yield


@pytest.fixture(scope="session")
def java(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Options that let the JVMs of all drivers share the classes of Spark."""
    kept = pytestconfig.cache.mkdir("jvm")
    return f"-XX:SharedArchiveFile={class_archive(kept, tmp_path_factory.mktemp('archive'))}"

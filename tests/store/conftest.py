"""Stores of all kinds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from braided.bench.s3_server import S3Server
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store
from support.s3 import s3_server_for_tests


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server_for_tests(tmp_path_factory) as server:
        yield server


@pytest.fixture(params=["local", "memory", "s3", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "local":
        return open_store(tmp_path / "store")
    if request.param == "memory":
        return open_store(Location.of(f"memory://{uuid.uuid4().hex}/store"))
    if request.param == "hdfs":
        return open_store(f"{request.getfixturevalue('hdfs')}/{uuid.uuid4().hex}")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(f"{server.url}/{uuid.uuid4().hex}", server.settings)

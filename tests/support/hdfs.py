"""A NameNode and a DataNode for tests, each a process of its own, on loopback."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from braided.bench.free_port import free_port
from braided.bench.s3_server import cache_directory

__all__ = ["hdfs_for_tests"]

_START_S = 300.0  # two JVMs on a machine that is busy with others
_NODES = "org.apache.hadoop.hdfs.server"


@contextmanager
def hdfs_for_tests(paths: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty file system, where somebody has asked for these tests."""
    if not os.environ.get("BRAIDED_TEST_HDFS"):
        pytest.skip("tests on HDFS are slow: make hdfs runs them")
    [servers] = (cache_directory() / "hdfs").glob("hadoop-client-minicluster-*.jar")
    home = paths.mktemp("hdfs")
    port = free_port()
    _settings(home, port)
    jars = Path(pyspark.__file__).parent / "jars"
    java = ["java", "-Xmx256m", "-cp", f"{home}:{servers}:{jars}/*"]
    with open(home / "log", "wb") as log:
        name_node = f"{_NODES}.namenode.NameNode"
        subprocess.run(
            [*java, name_node, "-format", "-nonInteractive"], stdout=log, stderr=log, check=True
        )
        nodes = [
            subprocess.Popen([*java, node], stdout=log, stderr=log)
            for node in (name_node, f"{_NODES}.datanode.DataNode")
        ]
    try:
        url = f"hdfs://127.0.0.1:{port}"
        _await_writes(url, home / "log")
        yield url
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()


def _settings(home: Path, port: int) -> None:
    values = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{port}",
        "dfs.namenode.rpc-address": f"127.0.0.1:{port}",
        "dfs.namenode.http-address": "127.0.0.1:0",
        "dfs.namenode.name.dir": f"file://{home}/name",
        "dfs.datanode.data.dir": f"file://{home}/data",
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    for file in ("core-site.xml", "hdfs-site.xml"):
        (home / file).write_text(f"<configuration>{properties}</configuration>")


def _await_writes(url: str, log: Path) -> None:
    """Waits until a file can be written, which takes both nodes."""
    from hdfs_native import Client, WriteOptions

    deadline = time.monotonic() + _START_S
    while True:
        try:
            client = Client(url)
            with client.create("/.begin", WriteOptions(overwrite=True)) as file:
                file.write(b"1")
            client.delete("/.begin")
            return
        except (OSError, RuntimeError) as error:
            assert time.monotonic() < deadline, f"{error}\n{log.read_text()[-2000:]}"
            time.sleep(0.5)

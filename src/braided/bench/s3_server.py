"""A real S3 server on this machine, for benchmarks and tests: versitygw on a directory.

`scripts/s3.sh` installs it, and the jars with which Spark reaches it, below `cache_directory()`.
The server listens on loopback only, writes down every request, and ends with whoever started it,
however that ends (`process_tree.py`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark

from braided.bench.free_port import free_port
from braided.bench.process_tree import keep

__all__ = ["S3Request", "S3Server", "cache_directory", "missing", "s3a_jars", "serve"]

_KEY, _SECRET = "braided", "braided-secret"
_REGION = "us-east-1"
_BUCKET = "bucket"
_START_S = 120.0
OURS = "object_store"
"""How requests of ours say who they are from; Spark's say something else."""


def cache_directory() -> Path:
    """Where what was built or downloaded is kept."""
    return Path(os.environ.get("BRAIDED_CACHE") or Path.home() / ".cache" / "braided")


def _binary() -> str | None:
    return shutil.which("versitygw", path=f"{cache_directory() / 'bin'}:{os.environ['PATH']}")


def s3a_jars() -> list[Path]:
    """What Spark needs for `s3a://`; none if it is not installed for the Hadoop of this Spark."""
    directory = cache_directory() / f"s3a-{_hadoop_version()}"
    return sorted(directory.glob("*.jar")) if (directory / ".done").exists() else []


def _hadoop_version() -> str | None:
    """That of the Hadoop that Spark brings."""
    jars = (Path(pyspark.__path__[0]) / "jars").glob("hadoop-client-api-*.jar")
    return next((jar.stem.removeprefix("hadoop-client-api-") for jar in jars), None)


def missing() -> str | None:
    """What there is to be installed first; None if all is there."""
    if _binary() is None:
        return "the S3 server versitygw is not installed: scripts/s3.sh does it"
    if not s3a_jars():
        return (
            f"the jars for s3a:// with Hadoop {_hadoop_version()} are not installed: scripts/s3.sh "
            "installs those for the versions of Spark that Braided supports"
        )
    return None


@dataclass(frozen=True)
class S3Request:
    """A line of the server's log."""

    operation: str
    key: str
    status: int
    bytes: int
    agent: str

    @property
    def ours(self) -> bool:
        return self.agent.startswith(OURS)


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    endpoint: str
    home: Path

    @property
    def url(self) -> str:
        """The bucket, as Spark calls it."""
        return f"s3a://{_BUCKET}"

    @property
    def bucket(self) -> Path:
        """Where the objects are files, on this machine."""
        return self.home / "objects" / _BUCKET

    @property
    def settings(self) -> dict[str, str]:
        """For a client of ours."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": _KEY,
            "secret_access_key": _SECRET,
            "region": _REGION,
        }

    @property
    def spark_settings(self) -> dict[str, str]:
        """For a session of Spark's, which ours are taken from."""
        return {
            "spark.jars": ",".join(map(str, s3a_jars())),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": _REGION,
            "spark.hadoop.fs.s3a.access.key": _KEY,
            "spark.hadoop.fs.s3a.secret.key": _SECRET,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def requests(self, since: int = 0) -> list[S3Request]:
        """What was asked for, from the so-and-so-many-th request on."""
        lines = (self.home / "access.log").read_text().splitlines()
        requests = [_parse(line) for line in lines[1 + since :]]  # the first says when it starts
        return [self._sized(request) for request in requests]

    def _sized(self, request: S3Request) -> S3Request:
        """With the bytes of what was read, which the log leaves out, if it is still there."""
        path = self.bucket / request.key
        if request.operation != "GetObject" or request.status >= 300 or not path.is_file():
            return request
        return replace(request, bytes=path.stat().st_size)


@contextmanager
def serve(home: Path) -> Iterator[S3Server]:
    """A server with one empty bucket, until the block ends."""
    binary = _binary()
    if binary is None:
        raise RuntimeError(missing())
    objects = home / "objects"
    (objects / _BUCKET).mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    command = [
        *[binary, "-a", _KEY, "-s", _SECRET, "--port", address, "--quiet"],
        *["--access-log", str(home / "access.log"), "posix", str(objects)],
    ]
    keeper = keep(command, os.environ, home / "server.log")
    assert keeper.stdin is not None
    try:
        _await(keeper, address, home)
        yield S3Server(f"http://{address}", home)
    finally:
        keeper.stdin.close()
        keeper.wait()


def _await(keeper: subprocess.Popen[bytes], address: str, home: Path) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if keeper.poll() is not None or time.monotonic() > deadline:
                said = (home / "server.log").read_text()[-500:]
                raise RuntimeError(f"the S3 server does not start: {said}") from None
            time.sleep(0.02)


def _parse(line: str) -> S3Request:
    """The log has the fields of Amazon's, which are apart by spaces, but for a time in brackets."""
    fields = line.partition("] ")[2].split(" ")
    operation, key, status = fields[3], fields[4], fields[6]
    sent, size = fields[8], fields[9]
    numbers = [int(text) for text in (sent, size) if text.isdigit()]
    return S3Request(
        operation=operation.removeprefix("s3_"),
        key=key,
        status=int(status),
        bytes=max(numbers, default=0),
        agent=" ".join(fields[12:]).lstrip("- "),
    )

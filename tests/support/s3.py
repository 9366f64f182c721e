"""The S3 server of the tests: one for all of them in a process, started when one needs it.

Tests that are not about object stores keep their checkpoints and output in one, too, with
`BRAIDED_TEST_STORE=s3`, as `make s3-tests` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braided.bench.s3_server import S3Server, missing, serve
from support.stream_harness import Lab

__all__ = ["S3Lab", "reach_s3", "required", "s3_server_for_tests", "store_is_s3"]


def required() -> bool:
    """Whether a run without the server proves too little, as in CI."""
    return os.environ.get("BRAIDED_TEST_S3") == "required"


def store_is_s3() -> bool:
    return os.environ.get("BRAIDED_TEST_STORE") == "s3"


@contextmanager
def s3_server_for_tests(paths: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server; where it is not installed its tests are skipped, but for those of CI."""
    lacking = missing()
    if lacking is not None:
        if required() or store_is_s3():
            raise RuntimeError(lacking)
        pytest.skip(lacking)
    with serve(paths.mktemp("s3")) as server:
        yield server


def reach_s3(spark: SparkSession, server: S3Server) -> None:
    """Lets a session that has the jars reach the server."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in server.spark_settings.items():
        if name.startswith("spark.hadoop."):
            settings.set(name.removeprefix("spark.hadoop."), value)


class S3Lab(Lab):
    """Queries whose checkpoint and output are objects, read as the files that the server keeps."""

    def __init__(self, spark: SparkSession, home: Path, server: S3Server) -> None:
        super().__init__(spark, home)
        self.root = server.bucket
        self.checkpoint = server.bucket / home.name / "checkpoint"
        self.out = server.bucket / home.name / "out"
        self._server = server

    def address(self, path: Path) -> str:
        return f"{self._server.url}/{path.relative_to(self.root)}"

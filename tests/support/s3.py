"""The S3 server of the tests: one for all of them in a process, started when one needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from braided.bench.s3_server import S3Server, missing, serve

__all__ = ["s3_server_for_tests"]


@contextmanager
def s3_server_for_tests(paths: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server; where it is not installed its tests are skipped, but for those of CI."""
    lacking = missing()
    if lacking is not None:
        if os.environ.get("BRAIDED_TEST_S3") == "required":
            raise RuntimeError(lacking)
        pytest.skip(lacking)
    with serve(paths.mktemp("s3")) as server:
        yield server

"""The S3 server of tests and benchmarks leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braided.bench.s3_server import missing

SERVE = """
import sys
from pathlib import Path
from braided.bench.s3_server import serve
with serve(Path(sys.argv[1])) as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""
PATIENCE_S = 60.0


def answers(endpoint: str) -> bool:
    host, _, port = endpoint.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_server_ends_with_whoever_started_it_however_that_ends(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path / "s3")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdin is not None and starter.stdout is not None
    try:
        endpoint = starter.stdout.readline().strip()
        assert answers(endpoint)
    finally:
        starter.kill()
        starter.wait()
        starter.stdin.close()
        starter.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while answers(endpoint):
        assert time.monotonic() < deadline, f"the server at {endpoint} runs on"
        time.sleep(0.05)

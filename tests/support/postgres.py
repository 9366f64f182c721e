"""A PostgreSQL of the tests' own, on loopback and in a directory that goes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braided.bench.free_port import free_port

__all__ = ["postgres_for_tests"]

_USER = "postgres"
_WAITING = ("-w", "-t", "300")


@contextmanager
def postgres_for_tests() -> Iterator[str]:
    """The address of a server's database; where none is installed its tests are skipped, but for
    those of CI.
    """
    programs = _programs()
    if programs is None:
        lacking = "PostgreSQL is not installed (scripts/postgres.sh)"
        if os.environ.get("BRAIDED_TEST_POSTGRES") == "required":
            raise RuntimeError(lacking)
        pytest.skip(lacking)
    # Not below the directories of pytest, which only their owner may enter.
    home = Path(tempfile.mkdtemp(prefix="braided-postgres-"))
    # PostgreSQL refuses to run as root.
    user = _USER if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(home, user)

    def run(program: str, *arguments: str) -> None:
        made = subprocess.run(
            [programs / program, *arguments],
            user=user,
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        log = home / "log"
        said = log.read_text() if log.exists() else ""
        assert made.returncode == 0, f"{program}: {made.stdout}{made.stderr}{said}"

    data = str(home / "data")
    port = free_port()
    settings = f"-h 127.0.0.1 -p {port} -k '' -c fsync=off"
    try:
        run("initdb", "-D", data, "-U", _USER, "-A", "trust", "--no-sync", "-E", "UTF8")
        run("pg_ctl", "-D", data, *_WAITING, "-l", str(home / "log"), "-o", settings, "start")
        try:
            yield f"postgresql://{_USER}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, *_WAITING, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return None if there is None else Path(there).parent



"""Scripts of the repository, as far as they can be run without what they install."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def versions(home: Path, listed: str, *asked: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests on other versions, where nothing can be made and pip knows of so much."""
    program(home / "make", 'echo "made $*"; exit 1')
    python = program(home / "python", listed)
    return subprocess.run(
        [_ROOT / "scripts" / "test_versions.sh", *asked],
        env={**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_version_that_fails_hides_no_other(tmp_path: Path) -> None:
    done = versions(tmp_path, "echo Available versions: 0.1.2, 0.1.1", "0.1.1", "0.1.2")
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("made")] == [
        f"made --no-print-directory spark-venv SPARK={version}" for version in ("0.1.1", "0.1.2")
    ]


def test_a_version_that_can_not_be_fetched_is_left_out(tmp_path: Path) -> None:
    for listed in ("exit 1", "echo Available versions: 0.1.11, 0.1"):
        done = versions(tmp_path, listed, "0.1.1")
        assert done.returncode == 0
        assert "No index of Python packages" in done.stdout and "made" not in done.stdout

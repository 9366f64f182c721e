"""Commands as a new user runs them: nothing in the environment, `make setup` done, no more.

Tests that set variables do not see what happens without them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
INCUBATOR = "WARNING: Using incubator modules: jdk.incubator.vector\n"
"""What Java prints before any program can ask it not to, because of how Spark starts it."""


def repository(directory: Path) -> Path:
    """The repository with this interpreter's environment as its .venv, and room for files."""
    made = directory / "repository"
    made.mkdir()
    for path in ROOT.iterdir():
        if path.name != ".venv" and not path.name.startswith(".git"):
            (made / path.name).symlink_to(path)
    (made / ".venv").symlink_to(sys.prefix)
    return made


def start(command: str, cwd: Path, *before: Path, **more: str) -> subprocess.Popen[str]:
    """A shell runs a command; `before` comes first on its PATH."""
    return subprocess.Popen(
        ["bash", "-c", command],
        cwd=cwd,
        env=_environment(*before) | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 900) -> tuple[str, str]:
    """What it prints on standard output and standard error; it ends well."""
    try:
        printed, noise = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == 0, f"{process.args}\n{printed}\n{noise}"
    return printed, noise


def but_for_waiting(noise: str) -> str:
    """What was printed on standard error, but for what a stop says that has to wait, as it has to
    on a busy machine.
    """
    return re.sub(r"stop: waiting for batch \d+, at most \d+ s\n", "", noise)


def _environment(*before: Path) -> dict[str, str]:
    # An activated environment would hide that workers run whatever `python3` is on the PATH.
    ways = [
        way for way in os.environ["PATH"].split(os.pathsep) if Path(way).parent != Path(sys.prefix)
    ]
    path = os.pathsep.join([*map(str, before), *ways])
    found = {"PATH": path, "HOME": os.environ["HOME"]}
    if shutil.which("java", path=path) is None:
        found["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return found | ({} if _is_installed() else {"PYTHONPATH": str(ROOT / "src")})


@cache
def _is_installed() -> bool:
    """Whether this interpreter imports these sources by itself, as after `make setup`."""
    code = "import braided; print(braided.__file__)"
    asked = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    return Path(asked.stdout.strip()).is_relative_to(ROOT)

"""What the tests of bad input share: an operator, failures, memory, disks that are full."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import braided
from braided.errors import BraidedError
from support.stream_harness import Lab

__all__ = ["MemoryProbe", "Superstitious", "Tally", "failure", "fill", "read_only", "small_disk"]


class Tally(braided.Operator):
    """Counts and sums the rows of a key, and gives out both after each row."""

    count: int = 0
    total: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.total += row.v
        yield row.k, self.count, self.total


class Superstitious(Tally):
    """The same, but one value is refused."""

    def onRow(self, row: Any) -> Iterator[Any]:
        if row.v == 13:
            raise ValueError("unlucky")
        yield from super().onRow(row)


def failure(lab: Lab, stream: braided.Stream, *args: Any, **kwargs: Any) -> BraidedError:
    """The typed error with which a query on what is there must fail."""
    query = lab.start(stream, *args, trigger={"availableNow": True}, **kwargs)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    error = query.exception()
    assert error is not None
    found = error.__cause__
    assert isinstance(found, BraidedError), str(error)
    assert raised.value.__cause__ is found
    # Whoever sees Spark's error only reads the same words.
    assert str(found).split("\n")[0] in str(error)
    return found


# -- memory --------------------------------------------------------------------------------------


class MemoryProbe:
    """Part of an operator class: how much memory a worker takes from the moment it gets the class.

    A task gets the operator before its first rows, so all that the rows cost is seen.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew
        self._before_kb = _status_kb("VmRSS")

    def __reduce__(self) -> Any:
        return MemoryProbe, ()  # each process has its own

    def peak_mb(self) -> int:
        return (_status_kb("VmHWM") - self._before_kb) >> 10


def _status_kb(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


# -- disks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A file system of its own; the test is skipped where that is not permitted."""
    directory.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory))
    try:
        yield directory
    finally:
        # Lazily: worker processes may have files open that nobody needs any more.
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """A file that takes all the space there is; delete it to get the space back."""
    filler = directory / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """A directory that can't be written, by root neither."""
    if os.geteuid() != 0:
        mode = directory.stat().st_mode
        directory.chmod(0o555)
        try:
            yield
        finally:
            directory.chmod(mode)
        return
    _mount("--bind", str(directory), str(directory))
    try:
        _mount("-o", "remount,bind,ro", str(directory))
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")

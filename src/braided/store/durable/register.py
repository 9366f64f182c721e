"""Create-if-absent: the one atomic step that a checkpoint's commits rest on.

`pyarrow.fs` has no such call, so it is a port. A register makes a whole file appear under a name
or, when the name is taken, leaves it alone and says so; no reader ever sees half a file. On a local
path `os.link` does it: unlike `os.rename` it never replaces, and unlike `O_EXCL` it publishes the
content and the name in one step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import Protocol

from braided import failpoints
from braided.errors import CheckpointWriteError, UnsupportedError

__all__ = [
    "TEMPORARY",
    "LocalRegister",
    "MissingRegister",
    "Register",
    "make_directories",
    "sync_directory",
    "write_error",
]

TEMPORARY = ".tmp"

_ADVICE = {
    errno.ENOSPC: "free some space and start the query again",
    errno.EDQUOT: "free some space or raise the quota, and start the query again",
    errno.EROFS: "remount the file system for writing, or choose another checkpointLocation",
    errno.EACCES: "give the user that runs the query write access to it",
    errno.EPERM: "give the user that runs the query write access to it; hard links are needed too",
    errno.ENOTDIR: "a file stands where a directory should be; choose another checkpointLocation",
    errno.EEXIST: "a file stands where a directory should be; choose another checkpointLocation",
    errno.ENAMETOOLONG: "choose a shorter checkpointLocation or operator name",
}


class Register(Protocol):
    """Where a name, once created, keeps its content for ever."""

    def create(self, name: str, data: bytes) -> bool:
        """Makes the file durable under `name`; False if the name is already taken."""


class LocalRegister:
    """A register below a local directory."""

    def __init__(self, root: Path, commits: bool = True) -> None:
        """`commits`: whether to create a file is to commit, with the fail points of that."""
        self._root = root
        self._commits = commits

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            make_directories(path.parent)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if self._commits:
                    failpoints.reach("manifest-writing")
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    sync_directory(path.parent)  # whoever made it may not have come to that
                    return False
                if self._commits:
                    failpoints.reach("manifest-linked")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(str(path), error) from error
        return True


class MissingRegister:
    """Stands where no atomic create is known; refuses when it is asked for one."""

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, name: str, data: bytes) -> bool:
        raise UnsupportedError(
            f"{self._root}: no atomic create-if-absent is known for this file system, so a batch "
            f"can't be committed to it; put the checkpoint on a local or network-mounted path"
        )


def make_directories(directory: Path) -> None:
    """Creates a directory and its parents so that they outlive a power cut."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory as durable as the files behind them."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(path: str, error: OSError) -> CheckpointWriteError:
    """What to raise when the operating system refuses to write `path`."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "mend this and start the query again")
    wrapped = CheckpointWriteError(f"can't write {path}: {reason}; {advice}")
    wrapped.errno = error.errno
    return wrapped

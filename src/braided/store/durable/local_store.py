"""The store on a local or mounted path.

It goes through the operating system: an open and a read cost a tenth of what they cost through
`pyarrow.fs`, and every task of every batch pays them. `os.link` makes a file appear: unlike
`os.rename` it never replaces, and unlike `O_EXCL` it publishes content and name in one step.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from braided import failpoints
from braided.errors import CheckpointReadError, CheckpointWriteError
from braided.store.durable.location import Location
from braided.store.durable.store import Data, beside

__all__ = [
    "LocalStore",
    "make_directories",
    "sync_directory",
    "sync_new_files",
    "write_error",
]

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


class LocalStore:
    """The files below a directory."""

    def __init__(self, directory: str | Path) -> None:
        self.location = Location.of(Path(directory))
        self.directory = Path(self.location.text)

    def __repr__(self) -> str:
        return f"LocalStore({self.location.text!r})"

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.location.text,)

    def below(self, directory: str) -> LocalStore:
        return LocalStore(self.directory / directory)

    def path(self, name: str) -> str:
        return f"{self.location.text}/{name}"

    def put(self, name: str, data: Data) -> None:
        with self.writer(name) as write:
            write(data)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Callable[[Data], None]]:
        try:
            path = self.directory / name
            make_directories(path.parent)
            with open(path, "wb", buffering=0) as file:
                yield functools.partial(_write_all, file)
                os.fsync(file.fileno())
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self.directory / name
        temporary = self.directory / beside(name)
        try:
            make_directories(path.parent)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                failpoints.reach("create-written")
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    sync_directory(path.parent)  # whoever made it may not have come to that
                    return False
                failpoints.reach("create-linked")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(str(path), error) from error
        return True

    def get(self, name: str) -> pa.Buffer:
        with self._reading(name), open(self.directory / name, "rb", buffering=0) as file:
            return pa.py_buffer(file.read())

    def get_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with self._reading(name), open(self.directory / name, "rb", buffering=0) as file:
            return [pa.py_buffer(os.pread(file.fileno(), length, start)) for start, length in spans]

    def reader(self, name: str) -> pa.NativeFile:
        with self._reading(name):
            return pa.memory_map(str(self.directory / name))

    def directories(self, directory: str) -> list[str]:
        where = self.directory / directory
        if not where.is_dir():
            return []
        names = (path.name for path in where.iterdir() if path.is_dir())
        return sorted(f"{directory}/{name}" if directory else name for name in names)

    def files(self, directory: str) -> list[str]:
        _, _, names = next(os.walk(self.directory / directory), ("", [], []))
        return sorted(f"{directory}/{name}" if directory else name for name in names)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.directory / name)
            except OSError as error:
                raise write_error(self.path(name), error) from error

    def delete_directory(self, directory: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory / directory)
        except OSError as error:
            raise write_error(self.path(directory), error) from error

    def list(self, directory: str) -> list[str]:
        return sorted(
            os.path.relpath(os.path.join(parent, file), self.directory)
            for parent, _, files in os.walk(self.directory / directory)
            for file in files
        )

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointReadError(
                f"can't read {self.path(name)}: {error.strerror or error}"
            ) from error


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


def sync_new_files(directory: Path, synced: frozenset[str]) -> frozenset[str]:
    """Syncs the files below a directory that were not there before; gives those there are now."""
    names = frozenset(
        os.path.join(parent, file) for parent, _, files in os.walk(directory) for file in files
    )
    fresh = names - synced
    for name in fresh:
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            os.fsync(file.fileno())
    if fresh:
        parents = {os.path.dirname(name) for name in fresh}
        for parent in {*map(Path, parents), directory, directory.parent}:
            sync_directory(parent)
    return names


def write_error(path: str, error: OSError) -> CheckpointWriteError:
    """What to raise when the operating system refuses to write `path`."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "mend this and start the query again")
    wrapped = CheckpointWriteError(f"can't write {path}: {reason}; {advice}")
    wrapped.errno = error.errno
    return wrapped


def _write_all(file: io.FileIO, data: Data) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]

"""Durable files below one directory: the only way the state layer touches a checkpoint.

A name is relative to the root, with slashes. Files are written once, whole, under names that nobody
else uses, so a write needs no atomicity: what counts is that it is durable when `write` returns,
because the manifest that names the file is written next. The one atomic step, `create`, belongs to
a `Register`.

Local paths go through the operating system (an open and a read cost a tenth of what they cost
through `pyarrow.fs`, and every task of every batch pays them); everything else is `pyarrow.fs`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyarrow import fs

from braided.errors import UnsupportedError
from braided.store.durable.register import (
    LocalRegister,
    MissingRegister,
    Register,
    make_directories,
    sync_directory,
    write_error,
)

__all__ = ["UNREADABLE", "Files"]

# What msgspec raises for bytes that are not what it once wrote.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:")
# Hadoop's names for stores that Arrow knows by another.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}


class Files:
    """The files below `root`: a path, a `file:` URI or any URI that `pyarrow.fs` knows."""

    root: str
    local: Path | None

    def __init__(self, root: str | Path, register: Register | None = None) -> None:
        text = str(root)
        if not _SCHEME.match(text):
            self.local = Path(os.path.abspath(text))
        elif text.startswith("file:"):
            self.local = Path(unquote(urlsplit(text).path))
        else:
            self.local = None
        if self.local is not None:
            self.root = str(self.local)
            self._register = register or LocalRegister(self.local)
        else:
            self.root = text.rstrip("/")
            self._store, self._base = _open_store(self.root)
            self._register = register or MissingRegister(self.root)

    def __repr__(self) -> str:
        return f"Files({self.root!r})"

    def path(self, name: str) -> str:
        """What to call the file in a message to a person."""
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Writes a whole file; when this returns, the file and its name are durable."""
        with self.writer(name) as write:
            write(data)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Callable[[bytes | pa.Buffer], None]]:
        """A file written piece by piece; on leaving, the file and its name are durable."""
        try:
            if self.local is None:
                # Makes the parents where the store has directories, does nothing where not.
                self._store.create_dir(self._in_store(name).rpartition("/")[0], recursive=True)
                with self._store.open_output_stream(self._in_store(name)) as stream:
                    yield stream.write
                return
            path = self.local / name
            make_directories(path.parent)
            with open(path, "wb", buffering=0) as file:
                yield functools.partial(_write_all, file)
                os.fsync(file.fileno())
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Creates a whole file atomically and durably; False if the name is taken."""
        return self._register.create(name, data)

    def read(self, name: str) -> pa.Buffer:
        """The content of a file; FileNotFoundError if there is none."""
        if self.local is None:
            with self._store.open_input_file(self._in_store(name)) as file:
                return file.read_buffer()
        with open(self.local / name, "rb", buffering=0) as file:
            return pa.py_buffer(file.read())

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Parts of a file, each given by where it starts and its bytes; shorter at the file's end.

        FileNotFoundError if there is none.
        """
        if self.local is None:
            with self._store.open_input_file(self._in_store(name)) as stored:
                size = stored.size()
                return [stored.read_at(max(0, min(n, size - at)), at) for at, n in spans]
        with open(self.local / name, "rb", buffering=0) as file:
            return [pa.py_buffer(os.pread(file.fileno(), n, at)) for at, n in spans]

    def mapped(self, name: str) -> pa.Buffer:
        """As `read`, for large files: where they are local, without taking them into memory."""
        if self.local is None:
            return self.read(name)
        with pa.memory_map(str(self.local / name)) as file:
            return file.read_buffer()

    def directories(self, directory: str) -> list[str]:
        """The names of the directories in a directory, sorted; none if it is missing."""
        if self.local is None:
            selector = fs.FileSelector(self._in_store(directory), allow_not_found=True)
            start = len(self._base) + 1
            return sorted(
                info.path[start:]
                for info in self._store.get_file_info(selector)
                if info.type == fs.FileType.Directory
            )
        where = self.local / directory
        if not where.is_dir():
            return []
        return sorted(f"{directory}/{path.name}" for path in where.iterdir() if path.is_dir())

    def list(self, directory: str) -> list[str]:
        """The names of the files anywhere below a directory, sorted; none if it is missing."""
        if self.local is None:
            selector = fs.FileSelector(
                self._in_store(directory), allow_not_found=True, recursive=True
            )
            start = len(self._base) + 1
            return sorted(
                info.path[start:]
                for info in self._store.get_file_info(selector)
                if info.type == fs.FileType.File
            )
        return sorted(
            os.path.relpath(os.path.join(parent, file), self.local)
            for parent, _, files in os.walk(self.local / directory)
            for file in files
        )

    def delete(self, names: Iterable[str]) -> None:
        """Removes files; one that is missing is fine."""
        for name in names:
            try:
                with contextlib.suppress(FileNotFoundError):
                    if self.local is None:
                        self._store.delete_file(self._in_store(name))
                    else:
                        os.unlink(self.local / name)
            except OSError as error:
                raise write_error(self.path(name), error) from error

    def delete_directory(self, directory: str) -> None:
        """Removes a directory and what is left in it; one that is missing is fine."""
        try:
            with contextlib.suppress(FileNotFoundError):
                if self.local is None:
                    self._store.delete_dir(self._in_store(directory))
                else:
                    shutil.rmtree(self.local / directory)
        except OSError as error:
            raise write_error(self.path(directory), error) from error

    def _in_store(self, name: str) -> str:
        return f"{self._base}/{name}"


def _open_store(uri: str) -> tuple[fs.FileSystem, str]:
    scheme, _, rest = uri.partition(":")
    try:
        store, base = fs.FileSystem.from_uri(f"{_ARROW_SCHEMES.get(scheme, scheme)}:{rest}")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedError(f"{uri}: pyarrow has no file system for it ({error})") from error
    return store, base.rstrip("/")


def _write_all(file: io.FileIO, data: bytes | pa.Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def checkpoint_files(checkpoint: str | Path) -> Files:
    """What Braided keeps in a query's checkpoint, beside what Spark does."""
    return Files(str(Path(checkpoint) / "braided"))

"""The port through which everything durable goes: named bytes below one location.

A name is relative to the location, with slashes. What is `put` is whole and durable when that
returns; names of such files are used once, so that nobody reads one that is being written. The one
atomic step is `put_if_absent`: it makes a whole file appear under a name or, when the name is
taken, leaves that alone and says so. Commits rest on it.

`local_store.py` has it on local and mounted paths, `object_store.py` on S3, GCS, Azure and their
kin, `hdfs_store.py` on HDFS; one contract suite (`tests/store/test_store.py`) runs over all of
them. `open_store.py` knows which belongs to a location. Stores can be pickled: tasks get theirs
from the driver.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

from braided.store.durable.location import Location

__all__ = ["UNREADABLE", "Data", "Store", "beside", "intended"]

_TEMPORARY = ".tmp"
"""How a file is called, at the end, while it has no name of its own yet."""

_BESIDE = re.compile(r"\.(.+)\.[0-9a-f]+" + re.escape(_TEMPORARY))

# What msgspec raises for bytes that are not what it once wrote.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)

Data: TypeAlias = bytes | pa.Buffer


def beside(name: str) -> str:
    """A new name in the same directory, for a file that is to be called `name` when it is whole."""
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}.{last}.{uuid.uuid4().hex}{_TEMPORARY}"


def intended(name: str) -> str | None:
    """What a file was to be called that is still called `beside` it; None for any other.

    A process that is killed in between leaves it for good, unless somebody looks for it.
    """
    directory, slash, last = name.rpartition("/")
    match = _BESIDE.fullmatch(last)
    return None if match is None else f"{directory}{slash}{match[1]}"


class Store(Protocol):
    """The files below a location. What can't be written is a CheckpointWriteError, what can't be
    read a CheckpointReadError, and what is not there a FileNotFoundError.
    """

    @property
    def location(self) -> Location: ...

    def below(self, directory: str) -> Store:
        """The files below a directory of this one."""

    def path(self, name: str) -> str:
        """What to call a file when speaking to a person or to Spark."""

    def put(self, name: str, data: Data) -> None:
        """Writes a whole file; when this returns, the file and its name are durable."""

    def writer(self, name: str) -> AbstractContextManager[Callable[[Data], None]]:
        """A file written piece by piece; on leaving, the file and its name are durable."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Creates a whole file atomically and durably; False if the name is taken.

        Where an answer can be lost on the way, a file that has just these bytes counts as created:
        what must tell its writers apart says who wrote it.
        """

    def get(self, name: str) -> pa.Buffer:
        """The content of a file."""

    def get_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Pieces of a file, each given by where it begins and its length."""

    def reader(self, name: str) -> pa.NativeFile:
        """A file to read piece by piece, which may be larger than memory."""

    def directories(self, directory: str) -> list[str]:
        """The names of the directories in a directory, sorted; none if it is missing."""

    def files(self, directory: str) -> list[str]:
        """The names of the files right in a directory, sorted; none if it is missing."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes files; one that is missing is fine."""

    def delete_directory(self, directory: str) -> None:
        """Removes a directory and all that is in it; one that is missing is fine."""

    def list(self, directory: str) -> list[str]:
        """The names of the files anywhere below a directory, sorted; none if it is missing."""

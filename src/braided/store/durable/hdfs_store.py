"""The store on HDFS, through `hdfs-native`, which is installed with `pip install braided[hdfs]`.

A file that must appear whole is written beside and renamed: HDFS renames atomically, and not onto a
name that is taken. Clients are made at their first use in each process, as those of object stores
are, because Spark's workers are forked.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from braided.errors import CheckpointReadError, CheckpointWriteError, UnsupportedError
from braided.store.durable.location import Location
from braided.store.durable.store import Data, beside

__all__ = ["HdfsStore"]


class HdfsStore:
    """The files below a directory of a NameNode, or of the one that Hadoop's settings name."""

    def __init__(self, location: Location, settings: Mapping[str, str] | None = None) -> None:
        self.location = location
        self._settings = dict(settings or {})

    def __repr__(self) -> str:
        return f"HdfsStore({self.location.text!r})"

    def below(self, directory: str) -> HdfsStore:
        return HdfsStore(self.location / directory, self._settings)

    def path(self, name: str) -> str:
        return f"{self.location.text}/{name}"

    def put(self, name: str, data: Data) -> None:
        with self._writing(name):
            self._client.rename(self._written_beside(name, data), self._key(name), overwrite=True)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Callable[[Data], None]]:
        with self._writing(name):
            file = self._create(self._key(name))

            def write(data: Data) -> None:
                file.write(memoryview(data).cast("B"))

            yield write
            file.hsync()
            file.close()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._writing(name):
            temporary = self._written_beside(name, data)
            try:
                self._client.rename(temporary, self._key(name), overwrite=False)
            except FileExistsError:
                self._client.delete(temporary)
                return False
            return True

    def _written_beside(self, name: str, data: Data) -> str:
        """A whole file under a name that nobody knows."""
        temporary = beside(self._key(name))
        file = self._create(temporary)
        file.write(memoryview(data).cast("B"))
        file.hsync()
        file.close()
        return temporary

    def get(self, name: str) -> pa.Buffer:
        with self._reading(name), self._client.read(self._key(name)) as file:
            return pa.py_buffer(file.read())

    def get_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with self._reading(name), self._client.read(self._key(name)) as file:
            return [pa.py_buffer(file.read_range(start, length)) for start, length in spans]

    def reader(self, name: str) -> pa.NativeFile:
        with self._reading(name):
            return pa.PythonFile(self._client.read(self._key(name)), "r")

    def directories(self, directory: str) -> list[str]:
        return sorted(
            self._name(each.path) for each in self._listed(directory, False) if each.isdir
        )

    def files(self, directory: str) -> list[str]:
        listed = self._listed(directory, False)
        return sorted(self._name(each.path) for each in listed if not each.isdir)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._writing(name), contextlib.suppress(FileNotFoundError):
                self._client.delete(self._key(name))

    def delete_directory(self, directory: str) -> None:
        with self._writing(directory), contextlib.suppress(FileNotFoundError):
            self._client.delete(self._key(directory), recursive=True)

    def list(self, directory: str) -> list[str]:
        listed = self._listed(directory, True)
        return sorted(self._name(each.path) for each in listed if not each.isdir)

    @property
    def _client(self) -> Any:
        return _client(self.location.authority, self._settings)

    def _create(self, key: str) -> Any:
        from hdfs_native import WriteOptions

        return self._client.create(key, WriteOptions(overwrite=True, create_parent=True))

    def _listed(self, directory: str, recursive: bool) -> Iterable[Any]:
        with self._reading(directory), contextlib.suppress(FileNotFoundError):
            return [*self._client.list_status(self._key(directory), recursive=recursive)]
        return []

    def _key(self, name: str) -> str:
        return "/" + "/".join(part for part in (self.location.key, name) if part)

    def _name(self, path: str) -> str:
        return path[len(self._key("")) + 1 :]

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except CheckpointWriteError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointWriteError(
                f"can't write {self.path(name)}: {_reason(error)}"
            ) from error

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path(name)} is not there") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointReadError(f"can't read {self.path(name)}: {_reason(error)}") from error


_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Any] = {}


def _client(authority: str, settings: Mapping[str, str]) -> Any:
    """The client for a NameNode, made once in each process."""
    key = (os.getpid(), authority, *sorted(settings.items()))
    with _lock:
        if key not in _clients:
            _clients[key] = _open(authority, settings)
        return _clients[key]


def _open(authority: str, settings: Mapping[str, str]) -> Any:
    try:
        from hdfs_native import Client
    except ImportError:
        raise UnsupportedError(
            "a checkpoint on hdfs:// needs the package hdfs-native: pip install 'braided[hdfs]'"
        ) from None
    url = f"hdfs://{authority}" if authority else settings.get("fs.defaultFS")
    try:
        return Client(url, dict(settings))
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointReadError(f"hdfs://{authority} can't be reached: {error}") from error


def _reason(error: Exception) -> str:
    """What the NameNode said, without its stack."""
    return str(error).split("\n")[0]


def _let_go_in_child() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_let_go_in_child)

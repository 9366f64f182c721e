"""The store on S3, Google Cloud Storage, Azure and what speaks as they do, through `obstore`.

Four things that its users must know are kept here:
  - A client that was used before a fork hangs in the child, and Spark's workers are forked: clients
    are made at the first use in each process, and shared by all stores of a bucket in it.
  - A create whose answer is lost is sent again, by the client or, after a time-out, by us, and then
    finds its own object: what is there is read back and compared.
  - A conditional create is one request, whatever its size; parts can't be conditional.
  - There are no directories: Hadoop leaves empty objects that stand for some, which are no files.

Credentials travel in `settings`, from the driver to its tasks, and are in no message and no repr.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import MemoryStore, from_url

from braided.errors import BraidedError, CheckpointReadError, CheckpointWriteError, OptionError
from braided.store.durable.location import Location
from braided.store.durable.store import Data

__all__ = ["SCHEMES", "ObjectStore"]

SCHEMES = ("s3", "s3a", "s3n", "gs", "az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs")
"""What `obstore` opens. Hadoop's own names for S3 and Azure mean the same stores."""

_URL_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}
_RETRIES = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
"""A store that does not answer ends the batch after a minute or two and not after ten."""
_TIMEOUTS = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}
_CREATES = 3
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_CODE = re.compile(r"<Code>(\w+)</Code>")
_ABSENT = ("NoSuchKey", "BlobNotFound", "PathNotFound")
_DELETED_TOGETHER = 1000
"""What S3 takes in one request."""


class ObjectStore:
    """The objects below a prefix of a bucket."""

    def __init__(self, location: Location, settings: Mapping[str, str] | None = None) -> None:
        self.location = location
        self._settings = dict(settings or {})

    def __repr__(self) -> str:
        return f"ObjectStore({self.location.text!r})"

    def below(self, directory: str) -> ObjectStore:
        return ObjectStore(self.location / directory, self._settings)

    def path(self, name: str) -> str:
        return f"{self.location.text}/{name}"

    def put(self, name: str, data: Data) -> None:
        with self._writing(name):
            obstore.put(self._client, self._key(name), _octets(data))

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Callable[[Data], None]]:
        with self._writing(name):
            file = obstore.open_writer(self._client, self._key(name))

            def write(data: Data) -> None:
                file.write(_octets(data))

            yield write
            # Not by `with`: what was begun and failed must not become an object.
            file.close()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._writing(name):
            for _ in range(_CREATES - 1):
                try:
                    return self._create(name, data)
                except GenericError:
                    # The client leaves it at that after a time-out, for it can't know what a create
                    # has done. We can, if the store answers at all.
                    with contextlib.suppress(CheckpointReadError):
                        if self._has(name, data):
                            return True
            return self._create(name, data)

    def _create(self, name: str, data: bytes) -> bool:
        try:
            obstore.put(self._client, self._key(name), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return self._has(name, data)
        return True

    def _has(self, name: str, data: bytes) -> bool:
        """Whether a file has just these bytes; one that was deleted meanwhile has none."""
        try:
            return bytes(self.get(name)) == data
        except FileNotFoundError:
            return False

    def get(self, name: str) -> pa.Buffer:
        with self._reading(name):
            return pa.py_buffer(obstore.get(self._client, self._key(name)).bytes())

    def get_ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        wanted = [(start, length) for start, length in spans if length]
        if not wanted:  # a request for nothing is refused
            return [pa.py_buffer(b"") for _ in spans]
        with self._reading(name):
            pieces = iter(
                obstore.get_ranges(
                    self._client,
                    self._key(name),
                    starts=[start for start, _ in wanted],
                    lengths=[length for _, length in wanted],
                )
            )
            return [pa.py_buffer(next(pieces) if length else b"") for _, length in spans]

    def reader(self, name: str) -> pa.NativeFile:
        with self._reading(name):
            return pa.PythonFile(_Reader(obstore.open_reader(self._client, self._key(name))), "r")

    def directories(self, directory: str) -> list[str]:
        with self._reading(directory):
            listed = obstore.list_with_delimiter(self._client, self._key(directory) or None)
            return sorted(self._name(prefix) for prefix in listed["common_prefixes"])

    def files(self, directory: str) -> list[str]:
        with self._reading(directory):
            listed = obstore.list_with_delimiter(self._client, self._key(directory) or None)
        # A marker of Hadoop's for a directory is listed by the name of the directory.
        markers = {directory, *map(self._name, listed["common_prefixes"])}
        return sorted({self._name(entry["path"]) for entry in listed["objects"]} - markers)

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), _DELETED_TOGETHER):
            some = keys[start : start + _DELETED_TOGETHER]
            with self._writing(self._name(some[0])):
                try:
                    obstore.delete(self._client, some)
                except FileNotFoundError:
                    # Stores without a request for many stop at the first that is missing.
                    for key in some:
                        self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            obstore.delete(self._client, key)
        except FileNotFoundError as error:
            if not _is_absence(str(error)):
                raise

    def delete_directory(self, directory: str) -> None:
        with self._reading(directory):
            keys = [
                self._name(entry["path"])
                for chunk in obstore.list(self._client, self._key(directory))
                for entry in chunk
            ]
        self.delete(keys)

    def list(self, directory: str) -> list[str]:
        with self._reading(directory):
            names = [
                self._name(entry["path"])
                for chunk in obstore.list(self._client, self._key(directory) or None)
                for entry in chunk
            ]
        # A marker of Hadoop's for a directory is listed by the name of the directory.
        parents = {name.rpartition("/")[0] for name in names}
        return sorted(name for name in names if name != directory and name not in parents)

    @property
    def _client(self) -> Any:
        return _client(self.location, self._settings)

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self.location.key, name) if part)

    def _name(self, key: str) -> str:
        base = self.location.key
        return key[len(base) + 1 :] if base else key

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except BraidedError:
            raise
        except (BaseError, OSError, ValueError) as error:
            raise CheckpointWriteError(f"can't write {self.path(name)}: {_reason(error)}") from None

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except BraidedError:
            raise
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and _is_absence(str(error)):
                raise FileNotFoundError(f"{self.path(name)} is not there") from None
            raise CheckpointReadError(f"can't read {self.path(name)}: {_reason(error)}") from None


class _Reader:
    """What Arrow needs of a file in Python."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        return bytes(self._file.read(None if size < 0 else size))

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Any] = {}


def _client(location: Location, settings: Mapping[str, str]) -> Any:
    """The client for a bucket, made once in each process."""
    key = (os.getpid(), location.scheme, location.authority, *sorted(settings.items()))
    with _lock:
        if key not in _clients:
            _clients[key] = _open(location, settings)
        return _clients[key]


def _open(location: Location, settings: Mapping[str, str]) -> Any:
    if location.scheme == "memory":
        return MemoryStore()
    scheme = _URL_SCHEMES.get(location.scheme, location.scheme)
    plain = _endpoint(settings).startswith("http:")
    try:
        return from_url(  # type: ignore[call-overload]  # the settings are not known beforehand
            f"{scheme}://{location.authority}",
            config=dict(settings),
            client_options={**_TIMEOUTS, "allow_http": plain},
            retry_config=_RETRIES,
        )
    except (BaseError, ValueError, TypeError) as error:
        raise OptionError(f"{location} can't be opened: {_reason(error)}") from None


def _endpoint(settings: Mapping[str, str]) -> str:
    """Where the client will ask: as it is told, or as the environment says, which it reads."""
    told = [settings[name] for name in ("endpoint", "aws_endpoint") if name in settings]
    return next(iter([*told, *filter(None, map(os.environ.get, _ENDPOINTS)), ""]))


def _octets(data: Data) -> memoryview:
    """Arrow's buffers are of signed bytes, which the client does not take."""
    return memoryview(data).cast("B")


def _is_absence(said: str) -> bool:
    """Whether an object is not there, and not its bucket or who asked for it."""
    code = _CODE.search(said)
    return code is None or code[1] in _ABSENT


def _reason(error: BaseException) -> str:
    """What the store said, without what Rust adds to it."""
    text = str(error).split("\n\nDebug source")[0].strip()
    return text or type(error).__name__


def _let_go_in_child() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_let_go_in_child)

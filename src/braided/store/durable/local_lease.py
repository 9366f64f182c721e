"""The lease on a local path.

It is a lock of the operating system on `<checkpoint>/braided/lease`, so it ends with the
process that holds it, however that ends. The file's content is for people: who holds it. It is
never deleted, because a lock on a file that has lost its name keeps nobody out.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import json
import os
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from braided.errors import FencedError
from braided.store.durable.local_store import LocalStore, make_directories, write_error

__all__ = ["LocalLease"]

_NAME = "lease"


class LocalLease:
    """The right to write a checkpoint, held until `release` or the end of the process."""

    owner: str

    def __init__(self, path: str, descriptor: int, owner: str) -> None:
        self.owner = owner
        self._path = path
        self._descriptor: int | None = descriptor
        self._releasing = threading.Lock()
        _held.add(self)

    @classmethod
    def acquire(cls, store: LocalStore, owner: str) -> LocalLease:
        """Takes the lease; FencedError naming the holder if there is one."""
        path = str(store.directory / _NAME)
        try:
            make_directories(store.directory)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise write_error(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            who = _describe(owner)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, (json.dumps(who) + "\n").encode(), 0)
        except OSError as error:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise FencedError(
                    f"{path} is held by {_name(holder)}. Stop that query first; two must not run "
                    f"on one checkpoint"
                ) from None
            raise write_error(path, error) from error
        return cls(path, descriptor, f"{who['owner']} (pid {who['pid']} on {who['host']})")

    def held(self) -> bool:
        """Whether the lease is still this one's, and the file still the one that is locked."""
        descriptor = self._descriptor
        if descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except OSError:
            return False

    def successor(self) -> str | None:
        """Whoever has made the file anew, if it is another one than that which is locked."""
        if self._descriptor is None or self.held():
            return None
        try:
            return _name(Path(self._path).read_text(errors="replace"))
        except OSError:
            return None

    def call_when_lost(self, then: Callable[[], None]) -> None:
        """Nobody takes a lock from a process that lives."""

    def release(self) -> None:
        """Gives the lease back; again is fine, and from several threads at once."""
        with self._releasing:
            if self._descriptor is not None:
                # Closing alone would not do while a child just forked still has its copy.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> LocalLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: weakref.WeakSet[LocalLease] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A lock belongs to all processes that share the descriptor: a forked child that lives longer
    # than its parent would keep the lease. Closing its copy takes nothing from the parent.
    for lease in list(_held):
        lease._close()


os.register_at_fork(after_in_child=_let_go_in_child)


def _describe(owner: str) -> dict[str, str | int]:
    return {
        "owner": owner,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _name(holder: str) -> str:
    try:
        who = json.loads(holder)
        return f"{who['owner']} (pid {who['pid']} on {who['host']}, since {who['since']})"
    except (ValueError, KeyError, TypeError):
        return "another query"

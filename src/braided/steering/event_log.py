"""The event log of a query: `events.jsonl` beside its manifests, for people and `braided replay`.

The log is not the truth, the manifests are: a line may be missing after a crash, and a disk that
is full costs lines and not batches. When the file has grown large it becomes `events-1.jsonl`, and
older ones move up, until the oldest goes.

Nothing can be appended to an object: there the file is written as a whole, every few seconds and at
the end, and one that has grown large stays under a name of its own, as long as it is among the
newest. Whoever writes a whole looks at the lease before: what a driver that was taken over from has
in memory would replace what its heir has written.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from braided.control.events import Event, encode
from braided.errors import CheckpointError
from braided.store.durable.local_store import LocalStore
from braided.store.durable.store import Store, intended

__all__ = ["EventLog", "LocalEventLog", "ObjectEventLog", "open_event_log"]

LARGE_BYTES = 16 << 20
LARGE_OBJECT_BYTES = 1 << 20
WRITTEN_EVERY_S = 10.0
"""How often an object is written, which is as a whole each time."""
KEPT = 4
"""Files besides the one that is written to."""

_NAME = "events.jsonl"
_ASIDE = re.compile(r"events-(\d+)\.jsonl")

log = logging.getLogger("braided")


class EventLog(Protocol):
    """Takes events. Only the holder of the lease may give it any."""

    def add(self, events: Iterable[Event]) -> None:
        """Appends events; one that can't be written is lost, with a warning."""

    def close(self) -> None:
        """Writes what is left."""


def open_event_log(store: Store, held: Callable[[], bool]) -> EventLog:
    """The log of the query whose checkpoint a store is in; `held` says whether it still is its."""
    if isinstance(store, LocalStore):
        return LocalEventLog(store.directory)
    return ObjectEventLog(store, held)


class LocalEventLog:
    """Appends events to a file."""

    def __init__(self, directory: Path, large_bytes: int = LARGE_BYTES) -> None:
        self.path = directory / _NAME
        self._large_bytes = large_bytes
        self._mended = False
        self._warned = False

    def add(self, events: Iterable[Event]) -> None:
        """Appends events, whole lines in one write; an error of the disk is warned of, once."""
        lines = b"".join(map(encode, events))
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._mend()
            with open(self.path, "ab") as file:
                file.write(lines)
                full = file.tell() >= self._large_bytes
            if full:
                self._rotate()
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("events are lost: %s can't be written (%s)", self.path, error)

    def close(self) -> None:
        """Everything is written as it comes."""

    def _mend(self) -> None:
        """Takes away half a line that a process which was killed left at the end."""
        if self._mended or not self.path.exists():
            self._mended = True
            return
        with open(self.path, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                begin = max(0, end - 65_536)
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                if newline >= 0:
                    end = begin + newline + 1
                    break
                end = begin
            file.truncate(end)
        self._mended = True

    def _rotate(self) -> None:
        names = [self.path, *(self.path.with_name(f"events-{n}.jsonl") for n in range(1, KEPT + 1))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                os.replace(newer, older)


class ObjectEventLog:
    """Keeps the newest events in memory, and writes them as one object now and then."""

    def __init__(
        self,
        store: Store,
        held: Callable[[], bool],
        large_bytes: int = LARGE_OBJECT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._held = held
        self._large_bytes = large_bytes
        self._clock = clock
        self._lines: bytes | None = None  # until what an earlier query wrote is read
        self._unwritten = False
        self._written_s = 0.0
        self._warned = False

    def add(self, events: Iterable[Event]) -> None:
        lines = b"".join(map(encode, events))
        if not lines:
            return
        try:
            if self._lines is None:
                self._lines = self._earlier()
            self._lines += lines
            self._unwritten = True
            if self._clock() - self._written_s >= WRITTEN_EVERY_S:
                self._write()
        except CheckpointError as error:
            self._warn(error)

    def close(self) -> None:
        try:
            if self._unwritten:
                self._write()
        except CheckpointError as error:
            self._warn(error)

    def _earlier(self) -> bytes:
        try:
            return bytes(self._store.get(_NAME))
        except FileNotFoundError:
            return b""

    def _write(self) -> None:
        assert self._lines is not None
        self._written_s = self._clock()
        if not self._held():
            self._unwritten = False
            self._warn(f"another query has taken over {self._store.location}")
            return
        full = len(self._lines) >= self._large_bytes
        if full:
            self._store.put(f"events-{time.time_ns() // 1_000_000}.jsonl", self._lines)
            self._lines = b""
        self._store.put(_NAME, self._lines)
        self._unwritten = False
        if full:
            self._forget_older()

    def _forget_older(self) -> None:
        """Removes what was put aside, but for the newest, and what was begun and not ended."""
        names = self._store.files("")
        aside = sorted((int(m[1]), name) for name in names if (m := _ASIDE.fullmatch(name)))
        begun = [name for name in names if _is_log(intended(name) or "")]
        self._store.delete([*(name for _, name in aside[:-KEPT]), *begun])

    def _warn(self, why: object) -> None:
        if not self._warned:
            self._warned = True
            log.warning("events are lost: %s", why)


def _is_log(name: str) -> bool:
    return name == _NAME or _ASIDE.fullmatch(name) is not None

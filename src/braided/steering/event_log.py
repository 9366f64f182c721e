"""The event log of a query: `events.jsonl` beside its manifests, for people and `braided replay`.

The log is not the truth, the manifests are: a line may be missing after a crash, and a disk that
is full costs lines and not batches. When the file has grown large it becomes `events-1.jsonl`, and
older ones move up, until the oldest goes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from braided.control.events import Event, encode

__all__ = ["EventLog"]

LARGE_BYTES = 16 << 20
KEPT = 4
"""Files besides the one that is written to."""

log = logging.getLogger("braided")


class EventLog:
    """Appends events. Only the holder of the lease may."""

    def __init__(self, directory: Path, large_bytes: int = LARGE_BYTES) -> None:
        self.path = directory / "events.jsonl"
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

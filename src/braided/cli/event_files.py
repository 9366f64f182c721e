"""The lines of a query's event log, which may be in several files and grow while it is read.

`steering/event_log.py` writes the log, and puts a file that has grown large away under another
name: on a disk all of them move up by one, in an object store it keeps a name for good. What is
read belongs together only if none was put away meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from braided.store.durable.store import Store

__all__ = ["EventFiles"]

_NAME = "events.jsonl"
"""The file that is written to. It is missing, or empty, after it was put away."""


class EventFiles:
    """The event log beside the manifests of a query."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = b""
        """What was there of the newest file that had anything in it."""

    def fresh(self) -> list[bytes]:
        """Whole lines that nobody was given yet, the oldest first. To look again costs one file,
        as long as that only grows.
        """
        newest = self._content(_NAME) if self._seen else b""
        if not self._seen or not newest.startswith(self._seen):
            return self._after_putting_away()
        fresh, self._seen = newest[len(self._seen) :], newest
        return fresh.splitlines(keepends=True)

    def _after_putting_away(self) -> list[bytes]:
        files = self._newest_first()
        if not files:
            return []
        last = len(files) - 1
        # All of them are fresh if the one that was seen is gone.
        seen = len(self._seen) if files[last].startswith(self._seen) else 0
        files[last], self._seen = files[last][seen:], files[0]
        return b"".join(reversed(files)).splitlines(keepends=True)

    def _newest_first(self) -> list[bytes]:
        """The files with anything in them, back to the one that was the newest at the last look."""
        while True:
            names = self._names()
            read = list(self._read(names))
            if names == self._names() and (
                not read or self._content(read[0][0]).startswith(read[0][1])
            ):
                return _each_once([content for _, content in read])
            # Some have other names by now.

    def _read(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            content = self._content(name)
            if content:
                yield name, content
                if self._seen and content.startswith(self._seen):
                    return

    def _names(self) -> list[str]:
        names = [name for name in self._store.files("") if name.startswith("events")]
        return sorted(names, key=_age, reverse=True)

    def _content(self, name: str) -> bytes:
        """Up to the last whole line; nothing of a file that is not there."""
        try:
            content = bytes(self._store.get(name))
        except FileNotFoundError:
            return b""
        return content[: content.rfind(b"\n") + 1]


def _each_once(files: list[bytes]) -> list[bytes]:
    """Without those that a newer one begins with: nothing can be moved in an object store, so who
    is killed while a file is put away leaves it under both names.
    """
    return [
        content
        for number, content in enumerate(files)
        if number == 0 or not files[number - 1].startswith(content)
    ]


def _age(name: str) -> tuple[int, int]:
    """The newest file comes last. On a disk numbers go up with age, in a store they are times."""
    number = name.removeprefix("events").removesuffix(".jsonl").removeprefix("-")
    if not number.isdigit():
        return 2, 0
    return (0, -int(number)) if int(number) < 1_000 else (1, int(number))

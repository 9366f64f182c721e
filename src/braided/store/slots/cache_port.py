"""What a cache of slots is to a task, and the plainest one: in this process's memory.

The LMDB cache (`cache.py`) and `MemoryCache` keep one contract, and one test suite runs over both:
a slot is read as of one moment, and is written from one version to another or not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

__all__ = [
    "EMPTY",
    "Cached",
    "Image",
    "MemoryCache",
    "MemoryImage",
    "SlotCache",
    "Tag",
    "Undo",
    "Update",
    "address_of",
    "after",
]


class Tag(msgspec.Struct, frozen=True, array_like=True):
    """Which version of a slot the cache holds, and what there is to know about it."""

    digest: str = ""  # of the last run applied
    keys: int = 0
    bytes: int = 0
    log_bytes: int = 0  # in changelogs since the slot's last snapshot


class Undo(msgspec.Struct, frozen=True, array_like=True):
    """How to go back to the version before: what the changed suffixes held."""

    previous: Tag
    suffixes: list[bytes]
    values: list[bytes | None]


class Update(NamedTuple):
    """A slot's step from one version to another. Suffixes ascend; a value of None removes."""

    address: bytes
    expected: str  # the version it builds on; whatever else is cached is left alone
    tag: Tag
    suffixes: Sequence[bytes]
    values: Sequence[bytes | None]
    undo: Undo | None = None
    wipe: bool = False  # start from an empty slot


class Image(Protocol):
    """A slot's content at one moment, by address + suffix."""

    get: Callable[[bytes], bytes | None]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The items with start <= key < stop, in order."""

    def close(self) -> None:
        """Lets go of the moment; nothing may be read after."""


class Cached(NamedTuple):
    """A slot as the cache had it when asked. The tag of a slot it does not have is `Tag()`."""

    tag: Tag
    image: Image
    undo: Callable[[], Undo | None]


class SlotCache(Protocol):
    """What a task needs of a cache."""

    errors: int

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, Cached]:
        """The slots at one moment; those that can't be read are left out."""

    def write(self, updates: Iterable[Update]) -> set[bytes]:
        """Makes each step whose expected version is the cached one; says which were made."""

    def discard(self, address: bytes) -> None:
        """Throws a slot away whose image can't be read, with all that may be damaged too."""


def after(prefix: bytes) -> bytes:
    """The lowest bytes above everything that starts with a prefix that is not all 0xff."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])


def address_of(ordinal: int, slot: int) -> bytes:
    """The first four bytes of all keys of a slot."""
    return (ordinal << 24 | slot).to_bytes(4, "big")


EMPTY = Tag()


class MemoryImage:
    """A slot in a dictionary, by address + suffix; sorted when first scanned."""

    __slots__ = ("_items", "_order", "get")

    def __init__(self, items: Mapping[bytes, bytes]) -> None:
        self._items = items
        self._order: list[bytes] | None = None
        self.get: Callable[[bytes], bytes | None] = items.get

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._order is None:
            self._order = sorted(self._items)
        order = self._order
        for key in order[bisect_left(order, start) : bisect_left(order, stop)]:
            yield key, self._items[key]

    def close(self) -> None:
        pass

    def stepped(self, update: Update) -> MemoryImage:
        """The slot one step on; this one stays as it is."""
        items = {} if update.wipe else dict(self._items)
        for suffix, value in zip(update.suffixes, update.values, strict=True):
            if value is None:
                items.pop(update.address + suffix, None)
            else:
                items[update.address + suffix] = value
        return MemoryImage(items)


class MemoryCache:
    """A cache for one process. Its slots are never changed, only replaced."""

    def __init__(self) -> None:
        self._slots: dict[bytes, Cached] = {}
        self.errors = 0

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, Cached]:
        return {address: self._slots.get(address, _NOT_CACHED) for address in addresses}

    def write(self, updates: Iterable[Update]) -> set[bytes]:
        written: set[bytes] = set()
        for update in updates:
            before = self._slots.get(update.address, _NOT_CACHED)
            if before.tag.digest == update.expected:
                assert isinstance(before.image, MemoryImage)
                image = before.image.stepped(update)
                self._slots[update.address] = Cached(update.tag, image, _constant(update.undo))
                written.add(update.address)
        return written

    def discard(self, address: bytes) -> None:
        self._slots.pop(address, None)

    def clear(self) -> None:
        """Forgets everything, as a new host would."""
        self._slots.clear()


def _constant(undo: Undo | None) -> Callable[[], Undo | None]:
    return lambda: undo


_NOT_CACHED = Cached(EMPTY, MemoryImage({}), _constant(None))

"""A host's cache of slots as a task finds it: in LMDB, or not to be had."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from braided.store.slots.cache_port import Cached, SlotCache, Update
from braided.store.slots.host_directory import host_directory, settle_in
from braided.store.slots.lmdb_cache import Cache

__all__ = ["open_host_cache"]


def open_host_cache(base: Path, flow: str, root: str, max_bytes: int | None) -> SlotCache:
    """The cache of a flow on this host, below `base`; `root` is where its checkpoint is."""
    directory = host_directory(base, flow)
    try:
        settle_in(directory, root)
    except OSError:
        return _MissingCache()
    return Cache(directory, max_bytes=max_bytes)


class _MissingCache:
    """In place of a cache whose directory can't be had: holds nothing, and counts it."""

    def __init__(self) -> None:
        self.errors = 0

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, Cached]:
        self.errors += 1
        return {}

    def write(self, updates: Iterable[Update]) -> set[bytes]:
        return set()

    def discard(self, address: bytes) -> None:
        pass

"""Slots of other channels, as a task reads them: at the version before, and without a change.

A key that changes slots is read by the task that takes it, from the slot that it leaves. The task
that has that slot runs at the same time, and may be done before: the cache of the host then holds
the version that it has made, which nobody has committed. What it has overwritten is in its undo
record, so the version before is read through that. To roll the slot back, as its own task would,
would take from the cache what the next batch looks for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import lmdb

from braided.store.durable.store import UNREADABLE, Store
from braided.store.history.manifest import OperatorVersion
from braided.store.slots.cache_port import Image, SlotCache, Undo, address_of
from braided.store.slots.catch_up import Opened, Opener
from braided.store.slots.slot import SlotState

__all__ = ["BeforeImage", "GuestSlots"]


class GuestSlots:
    """Slots of one operator at the version that a view names, to be read."""

    def __init__(self, files: Store, cache: SlotCache | None, view: OperatorVersion) -> None:
        self._cache = cache
        self._view = view
        self._opener = Opener(files, cache, view)
        self.waited_ns = 0
        """Until slots were open that the cache did not have as they had to be."""

    @property
    def bytes_caught_up(self) -> int:
        return self._opener.tally.bytes_caught_up

    @contextmanager
    def opened(self, slots: Iterable[int]) -> Iterator[dict[int, SlotState]]:
        """Some slots, which can be read as long as this lasts."""
        addresses = {slot: address_of(self._view.meta.ordinal, slot) for slot in slots}
        opened = self._cached(addresses)
        missing = [slot for slot in addresses if slot not in opened]
        if missing:
            begun_ns = perf_counter_ns()
            opened |= self._opener.open(missing)
            self.waited_ns += perf_counter_ns() - begun_ns
        states = {
            slot: SlotState(address, opened[slot], self._reopening(slot, address))
            for slot, address in addresses.items()
        }
        try:
            yield states
        finally:
            for state in states.values():
                state.close()

    def _cached(self, addresses: dict[int, bytes]) -> dict[int, Opened]:
        """The slots that the cache has as they have to be, or a step further."""
        if self._cache is None:
            return {}
        found: dict[int, Opened] = {}
        cached = self._cache.read(addresses.values())
        for slot, address in addresses.items():
            entry, head = cached.get(address), self._view.head(slot)
            if entry is None:
                continue
            if entry.tag.digest == head:
                found[slot] = Opened(entry.tag, entry.image)
                continue
            try:
                undo = entry.undo()
            except (lmdb.Error, *UNREADABLE):
                continue
            if undo is not None and undo.previous.digest == head:
                found[slot] = Opened(undo.previous, BeforeImage(entry.image, address, undo))
        return found

    def _reopening(self, slot: int, address: bytes) -> Callable[[], Opened]:
        return lambda: self._opener.in_memory({slot: address})[slot]


class BeforeImage:
    """A slot one step back: what an undo record has, over what there is now."""

    __slots__ = ("_changed", "_now", "_order", "get")

    def __init__(self, now: Image, address: bytes, undo: Undo) -> None:
        self._now = now
        suffixes = [address + suffix for suffix in undo.suffixes]
        self._changed = dict(zip(suffixes, undo.values, strict=True))
        # Once for all scans: every key that leaves is scanned for, and the record has all of them.
        self._order = sorted(suffixes)
        self.get: Callable[[bytes], bytes | None] = self._get

    def _get(self, key: bytes) -> bytes | None:
        return self._changed[key] if key in self._changed else self._now.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        order, changed = self._order, self._changed
        at, end = bisect_left(order, start), bisect_left(order, stop)
        for key, value in self._now.scan(start, stop):
            while at < end and order[at] < key:
                if (before := changed[order[at]]) is not None:
                    yield order[at], before
                at += 1
            if key not in changed:
                yield key, value
        for left in range(at, end):
            if (before := changed[order[left]]) is not None:
                yield order[left], before

    def close(self) -> None:
        self._now.close()

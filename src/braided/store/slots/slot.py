"""One slot as a task has it in hand: what is stored, with the task's own changes over it.

A task reads a key, computes, writes it back, a hundred thousand times a batch. So `get` is one look
into the task's changes and one into the image of the slot, and `put` only collects; sorting,
comparing and counting are done once, in bulk, at the end.

If the cache under the image fails in the middle, the slot is opened again without it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence

import lmdb

from braided.store.slots.cache_port import EMPTY, MemoryImage, after
from braided.store.slots.catch_up import Opened
from braided.store.slots.diff import Changes, changes_of
from braided.store.slots.layout import LOWEST, RECORD_KINDS, SUFFIX_BYTES_MAX, unwrap

__all__ = ["SlotState", "empty_slot"]

_PART_BYTES = 1 << 18  # of a slot that is read from one end to the other


class SlotState:
    """One slot: an ordered map of suffixes to values, with this task's changes on top."""

    __slots__ = ("_get", "_image", "_new", "_old", "_order", "_reopen", "address", "tag")

    def __init__(self, address: bytes, opened: Opened, reopen: Callable[[], Opened]) -> None:
        self.address = address
        self._reopen = reopen
        self._new: dict[bytes, bytes | None] = {}
        # What was read is kept: most of it is changed later, and the undo record needs it.
        self._old: dict[bytes, bytes | None] = {}
        self._order: list[bytes] = []
        self._use(opened)

    def get(self, suffix: bytes) -> bytes | None:
        """The value, with this task's own changes seen."""
        new = self._new
        if suffix in new:
            return new[suffix]
        old = self._old
        if suffix in old:
            return old[suffix]
        try:
            value = old[suffix] = self._get(self.address + suffix)
        except lmdb.Error:
            self._use(self._reopen())
            value = old[suffix] = self._get(self.address + suffix)
        return value

    def get_many(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        """The values of many suffixes, as `get` gives them one by one."""
        new, old, address = self._new, self._old, self.address
        stored = [s for s in suffixes if s not in new] if new else suffixes
        try:
            values = list(map(self._get, [address + suffix for suffix in stored]))
        except lmdb.Error:
            self._use(self._reopen())
            values = list(map(self._get, [address + suffix for suffix in stored]))
        old.update(zip(stored, values, strict=True))
        if len(stored) == len(suffixes):
            return values
        return [new[s] if s in new else old[s] for s in suffixes]

    def put(self, suffix: bytes, value: bytes) -> None:
        """Sets a value; nobody but this task sees it yet."""
        self._new[suffix] = value

    def put_many(self, suffixes: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Sets many values, as `put` does one by one."""
        self._new.update(zip(suffixes, values, strict=True))

    def delete(self, suffix: bytes) -> None:
        """Removes a value, if there is one."""
        self._new[suffix] = None

    def scan(self, prefix: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The items that start with a prefix, below `stop`, in order, as they are at the call."""
        start = self.address + max(prefix, LOWEST)
        end = after(self.address + prefix)
        if stop is not None:
            end = min(end, self.address + stop)
        order, cut = self._changed(), len(self.address)
        low, high = bisect_left(order, start[cut:]), len(order)
        if end.startswith(self.address):
            high = bisect_left(order, end[cut:])
        written = [(suffix, self._new[suffix]) for suffix in order[low:high]]
        return _merge(self._stored(start, end), written)

    def scan_over(self, prefix: bytes, written: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """What `scan` gives, for one who knows which suffixes the task has written there.

        To find them out costs a sort of all that the task has written, too much to do per key.
        """
        start, end = self.address + prefix, after(self.address + prefix)
        return _merge(self._stored(start, end), [(suffix, self._new[suffix]) for suffix in written])

    def few_over(
        self, prefix: bytes, written: Collection[bytes], count: int
    ) -> list[tuple[bytes, bytes]]:
        """What `scan_over` gives, where it is known that there are but a few, and how many."""
        new = self._new
        items = {suffix: value for suffix in written if (value := new[suffix]) is not None}
        if len(items) < count:
            start = self.address + prefix
            # Of what is stored, that which the task has not written itself.
            items |= {
                suffix: value
                for suffix, value in self._listed(start, after(start))
                if suffix not in new
            }
        return sorted(items.items())

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys that have a record, with their records, in the order in which they lie."""
        for kind in RECORD_KINDS:
            for suffix, stored in self.scan(kind):
                yield unwrap(suffix, stored)

    def first(self, prefix: bytes) -> bytes | None:
        """The lowest suffix that starts with a prefix."""
        for suffix, _ in self.scan(prefix):
            return suffix
        return None

    def changes(self) -> Changes | None:
        """What differs from the slot as it was opened, if anything."""
        suffixes = self._changed()
        if not suffixes:
            return None
        if suffixes[0] < LOWEST or max(map(len, suffixes)) > SUFFIX_BYTES_MAX:
            raise ValueError(
                f"a suffix has 1 to {SUFFIX_BYTES_MAX} bytes and does not start with zero"
            )
        if not self._new.keys() <= self._old.keys():
            self._read_olds(suffixes)
        values = list(map(self._new.__getitem__, suffixes))
        changes = changes_of(suffixes, values, list(map(self._old.__getitem__, suffixes)))
        return changes if changes.suffixes else None

    def items(self) -> dict[bytes, bytes]:
        """All that a slot that was opened empty holds now."""
        return {suffix: value for suffix, value in self._new.items() if value is not None}

    def contents(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The slot as it was opened, in parts, of which there is at least one."""
        cut = len(self.address)
        suffixes: list[bytes] = []
        values: list[bytes] = []
        held = 0
        for key, value in self._stored(self.address + LOWEST, after(self.address)):
            suffixes.append(key[cut:])
            values.append(value)
            held += len(key) + len(value)
            if held >= _PART_BYTES:
                yield suffixes, values
                suffixes, values, held = [], [], 0
        yield suffixes, values

    def close(self) -> None:
        """Lets go of the cache; nothing may be read after."""
        self._image.close()
        self._reopen = _closed

    def _use(self, opened: Opened) -> None:
        self.tag, self._image = opened
        self._get = opened.image.get

    def _changed(self) -> list[bytes]:
        # Suffixes are only ever added, so the count tells whether there are others than before.
        if len(self._order) != len(self._new):
            self._order = sorted(self._new)
        return self._order

    def _read_olds(self, suffixes: list[bytes]) -> None:
        """Reads what was written without having been read."""
        old, address = self._old, self.address
        try:
            for suffix in suffixes:
                if suffix not in old:
                    old[suffix] = self._get(address + suffix)
        except lmdb.Error:
            self._use(self._reopen())
            self._read_olds(suffixes)

    def _stored(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            for key, value in self._image.scan(start, end):
                yield key, value
                start = key + b"\x00"
        except lmdb.Error:
            self._use(self._reopen())
            yield from self._image.scan(start, end)

    def _listed(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The stored items of a range by their suffixes, all at once."""
        cut = len(self.address)
        try:
            return [(key[cut:], value) for key, value in self._image.scan(start, end)]
        except lmdb.Error:
            self._use(self._reopen())
            return [(key[cut:], value) for key, value in self._image.scan(start, end)]


def empty_slot() -> SlotState:
    """A slot with nothing in it and nowhere to go."""
    return SlotState(bytes(4), Opened(EMPTY, MemoryImage({})), _closed)


def _closed() -> Opened:
    raise ValueError("the slot was read after its task had finished")


def _merge(
    stored: Iterator[tuple[bytes, bytes]], written: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """What is stored (by address + suffix) with a task's own changes (by suffix) over it."""
    position = 0
    for key, value in stored:
        suffix = key[4:]
        while position < len(written) and written[position][0] < suffix:
            yield from _present(written[position])
            position += 1
        if position < len(written) and written[position][0] == suffix:
            yield from _present(written[position])
            position += 1
        else:
            yield suffix, value
    for item in written[position:]:
        yield from _present(item)


def _present(item: tuple[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    suffix, value = item
    if value is not None:
        yield suffix, value

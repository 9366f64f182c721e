"""The states of many keys, from their slots to columns and back.

What is not changed is not written. A split key begins as new in every share, and what it comes to
there is no state of the slot but a part of it, as for any operator that can merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.store.columnar.fields import DUE, ColumnCodec
from braided.store.columnar.records import PackedRecords
from braided.store.slots.layout import record_suffixes, timer_suffix, unwrap, wrap
from braided.tasks.channel import Channel
from braided.tasks.reports import KeyRecord, partials_of
from braided.tasks.split_keys import split_keys_of

__all__ = ["STATE_BYTES", "KeyStates", "LoadedKeys", "TooMuchState", "due_ms"]

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STATE_BYTES = 256 << 20
"""What the records of the keys of a call may have, unless there is but one."""

_NEVER_MS = np.iinfo(np.int64).max


class TooMuchState(Exception):
    """Keys whose state is too much for one call: fewer of them are to be loaded."""


@dataclass
class LoadedKeys:
    """Keys, slot by slot, with what is stored of them."""

    keys: list[bytes]
    slots: Numbers
    suffixes: list[bytes]
    long: list[int]
    """Those of the keys whose records are wrapped."""
    split: list[int]
    records: list[bytes | None]
    columns: list[pa.Array]
    unchanged: PackedRecords
    """What their records would be if nothing changed."""
    timers: Numbers | None
    """When their timers are, in milliseconds; None if they can't be due.

    It is what their records say, but for those that `upgrade` gave another `due` just now.
    """


class KeyStates:
    """Loads and stores keys for one task."""

    def __init__(self, channel: Channel, codec: ColumnCodec) -> None:
        self._channel = channel
        self._codec = codec
        names = [field.name for field in codec.fields]
        self._due = names.index(DUE) if DUE in names else None
        self._stored = None
        if self._due is not None and codec.upgrade is not None:
            self._stored = codec.stored()
        self._split = split_keys_of(channel)
        self._partials: dict[tuple[bytes, int], bytes | None] = {}

    def load(self, keys: list[bytes], slots: Numbers) -> LoadedKeys:
        """The keys have to come slot by slot, and each but once.

        Raises TooMuchState before it has done anything with the records.
        """
        suffixes, long = record_suffixes(keys)
        records: list[bytes | None] = []
        state = self._channel.state
        for number, begin, end in _stretches(slots):
            records += state.slot(number).get_many(suffixes[begin:end])
        for i in long:
            stored = records[i]
            records[i] = None if stored is None else unwrap(suffixes[i], stored)[1]
        split: list[int] = []
        if self._split:
            split = [i for i, key in enumerate(keys) if key in self._split]
            for i in split:
                records[i] = self._partials.get((keys[i], int(slots[i])))
        if len(keys) > 1 and self._codec.size(records) > STATE_BYTES:
            raise TooMuchState
        columns, unchanged = self._codec.read(records)
        timers = self._timers(records, columns)
        return LoadedKeys(keys, slots, suffixes, long, split, records, columns, unchanged, timers)

    def store(
        self, loaded: LoadedKeys, columns: Sequence[pa.Array], removed: Mask | None = None
    ) -> None:
        """The keys as they are now; those that are removed have nothing any more."""
        count = len(loaded.keys)
        if all(new is old for new, old in zip(columns, loaded.columns, strict=True)):
            now, changed = loaded.unchanged, np.zeros(count, np.bool_)
        else:
            now = self._codec.write(columns, count)
            changed = now.differs(loaded.unchanged)
        if self._stored is not None:
            # A record says when its timer is, also one that `upgrade` alone has changed.
            assert self._due is not None
            changed |= loaded.timers != due_ms(loaded.columns[self._due])
        if removed is not None:
            changed &= ~removed
        for i in loaded.split:
            self._put_partial(loaded, i, now, removed)
            changed[i] = False
        if changed.any():
            self._put(loaded, changed, now)
        if removed is not None and removed.any():
            self._delete(loaded, removed)
        if self._due is not None:
            self._put_timers(loaded, columns[self._due], removed)

    def _timers(
        self, records: Sequence[bytes | None], columns: Sequence[pa.Array]
    ) -> Numbers | None:
        if self._due is None:
            return None
        timers = due_ms(columns[self._due])
        if self._stored is None:
            return timers
        newest = self._codec.fresh[:1]
        old = {i: record for i, record in enumerate(records) if record and record[:1] != newest}
        if old:
            timers = timers.copy()
            timers[list(old)] = due_ms(self._stored.decode(list(old.values()))[self._due])
        return timers

    def partials(self) -> tuple[KeyRecord, ...]:
        """What the rows of split keys came to in each share, where they changed anything."""
        return partials_of(self._partials)

    def _put(self, loaded: LoadedKeys, changed: Mask, now: PackedRecords) -> None:
        """Writes the records that have changed, slot by slot."""
        records = now.chosen(changed)
        suffixes, slots = loaded.suffixes, loaded.slots
        if not changed.all():
            suffixes, slots = list(compress(suffixes, changed.tolist())), slots[changed]
        if loaded.long:
            place = np.cumsum(changed) - 1
            records = list(records)
            for i in loaded.long:
                if changed[i]:
                    records[place[i]] = wrap(loaded.keys[i], records[place[i]])
        for number, begin, end in _stretches(slots):
            slot = self._channel.state.slot(number)
            slot.put_many(suffixes[begin:end], records[begin:end])

    def _delete(self, loaded: LoadedKeys, removed: Mask) -> None:
        split = set(loaded.split)
        for i in np.flatnonzero(removed).tolist():
            if loaded.records[i] is not None and i not in split:
                self._channel.state.slot(int(loaded.slots[i])).delete(loaded.suffixes[i])

    def _put_partial(
        self, loaded: LoadedKeys, i: int, now: PackedRecords, removed: Mask | None
    ) -> None:
        record: bytes | None = now.tolist()[i]
        if record == self._codec.fresh or (removed is not None and removed[i]):
            record = None
        self._partials[loaded.keys[i], int(loaded.slots[i])] = record

    def _put_timers(self, loaded: LoadedKeys, due: pa.Array, removed: Mask | None) -> None:
        """Has each key's timer where its `due` is, and none where that is null."""
        assert loaded.timers is not None
        before, after = loaded.timers, due_ms(due)
        if removed is not None:
            after = np.where(removed, _NEVER_MS, after)
        moved = np.flatnonzero(before != after)
        for i, old, new in zip(
            moved.tolist(), before[moved].tolist(), after[moved].tolist(), strict=True
        ):
            slot, key = self._channel.state.slot(int(loaded.slots[i])), loaded.keys[i]
            if old != _NEVER_MS:
                slot.delete(timer_suffix(old, key)[0])
            if new != _NEVER_MS:
                slot.put(*timer_suffix(new, key))


def due_ms(due: pa.Array) -> Numbers:
    """When keys are due, in whole milliseconds and never before; far off where they are not."""
    if not len(due):
        return np.zeros(0, np.int64)
    us = np.frombuffer(due.buffers()[1], np.int64, len(due), due.offset * 8)
    ms = -(-us // 1000)
    if due.null_count:
        ms = np.where(due.is_valid().to_numpy(zero_copy_only=False), ms, _NEVER_MS)
    return ms


def _stretches(slots: Numbers) -> Iterator[tuple[int, int, int]]:
    """Slots, each with the first and the last position of its keys, which lie side by side."""
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    ends = [*begins[1:].tolist(), len(slots)]
    return iter(zip(slots[begins].tolist(), begins.tolist(), ends, strict=True))

"""The state variables and timers of the one key that a task has open.

`open` reads the key's record; variables (variables.py) read and write its cells and the pieces
beside it; `close` writes the record back if it has changed. One object serves all keys of a task,
one after the other, so that a variable needs to know no key.

A cell is what the record says of a variable:

    value   its bytes; True if they lie beside; with a time to live, [expiry, either of these]
    list    [number of its first piece, number of its next piece]
    map     how many entries it has
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgspec

from braided.errors import StateValueError
from braided.store.slots.layout import (
    CHUNK,
    ENTRY,
    VALUE,
    record_suffix,
    timer_suffix,
    unwrap,
    wrap,
)
from braided.store.slots.slot import SlotState
from braided.store.variables.layout import key_part, variable_suffix

__all__ = ["OpenKey", "read_record"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_FEW = 64
"""So many entries of a map are read at once."""


def read_record(record: bytes) -> tuple[list[int], dict[int, Any]]:
    """The timers and the cells of a key."""
    timers, cells = _decode(record)
    return timers, cells


class _NoKey(dict[int, Any]):
    """The cells while no key is open."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise StateValueError(
            "state was used while no key was at hand: state variables and timers belong to a "
            "key, so use them in handleInputRows, handleExpiredTimer and handleInitialState, not "
            "in init or close"
        )

    get = pop = __getitem__ = __setitem__ = __contains__ = _refuse


_NO_KEY = _NoKey()


class OpenKey:
    """A key in the hands of a task."""

    __slots__ = (
        "_before",
        "_is_long",
        "_suffix",
        "cells",
        "dirty",
        "ending",
        "key",
        "now_ms",
        "retired",
        "slot",
        "timers",
        "touched",
    )

    slot: SlotState

    def __init__(self, now_ms: int = 0, retired: frozenset[int] = frozenset()) -> None:
        self.now_ms = now_ms
        """The time by which values expire: that of the batch."""
        self.retired = retired
        """Variables that are no more; what a key has of them is dropped when it is opened."""
        self.touched: dict[bytes, dict[bytes, None]] = {}
        """Entries of maps that the task has written, by what their suffixes start with."""
        self.ending: list[Callable[[], None]] = []
        """What variables have to do before the key is closed."""
        self.key = b""
        self.cells: dict[int, Any] = _NO_KEY
        self.timers: set[int] = set()
        self.dirty = False
        self._suffix = b""
        self._is_long = False
        self._before: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether a key is at hand."""
        return self.cells is not _NO_KEY

    def open(self, slot: SlotState, key: bytes) -> None:
        """Reads what the slot has of a key, which is at hand from now on."""
        self.slot = slot
        self.key = key
        self._suffix, self._is_long = suffix, is_long = record_suffix(key)
        raw = slot.get(suffix)
        if raw is None:
            self._before, self.cells = [], {}
        elif is_long:
            self._before, self.cells = _decode(unwrap(suffix, raw)[1])
        else:
            self._before, self.cells = _decode(raw)
        if self.timers or self._before:
            self.timers = set(self._before)
        self.dirty = False
        if self.retired and not self.retired.isdisjoint(self.cells):
            self._drop(self.retired.intersection(self.cells))

    def close(self) -> None:
        """Writes back what has changed; the key is at hand no longer."""
        if self.ending:
            for end in self.ending:
                end()
            self.ending.clear()
        if self.dirty:
            self._write()
        self.cells = _NO_KEY

    def set_timer(self, ms: int) -> None:
        """Has the key's timer fire at this time; once, however often it is set."""
        self.cells.get(0)  # refuses while no key is at hand
        if ms not in self.timers:
            self.timers.add(ms)
            self.dirty = True

    def drop_timer(self, ms: int) -> None:
        """Takes a timer of the key's back, if there is one at this time."""
        self.cells.get(0)  # refuses while no key is at hand
        if ms in self.timers:
            self.timers.remove(ms)
            self.dirty = True

    def _write(self) -> None:
        slot, timers, before = self.slot, self.timers, self._before
        if not self.cells and not timers:
            slot.delete(self._suffix)
        else:
            record = _encode((sorted(timers) if timers else [], self.cells))
            slot.put(self._suffix, wrap(self.key, record) if self._is_long else record)
        if timers or before:
            for ms in timers.difference(before):
                slot.put(*timer_suffix(ms, self.key))
            for ms in before:
                if ms not in timers:
                    slot.delete(timer_suffix(ms, self.key)[0])

    def touch(self, prefix: bytes, suffix: bytes) -> None:
        """Says that a suffix, which starts with a prefix of this key's, was written."""
        written = self.touched.get(prefix)
        if written is None:
            written = self.touched[prefix] = {}
        written[suffix] = None

    def entries(self, prefix: bytes, count: int | None = None) -> Iterable[tuple[bytes, bytes]]:
        """What lies in the slot under a prefix of this key's, with the task's changes.

        As it is at the call; where there may be much of it, it is read as one goes along.
        """
        written = self.touched.get(prefix, ())
        if count is not None and count <= _FEW:
            return self.slot.few_over(prefix, written, count)
        return self.slot.scan_over(prefix, sorted(written))

    def _drop(self, variables: frozenset[int]) -> None:
        for variable in variables:
            for kind in (VALUE, CHUNK, ENTRY):
                prefix = variable_suffix(kind, key_part(self.key), variable)
                for suffix, _ in list(self.entries(prefix)):
                    self.slot.delete(suffix)
            del self.cells[variable]
        self.dirty = True

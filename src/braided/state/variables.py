"""Value, list and map state of a key, with Spark's names: what a processor reads and writes.

A variable knows how its values are encoded and nothing of keys; it works on whatever key is open
(openkey.py). Reads touch what is asked for: one entry of a map, not the map. A list grows by
pieces: what a key appended while it was open is one piece, and the others stay as they are.

With a time to live, every value, entry and piece has its expiry in front. One that has expired is
not there for any reader. It goes from the slot when `sweep` finds the note of its expiry. A note is
made when something is new, not each time it is written again; a sweep that finds what was
prolonged meanwhile makes another note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from braided.state.openkey import OpenKey
from braided.state.places import (
    CHUNK,
    ENTRY,
    EXPIRY,
    VALUE,
    chunk_place,
    expiry_bound,
    expiry_parts,
    expiry_place,
    is_digest,
    user_part,
    variable_of,
    variable_place,
)
from braided.state.slot import SlotState

__all__ = ["INLINE_BYTES_MAX", "Codec", "ListVariable", "MapVariable", "ValueVariable", "sweep"]

INLINE_BYTES_MAX = 512
"""A longer value lies beside the key's record, which is written whole whenever it changes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_EXPIRY_BYTES = 8


class Codec:
    """How the values of a variable are bytes."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


def _stamped(expiry_ms: int, data: bytes) -> bytes:
    return expiry_ms.to_bytes(_EXPIRY_BYTES, "big", signed=True) + data


def _expiry_of(data: bytes) -> int:
    return int.from_bytes(data[:_EXPIRY_BYTES], "big", signed=True)


class _Variable:
    def __init__(self, key: OpenKey, number: int, codec: Codec, ttl_ms: int | None) -> None:
        self._key = key
        self._number = number
        self._encode = codec.encode
        self._decode = codec.decode
        self._ttl_ms = ttl_ms

    def _note(self, expiry_ms: int, place: bytes) -> None:
        self._key.slot.put(expiry_place(expiry_ms, place), self._key.key)


class ValueVariable(_Variable):
    """A single value."""

    def exists(self) -> bool:
        cell = self._key.cells.get(self._number)
        if cell is None or self._ttl_ms is None:
            return cell is not None
        return bool(cell[0] > self._key.now_ms)

    def get(self) -> tuple[Any, ...] | None:
        cell: Any = self._key.cells.get(self._number)
        if cell is None:
            return None
        if self._ttl_ms is not None:
            expiry_ms, cell = cell
            if expiry_ms <= self._key.now_ms:
                return None
        if cell is True:
            cell = self._key.slot.get(self._place())
        return self._decode(cell)  # type: ignore[no-any-return]

    def update(self, newValue: Any) -> None:
        key, number = self._key, self._number
        data: Any = self._encode(newValue)
        old = key.cells.get(number)
        if len(data) > INLINE_BYTES_MAX:
            key.slot.put(self._place(), data)
            data = True
        elif old is True or (self._ttl_ms is not None and old is not None and old[1] is True):
            key.slot.delete(self._place())
        if self._ttl_ms is not None:
            expiry_ms = key.now_ms + self._ttl_ms
            if old is None:
                self._note(expiry_ms, self._place())
            data = [expiry_ms, data]
        key.cells[number] = data
        key.dirty = True

    def clear(self) -> None:
        key = self._key
        old = key.cells.pop(self._number, None)
        if old is not None:
            if old is True or (self._ttl_ms is not None and old[1] is True):
                key.slot.delete(self._place())
            key.dirty = True

    def _place(self) -> bytes:
        return variable_place(VALUE, self._key.part, self._number)


class ListVariable(_Variable):
    """A list of values."""

    def __init__(self, key: OpenKey, number: int, codec: Codec, ttl_ms: int | None) -> None:
        super().__init__(key, number, codec, ttl_ms)
        self._appended: list[bytes] = []

    def exists(self) -> bool:
        cell = self._key.cells.get(self._number)
        if self._appended:
            return True
        if cell is None:
            return False
        return self._ttl_ms is None or next(self._chunks(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        appended = self._appended.copy()
        stored = [] if self._key.cells.get(self._number) is None else list(self._chunks())
        return self._values(stored, appended)

    def put(self, newState: Iterable[Any]) -> None:
        values = [self._encode(value) for value in newState]
        self._check(values)
        self.clear()
        self._append(values)

    def appendValue(self, newState: Any) -> None:
        self._append([self._encode(newState)])

    def appendList(self, newState: Iterable[Any]) -> None:
        values = [self._encode(value) for value in newState]
        self._check(values)
        self._append(values)

    def clear(self) -> None:
        key = self._key
        self._appended.clear()
        cell = key.cells.pop(self._number, None)
        if cell is not None:
            prefix = self._prefix()
            for number in range(*cell):
                key.slot.delete(chunk_place(prefix, number))
            key.dirty = True

    def _check(self, values: list[bytes]) -> None:
        """Spark's rule for lists that are written whole."""

    def _append(self, values: list[bytes]) -> None:
        key = self._key
        if not self._appended:
            key.cells.get(self._number)  # refuses while no key is open
            key.ending.append(self.end)
        self._appended += values

    def end(self) -> None:
        """Writes what was appended, if anything, as one more piece."""
        if not self._appended:
            return
        key = self._key
        first, last = key.cells.get(self._number) or (0, 0)
        place = chunk_place(self._prefix(), last)
        data = _encode(self._appended)
        if self._ttl_ms is not None:
            expiry_ms = key.now_ms + self._ttl_ms
            data = _stamped(expiry_ms, data)
            self._note(expiry_ms, place)
        key.slot.put(place, data)
        key.cells[self._number] = [first, last + 1]
        key.dirty = True
        self._appended.clear()

    def _chunks(self) -> Iterator[bytes]:
        """The pieces that are there for a reader."""
        key, prefix = self._key, self._prefix()
        get = key.slot.get
        for number in range(*key.cells[self._number]):
            data = get(chunk_place(prefix, number))
            if data is None:
                continue  # swept
            if self._ttl_ms is not None:
                if _expiry_of(data) <= key.now_ms:
                    continue
                data = data[_EXPIRY_BYTES:]
            yield data

    def _values(self, stored: list[bytes], appended: list[bytes]) -> Iterator[tuple[Any, ...]]:
        decode = self._decode
        for chunk in stored:
            yield from map(decode, _decode(chunk))
        yield from map(decode, appended)

    def _prefix(self) -> bytes:
        return variable_place(CHUNK, self._key.part, self._number)


class MapVariable(_Variable):
    """Values by a key of the user's."""

    def __init__(
        self, key: OpenKey, number: int, keys: Codec, codec: Codec, ttl_ms: int | None
    ) -> None:
        super().__init__(key, number, codec, ttl_ms)
        self._encode_key = keys.encode
        self._decode_key = keys.decode
        self._begun = (b"", b"")

    def exists(self) -> bool:
        if not self._key.cells.get(self._number):
            return False
        return self._ttl_ms is None or next(self._entries(), None) is not None

    def getValue(self, key: Any) -> Any:
        part = user_part(self._encode_key(key))
        if not self._key.cells.get(self._number):
            return None
        data = self._key.slot.get(self._prefix() + part)
        found = None if data is None else self._read(part, data)
        return None if found is None else self._decode(found[1])

    def containsKey(self, key: Any) -> bool:
        part = user_part(self._encode_key(key))
        if not self._key.cells.get(self._number):
            return False
        data = self._key.slot.get(self._prefix() + part)
        return data is not None and self._read(part, data) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        user_key, data = self._encode_key(key), self._encode(value)
        part = user_part(user_key)
        if is_digest(part):
            data = _encode((user_key, data))
        open_key, prefix = self._key, self._prefix()
        place = prefix + part
        count = open_key.cells.get(self._number, 0)
        is_new = not count or open_key.slot.get(place) is None
        if self._ttl_ms is not None:
            expiry_ms = open_key.now_ms + self._ttl_ms
            data = _stamped(expiry_ms, data)
            if is_new:
                self._note(expiry_ms, place)
        open_key.slot.put(place, data)
        open_key.touched.setdefault(prefix, {})[place] = None
        if is_new:
            open_key.cells[self._number] = count + 1
            open_key.dirty = True

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        keys, values = self._decode_key, self._decode
        return ((tuple(keys(k)), tuple(values(v))) for k, v in self._entries())

    def keys(self) -> Iterator[Any]:
        decode = self._decode_key
        return (tuple(decode(key)) for key, _ in self._entries())

    def values(self) -> Iterator[Any]:
        decode = self._decode
        return (tuple(decode(value)) for _, value in self._entries())

    def removeKey(self, key: Any) -> None:
        place = self._prefix() + user_part(self._encode_key(key))
        open_key = self._key
        count = open_key.cells.get(self._number)
        if count and open_key.slot.get(place) is not None:
            self._remove(place, count)

    def clear(self) -> None:
        open_key = self._key
        if open_key.cells.pop(self._number, None):
            for place, _ in open_key.entries(self._prefix()):
                open_key.slot.delete(place)
                open_key.touched.setdefault(self._prefix(), {})[place] = None
            open_key.dirty = True

    def _remove(self, place: bytes, count: int) -> None:
        open_key = self._key
        open_key.slot.delete(place)
        open_key.touched.setdefault(self._prefix(), {})[place] = None
        if count == 1:
            del open_key.cells[self._number]
        else:
            open_key.cells[self._number] = count - 1
        open_key.dirty = True

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the entries that are there for a reader, as they are at the call."""
        open_key = self._key
        if not open_key.cells.get(self._number):
            return iter(())
        prefix = self._prefix()
        found = open_key.slot.scan_over(prefix, sorted(open_key.touched.get(prefix, ())))
        cut = len(prefix)
        return filter(None, (self._read(place[cut:], data) for place, data in found))

    def _read(self, part: bytes, data: bytes) -> tuple[bytes, bytes] | None:
        """The key and the value of an entry; None if it has expired."""
        if self._ttl_ms is not None:
            if _expiry_of(data) <= self._key.now_ms:
                return None
            data = data[_EXPIRY_BYTES:]
        if is_digest(part):
            user_key, data = _decode(data)
            return user_key, data
        return part, data

    def _prefix(self) -> bytes:
        part = self._key.part
        if self._begun[0] is not part:
            self._begun = (part, variable_place(ENTRY, part, self._number))
        return self._begun[1]


def sweep(slot: SlotState, key: OpenKey, now_ms: int) -> int:
    """Removes from a slot what has expired; how much that was. No key may be open."""
    removed = 0
    for noted, owner in list(slot.scan(EXPIRY, expiry_bound(now_ms + 1))):
        slot.delete(noted)
        place = expiry_parts(noted)
        key.open(slot, owner)
        expiry_ms = _swept(key, place, variable_of(place, owner), now_ms)
        if expiry_ms is None:
            removed += 1
        elif expiry_ms > now_ms:
            slot.put(expiry_place(expiry_ms, place), owner)
        key.close()
    return removed


def _swept(key: OpenKey, place: bytes, number: int, now_ms: int) -> int | None:
    """Removes what lies at a place if it has expired; else when it will, 0 if it is gone."""
    cell = key.cells.get(number)
    if cell is None:
        return 0
    if place[:1] == VALUE:
        if cell[0] > now_ms:
            return int(cell[0])
        del key.cells[number]
        if cell[1] is True:
            key.slot.delete(place)
        key.dirty = True
        return None
    data = key.slot.get(place)
    if data is None:
        return 0
    if _expiry_of(data) > now_ms:
        return _expiry_of(data)
    key.slot.delete(place)
    key.dirty = True
    if place[:1] == ENTRY:
        key.touched.setdefault(variable_place(ENTRY, key.part, number), {})[place] = None
        left: Any = cell - 1
    else:
        first, last = cell
        prefix = variable_place(CHUNK, key.part, number)
        while first < last and key.slot.get(chunk_place(prefix, first)) is None:
            first += 1
        left = [first, last] if first < last else None
    if left:
        key.cells[number] = left
    else:
        del key.cells[number]
    return None

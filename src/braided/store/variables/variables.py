"""Value, list and map state of a key, with Spark's names: what a processor reads and writes.

A variable knows how its values are encoded and nothing of keys; it works on whatever key is open
(openkey.py). Reads touch what is asked for: one entry of a map, not the map. A list grows by
pieces: what a key appended while it was open is one piece, and the others stay as they are.

With a time to live, every value, entry and piece has its expiry in front. One that has expired is
not there for any reader. It goes from the slot when a sweep (sweep.py) finds the note of its
expiry, which is made when something is new, not each time it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from braided.store.variables.layout import (
    CHUNK,
    ENTRY,
    USER_KEY_BYTES_MAX,
    VALUE,
    chunk_place,
    expiry_place,
    is_digest,
    key_part,
    user_part,
    variable_place,
)
from braided.store.variables.open_key import OpenKey

__all__ = [
    "INLINE_BYTES_MAX",
    "Codec",
    "ListVariable",
    "MapVariable",
    "ValueVariable",
    "expiry_of",
]

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


def expiry_of(data: bytes) -> int:
    return int.from_bytes(data[:_EXPIRY_BYTES], "big", signed=True)


class _Variable:
    _kind: bytes

    def __init__(self, key: OpenKey, number: int, codec: Codec, ttl_ms: int | None) -> None:
        self._key = key
        self._number = number
        self._encode = codec.encode
        self._decode = codec.decode
        self._ttl_ms = ttl_ms
        self._owner: bytes | None = None
        self._place = b""

    def _begin(self) -> bytes:
        """What the suffixes of this variable start with for the key at hand."""
        owner = self._key.key
        if owner is not self._owner:
            self._owner = owner
            self._place = variable_place(self._kind, key_part(owner), self._number)
        return self._place

    def _note(self, expiry_ms: int, place: bytes) -> None:
        self._key.slot.put(expiry_place(expiry_ms, place), self._key.key)


class ValueVariable(_Variable):
    """A single value."""

    _kind = VALUE

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
            cell = self._key.slot.get(self._begin())
        return self._decode(cell)  # type: ignore[no-any-return]

    def update(self, newValue: Any) -> None:
        key, number, ttl_ms = self._key, self._number, self._ttl_ms
        data: Any = self._encode(newValue)
        old = key.cells.get(number)
        if len(data) > INLINE_BYTES_MAX:
            key.slot.put(self._begin(), data)
            data = True
        elif old is True or (ttl_ms is not None and old is not None and old[1] is True):
            key.slot.delete(self._begin())
        if ttl_ms is not None:
            expiry_ms = key.now_ms + ttl_ms
            if old is None:
                self._note(expiry_ms, self._begin())
            data = [expiry_ms, data]
        key.cells[number] = data
        key.dirty = True

    def clear(self) -> None:
        key = self._key
        old = key.cells.pop(self._number, None)
        if old is not None:
            if old is True or (self._ttl_ms is not None and old[1] is True):
                key.slot.delete(self._begin())
            key.dirty = True


class ListVariable(_Variable):
    """A list of values."""

    _kind = CHUNK

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
        if self._key.cells.get(self._number) is None:
            return map(self._decode, appended)
        # The pieces are as they are now; what is in them is unpacked as it is asked for.
        stored = chain.from_iterable(map(_decode, list(self._chunks())))
        return map(self._decode, chain(stored, appended))

    def put(self, newState: Iterable[Any]) -> None:
        values = list(map(self._encode, newState))
        self._check(values)
        self.clear()
        self._append(values)

    def appendValue(self, newState: Any) -> None:
        self._append([self._encode(newState)])

    def appendList(self, newState: Iterable[Any]) -> None:
        values = list(map(self._encode, newState))
        self._check(values)
        self._append(values)

    def clear(self) -> None:
        key = self._key
        self._appended.clear()
        cell = key.cells.pop(self._number, None)
        if cell is not None:
            prefix = self._begin()
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
        place = chunk_place(self._begin(), last)
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
        key, prefix, expires = self._key, self._begin(), self._ttl_ms is not None
        get = key.slot.get
        for number in range(*key.cells[self._number]):
            data = get(chunk_place(prefix, number))
            if data is None:
                continue  # swept
            if expires:
                if expiry_of(data) <= key.now_ms:
                    continue
                data = data[_EXPIRY_BYTES:]
            yield data


class MapVariable(_Variable):
    """Values by a key of the user's."""

    _kind = ENTRY
    _made: Callable[[Any], Any] | None = None
    """What `getValue` makes of a value, if that is not the value itself."""

    def __init__(
        self, key: OpenKey, number: int, keys: Codec, codec: Codec, ttl_ms: int | None
    ) -> None:
        super().__init__(key, number, codec, ttl_ms)
        self._encode_key = keys.encode
        self._decode_key = keys.decode

    def exists(self) -> bool:
        if not self._key.cells.get(self._number):
            return False
        return self._ttl_ms is None or next(self._entries(), None) is not None

    def getValue(self, key: Any) -> Any:
        part = self._encode_key(key)
        open_key = self._key
        if not open_key.cells.get(self._number):
            return None
        is_long = len(part) > USER_KEY_BYTES_MAX
        if is_long:
            part = user_part(part)
        data = open_key.slot.get(self._begin() + part)
        if data is None:
            return None
        if is_long or self._ttl_ms is not None:
            found = self._read(part, data)
            if found is None:
                return None
            data = found[1]
        value = self._decode(data)
        return value if self._made is None else self._made(value)

    def containsKey(self, key: Any) -> bool:
        part = user_part(self._encode_key(key))
        if not self._key.cells.get(self._number):
            return False
        data = self._key.slot.get(self._begin() + part)
        return data is not None and self._read(part, data) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        part, data = self._encode_key(key), self._encode(value)
        if len(part) > USER_KEY_BYTES_MAX:
            data = _encode((part, data))
            part = user_part(part)
        open_key, prefix = self._key, self._begin()
        slot, place = open_key.slot, prefix + part
        count = open_key.cells.get(self._number, 0)
        is_new = not count or slot.get(place) is None
        if self._ttl_ms is not None:
            expiry_ms = open_key.now_ms + self._ttl_ms
            data = _stamped(expiry_ms, data)
            if is_new:
                self._note(expiry_ms, place)
        slot.put(place, data)
        open_key.touch(prefix, place)
        if is_new:
            open_key.cells[self._number] = count + 1
            open_key.dirty = True

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        keys, values = self._decode_key, self._decode
        return ((keys(key), values(value)) for key, value in self._entries())

    def keys(self) -> Iterator[Any]:
        decode = self._decode_key
        return (decode(key) for key, _ in self._entries())

    def values(self) -> Iterator[Any]:
        decode = self._decode
        return (decode(value) for _, value in self._entries())

    def removeKey(self, key: Any) -> None:
        place = self._begin() + user_part(self._encode_key(key))
        open_key = self._key
        count = open_key.cells.get(self._number)
        if count and open_key.slot.get(place) is not None:
            self._remove(place, count)

    def clear(self) -> None:
        open_key = self._key
        count = open_key.cells.pop(self._number, None)
        if count:
            prefix = self._begin()
            for place, _ in open_key.entries(prefix, count):
                open_key.slot.delete(place)
                open_key.touch(prefix, place)
            open_key.dirty = True

    def _remove(self, place: bytes, count: int) -> None:
        open_key = self._key
        open_key.slot.delete(place)
        open_key.touch(self._begin(), place)
        if count == 1:
            del open_key.cells[self._number]
        else:
            open_key.cells[self._number] = count - 1
        open_key.dirty = True

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the entries that are there for a reader, as they are at the call."""
        count = self._key.cells.get(self._number)
        if not count:
            return iter(())
        prefix = self._begin()
        found = self._key.entries(prefix, count)
        cut = len(prefix)
        return filter(None, (self._read(place[cut:], data) for place, data in found))

    def _read(self, part: bytes, data: bytes) -> tuple[bytes, bytes] | None:
        """The key and the value of an entry; None if it has expired."""
        if self._ttl_ms is not None:
            if expiry_of(data) <= self._key.now_ms:
                return None
            data = data[_EXPIRY_BYTES:]
        if is_digest(part):
            user_key, data = _decode(data)
            return user_key, data
        return part, data

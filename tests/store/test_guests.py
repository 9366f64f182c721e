"""A slot as it was a step before: all that was in it, at a cost that goes by what is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from braided.store.slots.cache_port import MemoryImage, Tag, Undo, address_of
from braided.store.slots.catch_up import Opened
from braided.store.slots.guests import BeforeImage
from braided.store.slots.layout import CHUNK, ENTRY, VALUE, record_suffix
from braided.store.slots.slot import SlotState
from braided.store.variables.layout import key_part, variable_suffix
from braided.store.variables.moving import belongings_of

ADDRESS = address_of(0, 1)
_places = st.binary(min_size=1, max_size=2)
_slots = st.dictionaries(_places, st.binary(max_size=1), max_size=12)


def _reopen() -> Opened:
    raise AssertionError("nothing here fails")


def _image(items: dict[bytes, bytes]) -> MemoryImage:
    return MemoryImage({ADDRESS + suffix: value for suffix, value in items.items()})


@given(_slots, _slots, _places, _places)
def test_it_is_read_as_it_was_whatever_was_changed_since(
    before: dict[bytes, bytes], after: dict[bytes, bytes], start: bytes, stop: bytes
) -> None:
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    undo = Undo(Tag("a"), changed, [before.get(key) for key in changed])
    image, expected = BeforeImage(_image(after), ADDRESS, undo), _image(before)
    found = list(image.scan(ADDRESS + start, ADDRESS + stop))
    assert found == list(expected.scan(ADDRESS + start, ADDRESS + stop))
    assert all(image.get(ADDRESS + key) == before.get(key) for key in {**before, **after})


class Counted(bytes):
    """A suffix that counts how often it is compared, with the address before it too."""

    compared: ClassVar[int] = 0

    def __radd__(self, address: Any) -> Counted:
        return Counted(bytes(address) + bytes(self))

    def __lt__(self, other: bytes) -> bool:
        Counted.compared += 1
        return bytes(self) < bytes(other)

    def __ge__(self, other: bytes) -> bool:
        Counted.compared += 1
        return bytes(self) >= bytes(other)

    def __gt__(self, other: bytes) -> bool:
        Counted.compared += 1
        return bytes(self) > bytes(other)


def _items(keys: list[bytes]) -> dict[bytes, bytes]:
    items = {record_suffix(key)[0]: b"r" for key in keys}
    for key in keys:
        for kind in (VALUE, CHUNK, ENTRY):
            prefix = variable_suffix(kind, key_part(key), 0)
            items |= {prefix + bytes([number]): b"v" for number in range(4)}
    return items


def _comparisons(count: int) -> int:
    """What it takes to read all keys of a slot whose own task is done, and has let go of them."""
    keys = [msgspec.msgpack.encode((number,)) for number in range(1000, 1000 + count)]
    items = _items(keys)
    suffixes = sorted(items)
    counted: list[bytes] = list(map(Counted, suffixes))
    undo = Undo(Tag("a"), counted, [items[suffix] for suffix in suffixes])
    image = BeforeImage(MemoryImage({}), ADDRESS, undo)
    Counted.compared = 0
    found = belongings_of(keys, SlotState(ADDRESS, Opened(Tag("a"), image), _reopen))
    assert {suffix for each in found.values() for suffix, _ in each} == set(items)
    return Counted.compared


def test_keys_of_a_slot_whose_task_is_done_cost_no_more_each_where_there_are_more_of_them() -> None:
    few, many = _comparisons(100), _comparisons(400)
    assert 0 < many < 1.5 * 4 * few


class Watched(MemoryImage):
    """Counts the items that it gives out."""

    given: ClassVar[int] = 0

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(start, stop):
            Watched.given += 1
            yield item


def test_no_more_is_read_than_is_asked_for() -> None:
    items = {ADDRESS + b"m%03d" % number: b"v" for number in range(100)}
    undo = Undo(Tag("a"), [b"m000", b"m050"], [None, b"w"])
    image = BeforeImage(Watched(items), ADDRESS, undo)
    slot = SlotState(ADDRESS, Opened(Tag("a"), image), _reopen)
    assert slot.first(b"m") == b"m001"
    assert Watched.given == 2

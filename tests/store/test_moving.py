"""Keys that change slots take along all they have, and nothing of any other key."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from braided.store.slots.slot import SlotState, empty_slot
from braided.store.variables.moving import belongings_of, is_piece
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import (
    INLINE_BYTES_MAX,
    Codec,
    ListVariable,
    MapVariable,
    ValueVariable,
)

PLAIN = Codec(msgspec.msgpack.encode, lambda data: tuple(msgspec.msgpack.decode(data)))
NAMES = ["a", "b", "aa", "x" * 200, "x" * 201, "y" * 700, "y" * 701]
KEYS = [msgspec.msgpack.encode((name,)) for name in NAMES]

_acts = st.lists(
    st.one_of(
        st.tuples(st.just("value"), st.sampled_from([1, 2 * INLINE_BYTES_MAX])),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("entry"), st.sampled_from(["u", "v", "w" * 400])),
        st.tuples(st.just("timer"), st.integers(0, 5)),
    ),
    max_size=6,
)


def _does(slot: SlotState, key: bytes, acts: list[tuple[str, Any]], ttl_ms: int | None) -> None:
    open_key = OpenKey(now_ms=100)
    value = ValueVariable(open_key, 0, PLAIN, ttl_ms)
    items = ListVariable(open_key, 1, PLAIN, ttl_ms)
    entries = MapVariable(open_key, 2, PLAIN, PLAIN, ttl_ms)
    open_key.open(slot, key)
    for act, with_ in acts:
        if act == "value":
            value.update(("z" * with_,))
        elif act == "append":
            items.appendList([(number,) for number in range(with_)])
        elif act == "entry":
            entries.updateValue((with_,), (1,))
        else:
            open_key.set_timer(with_)
    open_key.close()


@given(
    keys=st.permutations(KEYS).map(lambda keys: keys[:3]),
    acts=st.lists(_acts, min_size=3, max_size=3),
    ttl_ms=st.sampled_from([None, 10]),
    count=st.integers(0, 3),
)
def test_all_of_some_keys_moves_and_nothing_else(
    keys: list[bytes], acts: list[list[tuple[str, Any]]], ttl_ms: int | None, count: int
) -> None:
    moving = keys[:count]
    donor, taker = empty_slot(), empty_slot()
    alone, others = empty_slot(), empty_slot()
    for number, (key, does) in enumerate(zip(keys, acts, strict=True)):
        _does(donor, key, does, ttl_ms)
        _does(alone if number < count else others, key, does, ttl_ms)
    for items in belongings_of(moving, donor).values():
        for suffix, value in items:
            donor.delete(suffix)
            taker.put(suffix, value)
    assert taker.items() == alone.items()
    assert donor.items() == others.items()
    pieces = {suffix for suffix in alone.items() if is_piece(suffix)}
    assert pieces == {suffix for suffix in alone.items() if suffix[:1] in (b"v", b"l", b"m")}
    assert belongings_of(moving, donor) == {}

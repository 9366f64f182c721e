"""Many keys with slots of their own: a value that is looked up, changed and compared as a whole."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.key_assignment import NO_KEYS, KeyAssignment
from braided.control.routing.key_moves import moved_keys, slot_of_key
from braided.control.routing.pins import assign_keys, hash_slot, pin_key, unpin_key, without_shares
from braided.control.routing.table import Pin, RoutingTable

SLOTS = 8
# Few hashes, of which some are the same: keys that differ in where they are null share one.
KEYS = [(b"key %d" % n, (n // 3 - 4) * 1_000_003, n) for n in range(24)]
LOWEST = -(2**63)

assignments = st.dictionaries(st.sampled_from(KEYS), st.integers(0, SLOTS - 1)).map(
    lambda slots: (slots, made(slots))
)


def made(slots: dict[tuple[bytes, int, int], int]) -> KeyAssignment:
    keys = list(slots)
    columns = zip(*keys, strict=True) if keys else ([], [], [])
    return KeyAssignment.of(*map(list, columns), list(slots.values()))


@given(assignments, assignments, st.randoms())
def test_it_is_a_value_that_says_where_each_key_is(one: tuple, two: tuple, chance: object) -> None:
    slots, value = one
    shuffled = dict(sorted(slots.items(), key=lambda item: hash((item, id(chance)))))
    again = made(shuffled)
    assert again == value and hash(again) == hash(value) and again.digest == value.digest
    assert (value == two[1]) == (slots == two[0])
    for key in KEYS:
        assert value.slot_of(*key[1:]) == slots.get(key)
    assert KeyAssignment.of_batch(value.to_batch()) == value
    assert value.outline() == value and value.outline().count == len(value) == len(slots)
    assert value.updated(two[1]) == made({**slots, **two[0]})
    gone = value.without(two[1].hashes, two[1].checks)
    assert gone == made({key: slot for key, slot in slots.items() if key not in two[0]})


def test_what_is_no_assignment_is_refused() -> None:
    with pytest.raises(ValueError, match="assigned twice"):
        KeyAssignment.of([b"a", b"b"], [1, 1], [2, 2], [0, 1])
    with pytest.raises(ValueError, match="two hashes and a slot"):
        KeyAssignment.of([b"a"], [1, 1], [2, 2], [0, 1])
    with pytest.raises(ValueError, match="below 0"):
        KeyAssignment.of([b"a"], [LOWEST], [2**63 - 1], [-1])
    far = KeyAssignment.of([b"a"], [LOWEST], [2**63 - 1], [SLOTS])
    with pytest.raises(ValueError, match=f"assigned to slot {SLOTS}, and there are {SLOTS}"):
        replace(RoutingTable.initial(SLOTS, 2), assigned=far)
    assert not NO_KEYS and NO_KEYS.outline() == NO_KEYS
    with pytest.raises(ValueError, match="read-only"):
        far.slots[0] = 1


def slot_in(table: RoutingTable, key: tuple[bytes, int, int]) -> int:
    """The rule, one key at a time: pin, then assignment, then hash."""
    for pin in table.pins:
        if pin.key == key[0]:
            return pin.slot
    for data, slot in zip(
        table.assigned.keys.to_pylist(), table.assigned.slots.tolist(), strict=True
    ):
        if data == key[0]:
            return int(slot)
    return hash_slot(key[1], SLOTS)


SHARES = st.just(()) | st.lists(st.integers(0, SLOTS - 1), min_size=2, unique=True).map(tuple)
CHANGES = st.one_of(
    assignments.map(lambda found: found[1]),
    st.builds(
        lambda key, slot, shares: Pin(*key, slot, shares),
        st.sampled_from(KEYS),
        st.integers(0, SLOTS - 1),
        SHARES,
    ),
    st.sampled_from(KEYS).map(lambda key: key[0]),
)


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=8))
def test_the_keys_that_move_are_those_whose_slot_differs(batches: list[list[object]]) -> None:
    table = RoutingTable.initial(SLOTS, 3)
    for changes in batches:
        before = table
        for change in changes:
            if isinstance(change, KeyAssignment):
                table = assign_keys(table, change, before.epoch + 1)
            elif isinstance(change, Pin):
                table = pin_key(table, change, before.epoch + 1)
            else:
                assert isinstance(change, bytes)
                table = unpin_key(table, change, before.epoch + 1)
        assert table.epoch == before.epoch + (table != before)
        triples = moved_keys(before, table).triples()
        expected = {
            (key[0], slot_in(before, key), slot_in(table, key))
            for key in KEYS
            if slot_in(before, key) != slot_in(table, key)
        }
        assert set(triples) == expected and len(triples) == len(expected)
        assert all(slot_of_key(table, *key[1:]) == slot_in(table, key) for key in KEYS)
        # A start with an operator that can't merge any more moves nothing.
        whole = without_shares(table, table.epoch + 1)
        assert not any(pin.shares for pin in whole.pins) and not len(moved_keys(table, whole))


def test_pinned_and_split_keys_are_not_moved_by_an_assignment() -> None:
    (hot, split, cold) = KEYS[:3]
    table = RoutingTable.initial(SLOTS, 2)
    table = pin_key(table, Pin(*hot, 5), 1)
    table = pin_key(table, Pin(*split, hash_slot(split[1], SLOTS), (1, 2)), 2)
    after = assign_keys(table, made(dict.fromkeys(KEYS[:3], 7)), 3)
    assert [key for key, _, _ in moved_keys(table, after).triples()] == [cold[0]]
    # Let go, it goes where it is assigned to; made whole, it stays where its state is.
    assert moved_keys(after, unpin_key(after, hot[0], 4)).triples() == [(hot[0], 5, 7)]
    whole = without_shares(after, 4)
    assert not len(moved_keys(after, whole)) and whole.pins[1].shares == ()


def test_assigned_keys_stay_through_every_change_of_the_table() -> None:
    table = assign_keys(RoutingTable.initial(SLOTS, 2), made({KEYS[0]: 3}), 1)
    after = table.next(np.zeros(SLOTS, dtype=int), 4)
    assert after.assigned == table.assigned and after.keeps_keys_of(table)
    assert table != RoutingTable(table.epoch, table.channels, table.slots)
    assert not table.routes_as(RoutingTable(table.epoch, table.channels, table.slots))
    assert assign_keys(table, made({KEYS[0]: 3}), 9) is table


def test_a_hundred_thousand_keys_are_compared_at_once() -> None:
    """By the column, and not by the key: so a key costs a small part of a dictionary's look-ups."""
    chance = np.random.default_rng(1)
    count = 100_000
    hashes = chance.integers(LOWEST, 2**63 - 1, count)
    keys = [b"key %d" % n for n in range(count)]
    one = KeyAssignment.of(keys, hashes, hashes ^ 5, chance.integers(0, 256, count))
    two = KeyAssignment.of(keys, hashes, hashes ^ 5, chance.integers(0, 256, count))
    tables = [replace(RoutingTable.initial(256, 4), assigned=each) for each in (one, two)]
    begun = time.thread_time()
    moved = moved_keys(*tables)
    took = time.thread_time() - begun
    assert len(moved) == int((one.slots != two.slots).sum())
    begun = time.thread_time()
    for hash in hashes[:500].tolist():
        slot_of_key(tables[0], hash, hash ^ 5)
    assert took < 50 * (time.thread_time() - begun)

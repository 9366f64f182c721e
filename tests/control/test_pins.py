"""Keys that change slots: every key is in one slot, and moves between slots of one channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.hot_keys import free_slot
from braided.control.routing.key_moves import moved_keys
from braided.control.routing.pins import hash_slot, pin_key, unpin_key, without_shares
from braided.control.routing.table import Pin, RoutingTable
from support.operator_views import view

SLOTS = 8
KEYS = [Pin(b"%d" % n, hash=n * 1_000_003 - 5_000, check=n, slot=0) for n in range(6)]


def slot_of(table: RoutingTable, key: Pin) -> int:
    for pin in table.pins:
        if pin.key == key.key:
            return pin.slot
    return hash_slot(key.hash, SLOTS)


NUMBERS = st.integers(0, SLOTS - 1)
SHARES = st.just(()) | st.lists(NUMBERS, min_size=2, unique=True).map(tuple)


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), NUMBERS | st.none(), SHARES), max_size=20),
    st.integers(0, 100),
)
def test_a_key_that_moves_leaves_the_slot_it_was_in_for_one_of_the_same_channel(
    changes: list[tuple[Pin, int | None, tuple[int, ...]]], seed: int
) -> None:
    chance = np.random.default_rng(seed)
    table = RoutingTable.initial(SLOTS, 3)
    for key, slot, shares in changes:
        before = table
        table = table.next(chance.integers(0, 3, SLOTS))
        if slot is None:
            table = unpin_key(table, key.key, before.epoch + 1)
        else:
            pin = Pin(key.key, key.hash, key.check, slot, shares)
            table = pin_key(table, pin, before.epoch + 1)
            split = {pin.key: pin.shares for pin in table.pins}
            assert split.get(key.key, ()) == shares
        moved = moved_keys(before, table)
        assert set(moved.triples()) == {
            (k.key, slot_of(before, k), slot_of(table, k))
            for k in KEYS
            if slot_of(before, k) != slot_of(table, k)
        }
        assert np.array_equal(table.slots[moved.donors], table.slots[moved.takers])
        assert len({pin.key for pin in table.pins}) == len(table.pins)
        assert not len(moved) or table.epoch == before.epoch + 1
        assert table.pins == before.pins or table.epoch == before.epoch + 1
        assert all(pin.shares or pin.slot != hash_slot(pin.hash, SLOTS) for pin in table.pins)
        whole = without_shares(table, table.epoch + 1)
        assert not any(pin.shares for pin in whole.pins) and not len(moved_keys(table, whole))


def test_pins_stay_through_every_change_of_the_table() -> None:
    pin = Pin(b"hot", hash=2, check=0, slot=5)
    table = pin_key(RoutingTable.initial(SLOTS, 2), pin, 1)
    assert table.next(np.zeros(SLOTS, dtype=int), 4).pins == (pin,)
    assert table != RoutingTable(table.epoch, table.channels, table.slots)
    with pytest.raises(ValueError, match="slot that is not there"):
        RoutingTable(0, 2, table.slots, (Pin(b"hot", 2, 0, SLOTS),))
    with pytest.raises(ValueError, match="slot that is not there"):
        RoutingTable(0, 2, table.slots, (Pin(b"hot", 2, 0, 1, (0, SLOTS)),))


def test_a_hot_key_goes_to_the_slot_with_least_work_and_then_least_state() -> None:
    pins = (Pin(b"other", hash=1, check=0, slot=4),)
    table = RoutingTable(0, 2, np.zeros(SLOTS, dtype=int), pins)
    load = np.array([3, 9, 0, 0, 0, 1, 1, 1.0])
    state = np.array([0, 0, 50, 20, 0, 0, 0, 0.0])
    assert free_slot(view(table, load, state_bytes=state), donor=1) == 3
    assert free_slot(view(RoutingTable.initial(1, 1), np.ones(1)), donor=0) == 0

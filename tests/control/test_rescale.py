"""Rescaling keeps every slot owned, moves only what must move, and leaves channels balanced."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.balance import imbalance
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Loads, RoutingTable, moves
from support.routing_tables import tables, tables_with_load

CHANNELS = st.integers(1, 16)


@given(tables_with_load(), CHANNELS, st.booleans())
def test_only_what_must_move_moves(
    given_table: tuple[RoutingTable, Loads], channels: int, by_load: bool
) -> None:
    table, load = given_table
    after = rescale(table, channels, load if by_load else None)
    assert (after.channels, after.slots.size) == (channels, table.slots.size)
    moved = moves(table, after)
    if channels >= table.channels:
        assert (after.slots[moved] >= table.channels).all()
    else:
        assert moved.tolist() == np.flatnonzero(table.slots >= channels).tolist()


@given(st.integers(1, 100), CHANNELS, st.lists(CHANNELS, max_size=6))
def test_counts_stay_within_one_through_any_series(
    slots: int, channels: int, series: list[int]
) -> None:
    table = RoutingTable.initial(slots, channels)
    for step in series:
        after = rescale(table, step)
        if step > table.channels:
            # As few as the new channels' fair share.
            fair = sum(sorted(after.counts())[: step - table.channels])
            assert moves(table, after).size <= fair + (step - table.channels)
        table = after
        assert np.ptp(table.counts()) <= 1


@given(tables(), CHANNELS)
def test_a_lopsided_table_is_evened_as_far_as_the_rule_allows(
    table: RoutingTable, channels: int
) -> None:
    counts = rescale(table, channels).counts()
    if channels > table.channels:
        old, new = counts[: table.channels], counts[table.channels :]
        assert old.max() <= max(1, new.min() + 1)
    elif channels < table.channels:
        # Whoever was given a slot has no more than one above the least.
        given_some = counts > table.counts()[:channels]
        assert (counts[given_some] <= counts.min() + 1).all()


@given(tables_with_load(), CHANNELS)
def test_the_same_question_has_the_same_answer(
    given_table: tuple[RoutingTable, Loads], channels: int
) -> None:
    table, load = given_table
    assert rescale(table, channels, load) == rescale(table, channels, load)
    assert rescale(table, channels) == rescale(table, channels, np.zeros(table.slots.size))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_with_many_slots_the_load_is_even(before: int, after: int, seed: int) -> None:
    load = np.random.default_rng(seed).exponential(size=512)
    table = rescale(RoutingTable.initial(512, before), after, load)
    # What stays put on shrinking is as uneven as it was, so that is not judged.
    if after > before:
        assert imbalance(table, load) < 1.1


@pytest.mark.parametrize("idle", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("lopsided", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 40), (50, 51), (50, 500), (300, 330)])
def test_many_slots_move_at_once_by_the_same_rule(
    before: int, after: int, lopsided: bool, idle: float
) -> None:
    chance = np.random.default_rng(before * after)
    load = chance.exponential(size=8192) * (chance.random(8192) >= idle)
    slots = chance.integers(0, before, 8192)
    if lopsided:
        slots[:4096] = 0
    table = RoutingTable(0, before, slots)
    grown = rescale(table, after, load)
    assert grown == rescale(table, after, load)
    moved = moves(table, grown)
    assert (grown.slots[moved] >= before).all()
    # New ones are filled to where the fullest of the old ones are, which alone give.
    for each in (load, (load == 0).astype(float)):
        loads = np.bincount(grown.slots, weights=each if idle < 1 else None, minlength=after)
        most = 2 * max(1.0, each.max())
        gave = np.unique(table.slots[moved])
        assert np.ptp(loads[before:]) <= most
        assert loads[:before].max() <= max(loads[before:].min(), loads.sum() / after) + most
        assert loads[gave].min() >= loads[before:].max() - most
        if idle:
            break
    shrunk = rescale(grown, before, load)
    assert moves(grown, shrunk).tolist() == np.flatnonzero(grown.slots >= before).tolist()


def test_as_many_slots_as_there_may_be_change_channels_in_no_more_than_a_few_sorts() -> None:
    slots = 1 << 17
    load = np.random.default_rng(2).exponential(size=slots)
    table = RoutingTable.initial(slots, 4000)

    def least_s(work: Callable[..., object], *given: object) -> float:
        took = []
        for _ in range(3):
            begun = time.process_time()
            work(*given)
            took.append(time.process_time() - begun)
        return min(took)

    sorting = least_s(np.argsort, load)
    for channels in (4001, 4400, 8000, 3600, 2000):
        assert least_s(rescale, table, channels, load) < 15 * sorting, channels


def test_a_channel_that_can_not_be_helped_does_not_keep_the_others_from_sharing() -> None:
    table = RoutingTable(0, 2, np.array([0, 1, 1, 1, 1]))
    after = rescale(table, 3, [100, 5, 5, 5, 5])
    assert after.counts().tolist() == [1, 2, 2]


def test_slots_without_load_are_shared_by_count() -> None:
    load = np.zeros(40)
    load[:4] = 10.0
    grown = rescale(RoutingTable.initial(40, 2), 4, load)
    assert grown.counts().tolist() == [10, 10, 10, 10]
    assert np.bincount(grown.slots, weights=load).tolist() == [10, 10, 10, 10]
    assert rescale(grown, 2, load).counts().tolist() == [20, 20]


def test_more_channels_than_slots_leaves_some_without_any() -> None:
    after = rescale(RoutingTable.initial(3, 1), 8)
    assert sorted(after.counts().tolist()) == [0, 0, 0, 0, 0, 1, 1, 1]
    assert rescale(after, 1).counts().tolist() == [3]


def test_the_same_number_of_channels_is_the_same_table() -> None:
    table = RoutingTable(7, 2, np.array([0, 0, 0, 1]))
    assert rescale(table, 2) is table


def test_the_epoch_advances_even_if_no_slot_moves() -> None:
    table = RoutingTable(7, 2, np.array([0]))
    assert rescale(table, 3) == RoutingTable(8, 3, np.array([0]))


def test_bad_questions_are_refused() -> None:
    table = RoutingTable.initial(4, 2)
    with pytest.raises(ValueError, match="at least one channel"):
        rescale(table, 0)
    with pytest.raises(ValueError, match="4 slots have 3 loads"):
        rescale(table, 3, [1, 2, 3])
    with pytest.raises(ValueError, match="finite"):
        rescale(table, 3, [1, 2, 3, float("nan")])

"""Executors: slots stay in their range, channels go where the load is, and names change little."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.balance import channel_loads
from braided.control.routing.executors import (
    Layout,
    balance_within,
    divide_channels,
    reshape,
    resize,
)
from braided.control.routing.table import Loads, RoutingTable, moves


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, Loads]:
    executors = draw(st.integers(1, 6))
    slots = draw(st.integers(executors, 60))
    channels = draw(st.integers(executors, 16))
    load = draw(st.lists(st.integers(0, 50), min_size=slots, max_size=slots))
    return Layout.even(slots, executors, channels), np.array(load, dtype=float)


@given(layouts(), st.data())
def test_channels_are_named_anew_only_where_the_total_shrinks(
    given_layout: tuple[Layout, Loads], data: st.DataObject
) -> None:
    layout, _ = given_layout
    size = len(layout.channels)
    counts = data.draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    after, renamed = resize(layout, counts)
    assert [len(own) for own in after.channels] == counts
    assert after.bounds == layout.bounds
    for old, new in renamed.items():
        assert old >= after.total > new
    for before, own in zip(layout.channels, after.channels, strict=True):
        kept = {renamed.get(channel, channel) for channel in before[: len(own)]}
        assert kept <= set(own)
    if after.total >= layout.total:
        assert not renamed


@given(layouts(), st.integers(0, 12))
def test_the_busiest_executor_is_as_idle_as_can_be(
    given_layout: tuple[Layout, Loads], more: int
) -> None:
    layout, load = given_layout
    loads = layout.loads(load)
    counts = divide_channels(loads, loads.size + more)
    assert sum(counts) == loads.size + more
    assert min(counts) >= 1
    worst = max(loads / counts)
    # To take a channel from anybody would make that one as bad or worse.
    for j, count in enumerate(counts):
        if count > 1 and sum(counts) > loads.size:
            assert loads[j] / (count - 1) >= worst - 1e-9


@given(layouts(), st.sampled_from([1.05, 1.2, 2.0]), st.booleans())
def test_every_slot_ends_on_a_channel_of_its_executor(
    given_layout: tuple[Layout, Loads], theta: float, at_home: bool
) -> None:
    layout, load = given_layout
    size = layout.bounds[-1]
    table = layout.table() if at_home else RoutingTable.initial(size, layout.total)
    after = balance_within(layout, table, load, theta)
    assert layout.is_within(after.slots).all()
    assert after.channels == layout.total
    # No channel is above what theta or the largest slot allows in some executor.
    allowed = []
    for (low, high), own in zip(pairwise(layout.bounds), layout.channels, strict=True):
        part = load[low:high]
        mean = part.sum() / len(own)
        allowed.append(max(theta * mean, mean + part.max()))
    assert channel_loads(after, load).max() <= max(allowed) + 1e-9
    assert balance_within(layout, after, load, theta) is after


def test_only_the_executor_that_needs_it_is_touched() -> None:
    layout = Layout.even(40, 4, 8)
    load = np.ones(40)
    table = layout.table()
    load[12] = 5
    moved = moves(table, balance_within(layout, table, load, 1.1))
    assert moved.size
    assert ((moved >= 10) & (moved < 20)).all()


def test_executors_below_a_peak_that_stays_are_left_alone() -> None:
    layout = Layout.even(8, 2, 4)
    # The first has one giant slot; the second is uneven too, but nobody waits for it.
    load = np.array([20.0, 1, 1, 1, 3, 1, 3, 1])
    table = layout.table()
    moved = moves(table, balance_within(layout, table, load, 1.1))
    assert moved.tolist() == [2]  # away from the giant; 4 to 7 stay


def test_an_executor_that_outgrows_a_host_is_split_where_its_load_is_halved() -> None:
    layout = Layout.even(100, 2, 20)
    load = np.full(100, 0.125)
    load[:10] = 1.0
    after, reasons = reshape(layout, load, host_channels=8)
    assert after.bounds == (0, 8, 50, 100)
    assert [len(own) for own in after.channels] == [5, 5, 10]
    assert "split at 8" in reasons[0]


def test_neighbours_with_little_to_do_are_merged_and_not_split_again() -> None:
    layout = Layout.even(100, 10, 20)
    load = np.full(100, 0.05)
    after, reasons = reshape(layout, load, host_channels=8)
    assert 1 < len(after.channels) < 10
    assert reasons
    again, more = reshape(after, load, host_channels=8)
    assert again == after
    assert not more


def test_layouts_that_can_not_be_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be 5 executors"):
        Layout.even(4, 5, 8)
    with pytest.raises(ValueError, match="one executor"):
        Layout((0, 2, 4), ((0,), (0,)))
    with pytest.raises(ValueError, match="need a channel each"):
        divide_channels(np.ones(3), 2)
    with pytest.raises(ValueError, match="undo each other"):
        reshape(Layout.even(4, 2, 2), np.ones(4), 8, split=1.0, merge=0.6)

"""Channels of different speeds: times are evened out, and equal speeds are as ever."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.policies.balancers import Autoflow, Elasticutor, Rc
from braided.control.routing.balance import channel_times, imbalance, rebalance
from braided.control.routing.executors import Layout, balance_within
from braided.control.routing.refine_by_speed import refine_by_speed
from braided.control.routing.table import Loads, RoutingTable
from support.operator_views import view


@st.composite
def cases(draw: st.DrawFn) -> tuple[RoutingTable, Loads, Loads]:
    channels = draw(st.integers(1, 6))
    slots = draw(st.integers(channels, 40))
    where = draw(st.lists(st.integers(0, channels - 1), min_size=slots, max_size=slots))
    weight = st.sampled_from([0.0, 0.1, 1.0, 1.0, 2.0, 7.0])
    load = draw(st.lists(weight, min_size=slots, max_size=slots))
    speed = st.sampled_from([1.0, 0.5, 0.25, 0.1])
    speeds = draw(st.lists(speed, min_size=channels, max_size=channels))
    return RoutingTable(0, channels, np.array(where)), np.array(load), np.array(speeds)


@given(cases())
def test_every_move_lowers_the_sorted_times_and_none_is_left(
    case: tuple[RoutingTable, Loads, Loads],
) -> None:
    table, load, speeds = case
    slots = table.slots.copy()

    def times() -> list[float]:
        loads = np.bincount(slots, weights=load, minlength=table.channels)
        return sorted((loads / speeds).round(9).tolist(), reverse=True)

    seen = [times()]
    loads = np.bincount(slots, weights=load, minlength=table.channels).astype(float)
    for move in refine_by_speed(table.slots, load, loads, speeds):
        slots[move.slot] = move.channel
        seen.append(times())
    assert all(after < before for before, after in pairwise(seen))
    # No single slot could go anywhere from the fullest channel.
    loads = np.bincount(slots, weights=load, minlength=table.channels)
    fullest = int((loads / speeds).argmax())
    for slot in np.flatnonzero((slots == fullest) & (load > 0)).tolist():
        for channel in range(table.channels):
            if channel != fullest:
                after = (loads[channel] + load[slot]) / speeds[channel]
                assert after >= (loads[fullest] / speeds[fullest]) * (1 - 1e-6)


@given(cases())
def test_rebalancing_never_makes_it_worse_and_comes_to_rest(
    case: tuple[RoutingTable, Loads, Loads],
) -> None:
    table, load, speeds = case
    after = rebalance(table, load, 1.05, speeds=speeds)
    assert imbalance(after, load, speeds) <= imbalance(table, load, speeds) + 1e-9
    for _ in range(4):
        before, after = after, rebalance(after, load, 1.05, speeds=speeds)
        assert imbalance(after, load, speeds) <= imbalance(before, load, speeds) + 1e-9
    assert rebalance(after, load, 1.05, speeds=speeds) is after
    if (speeds == speeds[0]).all():
        equal = rebalance(table, load, 1.05)
        assert imbalance(equal, load) == pytest.approx(imbalance(after, load, speeds), rel=0.25)


@given(st.integers(0, 100))
def test_light_slots_are_spread_by_speed(seed: int) -> None:
    chance = np.random.default_rng(seed)
    load = chance.uniform(0.5, 1.5, 1024)
    speeds = np.array([1.0, 0.5, 1.0, 0.25])
    table = rebalance(RoutingTable.initial(1024, 4), load, 1.02, speeds=speeds)
    assert imbalance(table, load, speeds) <= 1.02
    share = np.bincount(table.slots, weights=load) / load.sum()
    assert share == pytest.approx(speeds / speeds.sum(), rel=0.05)


@pytest.mark.parametrize("policy", [Elasticutor(1.05), Rc(1.05), Autoflow()])
def test_balance_policies_go_by_the_speeds_of_channels(
    policy: Elasticutor | Rc | Autoflow,
) -> None:
    speeds = np.array([1.0, 1.0, 0.25])
    table = RoutingTable.initial(300, 3)
    for _ in range(20):
        operator = view(table, np.ones(300), speeds=speeds)
        table = policy.balance(operator, 3)
    counts = table.counts()
    assert counts[2] < 50 < 120 < counts[0]
    # A channel that is new counts as fast until it has a host.
    more = policy.balance(view(table, np.ones(300), speeds=speeds), 4)
    assert more.counts()[3] > 60


def test_executors_even_out_times_within_their_channels() -> None:
    layout = Layout.even(400, 2, 4)
    speeds = np.array([1.0, 0.25, 1.0, 1.0])
    table = balance_within(layout, layout.table(), np.ones(400), 1.05, 1.02, speeds)
    assert table.counts().tolist() == [160, 40, 100, 100]
    assert channel_times(table, np.ones(400), speeds).max() == 160
    assert balance_within(layout, table, np.ones(400), 1.05, 1.02, speeds) is table

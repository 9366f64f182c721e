"""Every balance policy: valid tables, as even as slots allow, few moves, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from braided.control.policies.balancers import (
    Autoflow,
    Consistent,
    Elasticutor,
    Rc,
    Static,
    hotspot_moves,
)
from braided.control.policy import BalancePolicy
from braided.control.registry import balance_policy, policy_names
from braided.control.routing.balance import channel_loads, imbalance
from braided.control.routing.ring import ring
from braided.control.routing.table import Loads, RoutingTable, moves
from support.cases import cases
from support.operator_views import view
from support.routing_tables import tables_with_load

POLICIES = [balance_policy(name) for name in policy_names()["balance"]]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@settings(max_examples=cases(50))
@given(tables_with_load(), st.integers(1, 14))
def test_every_slot_has_one_channel_and_the_answer_is_always_the_same(
    policy: BalancePolicy, given_table: tuple[RoutingTable, Loads], channels: int
) -> None:
    table, load = given_table
    after = policy.balance(view(table, load), channels)
    assert after.channels == channels
    assert after.slots.size == table.slots.size
    assert 0 <= after.slots.min() <= after.slots.max() < channels
    assert after.epoch == table.epoch + (after is not table)
    assert after == policy.balance(view(table, load), channels)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@settings(max_examples=cases(50))
@given(tables_with_load(), st.integers(1, 14))
def test_asked_again_it_moves_nothing(
    policy: BalancePolicy, given_table: tuple[RoutingTable, Loads], channels: int
) -> None:
    table, load = given_table
    after = policy.balance(view(table, load), channels)
    for _ in range(40):  # autoflow evens out one pair at a time
        again = policy.balance(view(after, load), channels)
        if not isinstance(policy, Autoflow):
            assert again is after
        if again is after:
            return
        after = again
    raise AssertionError("it never comes to rest")


@pytest.mark.parametrize("policy", [Elasticutor(), Elasticutor(1.05), Rc()])
@settings(max_examples=cases(50))
@given(tables_with_load(), st.integers(1, 14))
def test_balance_is_within_what_the_largest_slot_allows(
    policy: Elasticutor | Rc, given_table: tuple[RoutingTable, Loads], channels: int
) -> None:
    table, load = given_table
    assume(load.sum() > 0)
    after = policy.balance(view(table, load), channels)
    mean = load.sum() / channels
    peak = channel_loads(after, load).max()
    # Any channel above the average by more than its largest slot could give that slot away.
    assert peak <= max(policy.theta * mean, mean + load.max()) + 1e-9


@given(tables_with_load(), st.sampled_from([1.05, 1.2, 1.5]))
def test_who_is_balanced_is_left_alone_and_who_is_not_moves_less_than_everything(
    given_table: tuple[RoutingTable, Loads], theta: float
) -> None:
    table, load = given_table
    after = Elasticutor(theta).balance(view(table, load), table.channels)
    if imbalance(table, load) <= theta:
        assert after is table
    else:
        moved = moves(table, after)
        assert (load[moved] > 0).all()
        assert imbalance(after, load) <= imbalance(table, load)


@given(st.integers(1, 300), st.integers(1, 30), st.integers(1, 30))
def test_on_the_ring_no_slot_moves_between_channels_that_stay(
    slots: int, before: int, after: int
) -> None:
    old, new = ring(slots, before), ring(slots, after)
    stays = min(before, after)
    moved = old != new
    assert ((old[moved] >= stays) | (new[moved] >= stays)).all()


def test_the_ring_is_balanced_and_moves_a_fair_share() -> None:
    counts = np.bincount(ring(8192, 16), minlength=16)
    assert counts.max() < 1.35 * 512
    moved = np.count_nonzero(ring(8192, 16) != ring(8192, 17))
    assert moved == pytest.approx(8192 / 17, rel=0.35)


def test_the_ring_is_the_same_in_every_process() -> None:
    assert ring(12, 3).tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0, 2, 1, 0]


def test_the_policy_consistent_stays_on_the_ring() -> None:
    table = RoutingTable(0, 4, ring(100, 4))
    after = Consistent().balance(view(table, np.ones(100)), 5)
    assert after.slots.tolist() == ring(100, 5).tolist()
    assert (
        Consistent().balance(view(after, np.ones(100)), 4).slots.tolist() == ring(100, 4).tolist()
    )


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_table_that_never_was_on_the_ring_does_not_go_there_first(
    before: int, after: int
) -> None:
    # As a query begins: slots modulo channels.
    table = RoutingTable.initial(256, before)
    changed = Consistent().balance(view(table, np.ones(256)), after)
    moved = moves(table, changed)
    if after > before:
        assert (changed.slots[moved] >= before).all()
        assert moved.size <= 1.6 * 256 * (after - before) / after
    else:
        assert moved.size == np.count_nonzero(table.slots >= after)


def test_autoflow_moves_slots_worth_half_the_gap_the_largest_that_fit_first() -> None:
    table = RoutingTable(0, 3, np.array([0, 0, 0, 0, 0, 1, 2]))
    load = np.array([50.0, 30, 8, 2, 0, 40, 10])
    # The gap is 80, half of it 40: 50 does not fit, 30 and 8 and 2 do, and 0 is ignored.
    moved, to = hotspot_moves(table, load, 0.2)
    assert (moved.tolist(), to) == ([1, 2, 3], 2)


def test_autoflow_leaves_a_small_gap_alone() -> None:
    table = RoutingTable(0, 2, np.array([0, 1]))
    assert hotspot_moves(table, np.array([10.0, 8.1]), 0.2)[0].size == 0
    assert hotspot_moves(table, np.array([0.0, 0.0]), 0.2)[0].size == 0


def test_static_looks_at_no_load() -> None:
    table = RoutingTable.initial(8, 2)
    load = np.array([9.0, 0, 9, 0, 9, 0, 9, 0])
    assert Static().balance(view(table, load), 2) is table
    assert Static().balance(view(table, load), 3).slots.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]

"""Seats: nobody is placed for more than it has to cost."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.seating import Costs, Seats, assign_seats


@st.composite
def problems(draw: st.DrawFn) -> tuple[Costs, Seats]:
    hosts, channels = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    cost = st.lists(st.integers(-3, 9), min_size=hosts, max_size=hosts)
    costs = draw(st.lists(cost, min_size=channels, max_size=channels))
    seats = draw(st.lists(st.integers(0, 4), min_size=hosts, max_size=hosts))
    seats[0] += max(0, channels - sum(seats))
    return np.array(costs, dtype=np.int64).reshape(channels, hosts), np.array(seats)


def _assign(costs: Costs, seats: Seats) -> Seats:
    hosts = costs.shape[1]
    return assign_seats(costs, seats, np.zeros(hosts, dtype=np.int64), np.ones(hosts))


@given(problems())
def test_the_sum_of_costs_is_the_least_there_is(problem: tuple[Costs, Seats]) -> None:
    costs, seats = problem
    channels, hosts = costs.shape
    chosen = _assign(costs, seats)
    assert (np.bincount(chosen, minlength=hosts) <= seats).all()
    best = min(
        sum(int(costs[c, h]) for c, h in enumerate(each))
        for each in product(range(hosts), repeat=channels)
        if all(each.count(h) <= seats[h] for h in range(hosts))
    )
    assert int(costs[np.arange(channels), chosen].sum()) == best


def test_it_takes_a_chain_through_all_hosts_where_that_is_cheaper() -> None:
    # Everybody wants host 0 and has a second choice next door: a pair that changes places does
    # not help, all three have to.
    costs = np.array([[0, 1, 50], [0, 40, 1], [0, 45, 46]])
    assert _assign(costs, np.array([1, 1, 1])).tolist() == [1, 2, 0]


def test_of_equal_hosts_the_one_with_most_room_is_taken() -> None:
    costs = np.zeros((7, 3), dtype=np.int64)
    taken, room = np.array([3, 0, 0]), np.array([4.0, 4.0, 2.0])
    chosen = assign_seats(costs, np.array([9, 9, 9]), taken, room)
    assert np.bincount(chosen).tolist() == [1, 4, 2]


def test_too_few_seats_are_refused() -> None:
    with pytest.raises(ValueError, match="2 channels can't have 1 seats"):
        _assign(np.zeros((2, 2), dtype=np.int64), np.array([0, 1]))


def test_many_channels_and_hosts_take_no_time_worth_speaking_of() -> None:
    chance = np.random.default_rng(1)
    costs = chance.integers(0, 1_000_000, size=(256, 32))
    chosen = _assign(costs, np.full(32, 8))
    # Nobody would change places with anybody.
    mine = costs[np.arange(256), chosen]
    swapped = costs[:, chosen]
    assert (swapped + swapped.T >= mine[:, None] + mine[None, :]).all()

"""Keys on hosts: valid, within α where the weights allow, and together with whom they occur."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.locality.graph import HostRoom, KeyGraph, host_loads, local_share
from braided.control.locality.partition import (
    bound_holds,
    limits,
    match_parts,
    partition,
    refine_hosts,
)
from braided.control.locality.seats import host_numbers, seat_keys
from braided.control.routing.table import RoutingTable


def _graph(keys: list[int], edges: list[tuple[int, int, float]], load: list[float]) -> KeyGraph:
    """`keys` is how many each operator has; edges are between numbers over all of them."""
    return KeyGraph(
        len(keys),
        np.repeat(np.arange(len(keys)), keys),
        np.array(load),
        np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2),
        np.array([edge[2] for edge in edges]),
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[KeyGraph, HostRoom, float]:
    """A chain or a branch of operators, hosts that may differ, and what is fixed on them."""
    operators = draw(st.integers(2, 3))
    keys = [draw(st.integers(1, 60)) for _ in range(operators)]
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    first = np.cumsum([0, *keys])
    shape = draw(st.sampled_from([((0, 1), (1, 2)), ((0, 1), (0, 2)), ((0, 2), (1, 2))]))
    edges = {}
    for here, there in (edge for edge in shape if edge[1] < operators):
        for _ in range(draw(st.integers(0, 80))):
            pair = (
                first[here] + chance.integers(keys[here]),
                first[there] + chance.integers(keys[there]),
            )
            edges[pair] = float(chance.integers(1, 50))
    skew = draw(st.sampled_from([0.0, 0.5, 1.5]))
    load = np.concatenate([np.arange(1, n + 1) ** -skew * chance.random(n) for n in keys])
    hosts = draw(st.integers(1, 9))
    uneven = draw(st.booleans())
    capacity = chance.random((operators, hosts)) + 0.5 if uneven else np.ones((operators, hosts))
    if draw(st.booleans()) and hosts > 2:
        capacity[0, 0] = 0.0  # a host without a channel of the first operator
    capacity /= capacity.sum(axis=1, keepdims=True)
    fixed = capacity * draw(st.sampled_from([0.0, 1.0, 50.0]))
    zones = tuple(n % 2 for n in range(hosts)) if draw(st.booleans()) else ()
    graph = _graph(keys, [(a, b, w) for (a, b), w in edges.items()], load.tolist())
    return graph, HostRoom(capacity, fixed, zones), draw(st.sampled_from([1.03, 1.1, 1.5]))


@given(graphs())
def test_every_key_has_a_host_that_can_take_it_and_bounds_hold_where_they_must(
    case: tuple[KeyGraph, HostRoom, float],
) -> None:
    graph, room, alpha = case
    host_of = partition(graph, room, alpha, seed=3)
    assert host_of.shape == (graph.keys,)
    assert (room.capacity[graph.operator_of, host_of] > 0).all()
    if bound_holds(graph, room, alpha):
        assert (host_loads(graph, room, host_of) <= limits(graph, room, alpha) * (1 + 1e-6)).all()
    assert np.array_equal(host_of, partition(graph, room, alpha, seed=3))


@given(graphs())
def test_moving_single_keys_never_makes_an_even_table_less_local(
    case: tuple[KeyGraph, HostRoom, float],
) -> None:
    graph, room, alpha = case
    if not bound_holds(graph, room, alpha):
        return
    before = partition(graph, room, alpha, seed=1)
    after = refine_hosts(graph, room, alpha, before)
    close = room.closeness if room.has_zones else None
    assert local_share(graph, after, close) >= local_share(graph, before, close) - 1e-9


def test_the_bound_holds_with_many_light_keys_and_hosts_that_differ() -> None:
    chance = np.random.default_rng(0)
    keys = 4000
    edges = [(a, keys + a, 5.0) for a in range(keys)]
    graph = _graph([keys, keys], edges, (chance.random(2 * keys) + 0.5).tolist())
    capacity = np.array([[0.4, 0.3, 0.2, 0.1]] * 2)
    fixed = np.array([[400.0, 200.0, 100.0, 50.0]] * 2)
    room = HostRoom(capacity, fixed)
    assert bound_holds(graph, room, 1.03)
    host_of = partition(graph, room, 1.03)
    assert (host_loads(graph, room, host_of) <= limits(graph, room, 1.03) * (1 + 1e-6)).all()
    assert local_share(graph, host_of) > 0.9


def test_an_operator_has_its_own_bound_whatever_the_others_have() -> None:
    # By the sum of both operators, all of the first on one host and all of the second on the
    # other would be even.
    graph = _graph([100, 100], [(0, 100, 1.0)], [1.0] * 200)
    loads = host_loads(graph, HostRoom.even(2, 2), partition(graph, HostRoom.even(2, 2), 1.05))
    assert (loads <= 1.05 * 50).all()


def test_a_chain_of_three_operators_is_cut_as_one_graph() -> None:
    groups, each = 4, 30
    edges, load = [], [1.0] * (3 * groups * each)
    for key in range(groups * each):
        for step in (0, 1):
            here, there = step * groups * each, (step + 1) * groups * each
            same = key % groups + groups * ((key // groups + 1) % each)
            edges += [(here + key, there + key, 3.0), (here + key, there + same, 2.0)]
    graph = _graph([groups * each] * 3, edges, load)
    host_of = partition(graph, HostRoom.even(3, groups), 1.1)
    assert local_share(graph, host_of) > 0.95


def test_what_can_not_be_on_one_host_is_in_one_zone() -> None:
    # Two groups of keys, each too much for a host and right for a zone of two.
    edges, keys = [], 80
    for key in range(keys):
        group = key % 2
        edges += [(key, keys + other, 1.0) for other in range(group, keys, 2)]
    graph = _graph([keys, keys], edges, [1.0] * (2 * keys))
    shape = np.full((2, 4), 0.25)
    zoned = HostRoom(shape, np.zeros_like(shape), (0, 1, 0, 1))
    host_of = partition(graph, zoned, 1.05)
    zone = np.array(zoned.zone_of)[host_of]
    assert local_share(graph, zone) == 1.0


def test_parts_are_named_after_the_hosts_that_have_their_state() -> None:
    kept = np.array([[0.0, 5.0, 1.0], [9.0, 0.0, 8.0], [0.0, 4.0, 0.0]])
    # 9 and 4 on their own hosts leave 1; the best is 8, 5 and nothing, or 9, 5, 0: 14 against 14.
    found = match_parts(kept, np.zeros_like(kept))
    assert sorted(found.tolist()) == [0, 1, 2]
    assert kept[np.arange(3), found].sum() == 14.0
    full = np.zeros_like(kept)
    full[1, 0] = 1.0  # the second part is too much for the first host
    assert match_parts(kept, full)[1] != 0


def test_another_cut_that_differs_by_names_alone_moves_nothing() -> None:
    keys, groups = 500, 5
    edges = [(a, keys + (a + groups * n) % keys, 5.0) for a in range(keys) for n in range(4)]
    graph = _graph([keys, keys], edges, [1.0] * (2 * keys))
    room = HostRoom.even(2, groups)
    first = partition(graph, room, 1.03, seed=0)
    assert local_share(graph, first) == 1.0
    renamed = (first + 2) % groups
    assert np.array_equal(partition(graph, room, 1.03, seed=9, now=renamed), renamed)


def test_slots_are_on_the_host_of_their_keys_and_channels_are_even() -> None:
    table = RoutingTable(1, 8, np.arange(128) % 8, hosts=tuple("aabbccdd"))
    chance = np.random.default_rng(2)
    keys = 2000
    hosts = ("a", "b", "c", "d")
    channel_host = host_numbers(table, hosts)
    hash_slot = chance.integers(0, 128, keys)
    key_host = chance.integers(0, 4, keys)
    load = chance.random(keys)
    slot_load = np.bincount(hash_slot, load, 128)
    seats = seat_keys(table, channel_host, key_host, load, hash_slot, hash_slot, slot_load)
    assert np.array_equal(channel_host[table.slots[seats.slot]], key_host)
    at_home = channel_host[table.slots[hash_slot]] == key_host
    assert not seats.is_entry[at_home].any() and not seats.moves[at_home].any()
    assert seats.is_entry[~at_home].all()
    by_channel = np.bincount(table.slots[seats.slot], load, 8)
    assert by_channel.max() / by_channel.mean() < 1.1
    again = seat_keys(table, channel_host, key_host, load, hash_slot, seats.slot, slot_load)
    assert not again.moves.any()


def test_a_host_without_a_channel_gets_no_key() -> None:
    table = RoutingTable(1, 2, np.arange(8) % 2, hosts=("a", "b"))
    at = np.array([0, 1, 2])
    seats = seat_keys(
        table,
        host_numbers(table, ("a", "b", "c")),
        np.array([2, 2, 2]),
        np.ones(3),
        at,
        at,
        np.ones(8),
    )
    assert not seats.moves.any()


def test_a_channel_without_slots_takes_no_keys() -> None:
    # The third channel and the fourth have no slots: one is its host's only one, one is not.
    table = RoutingTable(1, 4, np.array([0, 1, 0, 1]), hosts=("a", "b", "c", "b"))
    hash_slot, now_slot = np.array([0, 1, 0]), np.array([0, 2, 2])
    seats = seat_keys(
        table,
        host_numbers(table, ("a", "b", "c")),
        np.array([2, 2, 1]),
        np.ones(3),
        hash_slot,
        now_slot,
        np.ones(4),
    )
    assert np.array_equal(seats.slot[:2], hash_slot[:2])
    assert table.slots[seats.slot[2]] == 1
    assert seats.is_entry.tolist() == [False, False, True]


@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_a_bound_below_one_is_refused(alpha: float) -> None:
    graph = _graph([1, 1], [(0, 1, 1.0)], [1.0, 1.0])
    with pytest.raises(ValueError, match="at least 1"):
        partition(graph, HostRoom.even(2, 2), alpha)

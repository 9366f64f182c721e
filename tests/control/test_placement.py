"""Placement: everybody has the cores asked for, near what there was, intense ones at home."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.placement import Demand, Infeasible, place_cores, place_cores_naively

MB = 1e6


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Demand], list[dict[int, int]], list[int]]:
    hosts = draw(st.integers(1, 5))
    cores = [draw(st.integers(1, 6)) for _ in range(hosts)]
    free = [i for i, n in enumerate(cores) for _ in range(n)]
    count = draw(st.integers(1, min(6, len(free))))
    order = draw(st.permutations(free))
    cuts = sorted(draw(st.lists(st.integers(0, len(free)), min_size=count, max_size=count)))
    current = [dict(Counter(order[low:high])) for low, high in zip([0, *cuts], cuts, strict=False)]
    left = len(free) - count
    demands = []
    for _ in range(count):
        more = draw(st.integers(0, left))
        left -= more
        demands.append(
            Demand(
                cores=1 + more,
                host=draw(st.integers(0, hosts - 1)),
                state_bytes=draw(st.sampled_from([0, 10 * MB, 200 * MB])),
                bytes_per_s=draw(st.sampled_from([0.0, 1e4, 1e6, 1e8])),
            )
        )
    return demands, current, cores


@given(problems())
def test_everybody_gets_what_was_asked_for_and_no_core_is_given_twice(
    problem: tuple[list[Demand], list[dict[int, int]], list[int]],
) -> None:
    demands, current, cores = problem
    for placement in (
        place_cores(demands, current, cores),
        place_cores_naively(demands, current, cores),
    ):
        used: Counter[int] = Counter()
        for demand, mine in zip(demands, placement.cores, strict=True):
            assert sum(mine.values()) == demand.cores
            used.update(mine)
        assert all(used[host] <= cores[host] for host in used)
    assert place_cores(demands, current, cores) == place_cores(demands, current, cores)


@given(problems())
def test_who_has_what_is_asked_for_keeps_it(
    problem: tuple[list[Demand], list[dict[int, int]], list[int]],
) -> None:
    demands, current, cores = problem
    placement = place_cores(demands, current, cores)
    again = place_cores(demands, placement.cores, cores)
    assert again.cores == placement.cores
    assert again.moved_bytes == 0


def test_it_moves_less_state_than_the_naive_way() -> None:
    current = [{2: 4}, {1: 4}, {0: 4}]
    demands = [Demand(3, 2, 100 * MB), Demand(5, 1, 100 * MB), Demand(4, 0, 100 * MB)]
    cores = [4, 4, 4]
    ours, naive = place_cores(demands, current, cores), place_cores_naively(demands, current, cores)
    assert ours.cores == ({2: 3}, {1: 4, 2: 1}, {0: 4})
    assert ours.moved_bytes == pytest.approx(20 * MB)
    assert naive.moved_bytes > 5 * ours.moved_bytes


def test_an_intense_executor_takes_cores_of_its_own_host_from_others() -> None:
    # Host 0 is full. Executor 1 is idle enough to be sent to host 1.
    current = [{0: 2}, {0: 2}]
    demands = [Demand(3, 0, MB, bytes_per_s=30e6), Demand(2, 0, MB, bytes_per_s=1.0)]
    placement = place_cores(demands, current, [4, 4])
    assert placement.cores == ({0: 3}, {0: 1, 1: 1})
    assert placement.phi_bytes_per_s == 512 * 1024


def test_the_threshold_doubles_until_remote_cores_are_accepted() -> None:
    demands = [Demand(6, 0, MB, bytes_per_s=30e6)]
    placement = place_cores(demands, [{0: 4}], [4, 4])
    assert placement.cores == ({0: 4, 1: 2},)
    assert placement.phi_bytes_per_s >= 30e6 / 6 > placement.phi_bytes_per_s / 2


def test_free_cores_cost_nothing_and_are_taken_first() -> None:
    placement = place_cores([Demand(2, 0, MB), Demand(1, 0, MB)], [{0: 1}, {0: 2}], [4, 4])
    assert placement.cores == ({0: 2}, {0: 1})


def test_the_last_core_of_an_executor_is_not_taken() -> None:
    current = [{0: 1}, {0: 1}]
    demands = [Demand(2, 0, MB, bytes_per_s=1e9), Demand(1, 0, MB)]
    placement = place_cores(demands, current, [2, 1])
    assert placement.cores == ({0: 1, 1: 1}, {0: 1})


def test_more_cores_than_there_are_is_said_at_once() -> None:
    with pytest.raises(Infeasible, match="9 cores are asked for and there are 8"):
        place_cores([Demand(9, 0)], [{}], [4, 4])
    with pytest.raises(ValueError, match="at least one core"):
        place_cores([Demand(0, 0)], [{}], [4])

"""M/M/k agrees with Erlang C and with a simulated network; the greedy allocation is optimal."""

from __future__ import annotations

import itertools
import math

import ciw
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import poisson

from braided.control.policies.queueing import Station, allocate, erlang_c, sojourn_s

RATES = st.floats(0.1, 50.0)


def erlang_c_of_scipy(offered: float, channels: int) -> float:
    """By the Poisson distribution, which has the same terms."""
    top = poisson.pmf(channels, offered)
    rest = (1 - offered / channels) * poisson.cdf(channels - 1, offered)
    return float(top / (top + rest))


@given(st.floats(0.01, 0.99), st.integers(1, 400))
def test_the_probability_of_waiting_is_erlangs_c(used: float, channels: int) -> None:
    offered = used * channels
    assert erlang_c(offered, channels) == pytest.approx(
        erlang_c_of_scipy(offered, channels), rel=1e-6, abs=1e-12
    )


@given(RATES, RATES, st.integers(1, 60))
def test_more_work_than_channels_takes_for_ever_and_one_channel_is_mm1(
    arrival: float, service: float, channels: int
) -> None:
    time_s = sojourn_s(arrival, service, channels)
    assert math.isinf(time_s) == (arrival >= channels * service)
    if arrival < service * 0.99:
        assert sojourn_s(arrival, service, 1) == pytest.approx(1 / (service - arrival))


def test_a_network_takes_as_long_as_a_simulation_of_it() -> None:
    # A source of 8 rows/s, an operator that passes on half of them, and one after it.
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(8.0), None],
        service_distributions=[ciw.dists.Exponential(3.0), ciw.dists.Exponential(2.5)],
        routing=[[0.0, 0.5], [0.0, 0.0]],
        number_of_servers=[4, 2],
    )
    ciw.seed(7)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_time(3000)
    times: dict[int, float] = {}
    for record in simulation.get_all_records():
        if record.arrival_date > 100:
            spent = record.waiting_time + record.service_time
            times[record.id_number] = times.get(record.id_number, 0.0) + spent
    simulated_s = sum(times.values()) / len(times)
    stations = [Station(8.0, 3.0, weight=1.0), Station(4.0, 2.5, weight=0.5)]
    model_s = stations[0].time_s(4) + stations[1].time_s(2)
    assert model_s == pytest.approx(simulated_s, rel=0.08)


@st.composite
def networks(draw: st.DrawFn) -> list[Station]:
    count = draw(st.integers(1, 3))
    return [
        Station(
            arrival_rate=draw(st.floats(0.1, 20)),
            service_rate=draw(st.floats(2, 20)),
            weight=draw(st.floats(0.1, 2)),
            batch_s=draw(st.sampled_from([0.0, 0.3, 2.0])),
        )
        for _ in range(count)
    ]


@given(networks(), st.floats(0.05, 3), st.integers(1, 24))
def test_the_greedy_allocation_is_the_best_there_is(
    stations: list[Station], target_s: float, available: int
) -> None:
    found = allocate(stations, target_s, available)
    least = [station.least() for station in stations]
    if sum(least) > available:
        assert not found.feasible
        assert sum(found.channels) <= max(available, len(stations))
        return
    choices = itertools.product(*[range(n, n + available - sum(least) + 1) for n in least])
    every = {
        choice: sum(s.time_s(n) for s, n in zip(stations, choice, strict=True))
        for choice in choices
        if sum(choice) <= available
    }
    # No other split of as many channels is faster ...
    used = sum(found.channels)
    fastest = min(time_s for choice, time_s in every.items() if sum(choice) == used)
    assert found.time_s == pytest.approx(fastest)
    # ... and no smaller number meets the target.
    meets = [sum(choice) for choice, time_s in every.items() if time_s <= target_s]
    assume(not any(abs(time_s - target_s) < 1e-9 for time_s in every.values()))
    assert found.feasible == bool(meets)
    if meets:
        assert used == min(meets)


def test_it_begins_at_the_least_number_that_keeps_up() -> None:
    # 4 rows/s at 2 rows/s a channel: two are not enough, and three are; the paper begins at four.
    assert Station(4.0, 2.0).least() == 3
    assert allocate([Station(4.0, 2.0)], math.inf, 10).channels == (3,)
    assert Station(4.1, 2.0).least() == 3


def test_a_station_takes_no_more_channels_than_it_may() -> None:
    found = allocate([Station(4.0, 2.0, channels_max=4), Station(1.0, 2.0)], 0.0, 20)
    assert found.channels[0] == 4
    assert not found.feasible


def test_what_does_not_keep_up_goes_where_most_load_is() -> None:
    found = allocate([Station(30.0, 1.0), Station(10.0, 1.0)], 1.0, 8)
    assert found.channels == (6, 2)
    assert math.isinf(found.time_s)

"""SASO on simulated plants: it settles, stays, does not overshoot, and knows congestion that is
not its own; as printed it does not.
"""

from __future__ import annotations

import numpy as np
import pytest

from braided.control.levels import level_of, levels
from braided.control.measure.view import FlowView
from braided.control.policies.saso import Saso, SasoState, saso_step
from braided.control.policies.saso_paper import SasoPaper
from braided.control.policy import Limits, ScalePolicy
from braided.control.routing.table import RoutingTable
from braided.sim.arrivals import Constant, Sine, Steps
from braided.sim.region import Region, RegionPeriod, run_region, settling, tracking
from support.operator_views import flow, view

STEPS = Steps(((250, 5000), (100, 10_000), (150, 2000)))
SINE = Sine(5000, 2500, 500)
LEVELS = levels(1, 32)


def channels(periods: list[RegionPeriod]) -> list[int]:
    return [period.channels for period in periods]


def test_levels_are_the_papers_series() -> None:
    assert LEVELS == (1, 2, 3, 4, 6, 8, 11, 16, 23, 32)
    assert levels(2, 20) == (2, 3, 4, 6, 8, 11, 16, 20)
    assert levels(3, 3) == (3,)
    assert [level_of(n, LEVELS) for n in (1, 5, 6, 40)] == [0, 3, 4, 9]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_channel", [400.0, 700.0, 1000.0])
def test_steps_are_met_within_the_levels_and_three_periods(
    noise: float, seed: int, per_channel: float
) -> None:
    region = Region(STEPS, per_channel=per_channel, noise=noise, seed=seed)
    periods = run_region(region, Saso(), 1500)
    met = settling(periods, STEPS.changes(1500), LEVELS)
    assert len(met) == 9
    for each in met:
        assert each.periods <= each.levels + 3
        assert (each.overshoot, each.oscillations) == (0, 0)
    assert sum(p.handled for p in periods) > 0.95 * sum(p.load for p in periods)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_a_sine_is_followed_without_turns_of_its_own(noise: float, seed: int) -> None:
    periods = run_region(Region(SINE, noise=noise, seed=seed), Saso(), 2000)
    met = tracking(periods, LEVELS)
    assert met.periods <= met.levels + 3
    assert (met.overshoot, met.oscillations) == (0, 0)
    assert sum(p.handled for p in periods) > 0.97 * sum(p.load for p in periods)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_remote_congestion_is_recognised(noise: float, seed: int) -> None:
    region = Region(Constant(9000), remote=4000, noise=noise, seed=seed)
    used = channels(run_region(region, Saso(), 500))
    # One period above to find out, and never again.
    assert used[:5] == [1, 2, 3, 4, 6]
    assert set(used[5:]) == {4}


def test_as_printed_it_hops_between_two_levels_for_ever() -> None:
    used = channels(run_region(Region(Constant(9000), remote=4000), SasoPaper(), 500))
    assert used[20:] == [4, 6] * 40 or used[20:] == [6, 4] * 40


def test_as_printed_one_per_cent_of_noise_climbs_to_the_top() -> None:
    for seed in range(5):
        region = Region(Constant(9000), remote=4000, noise=0.01, seed=seed)
        assert max(channels(run_region(region, SasoPaper(), 1000))) == 32


def test_when_the_remote_bottleneck_has_cleared_it_looks_up_again_in_time() -> None:
    state, used = SasoState(), []
    for period in range(400):
        remote = 2000 if period < 100 else 1e9
        capacity = min(LEVELS[state.level] * 1000, remote)
        state, _ = saso_step(state, LEVELS, min(5000, capacity), capacity < 5000)
        used.append(LEVELS[state.level])
    assert set(used[5:100]) == {2}
    assert used[-1] == 6


@pytest.mark.parametrize(("interval_s", "periods"), [(1.0, 120), (2.0, 60), (30.0, 20)])
def test_how_long_it_believes_that_more_is_no_better_is_a_time(
    interval_s: float, periods: int
) -> None:
    memory: dict[str, object] = {}
    used = [1]
    for _ in range(200):
        table, rate = RoutingTable.initial(64, used[-1]), 1000.0 * min(used[-1], 2)
        seen = view(table, np.zeros(64), throughput=rate, congestion=0.8)
        wishes, memory = Saso().scale(
            flow(seen, interval_s=interval_s), Limits(channels_max=32), memory
        )
        used.append(wishes["o"].channels)
    looks = [n for n, channels in enumerate(used) if channels > 2]
    assert periods <= looks[1] - looks[0] <= periods + 2


@pytest.mark.parametrize("policy", [Saso(threshold=0.0), SasoPaper(threshold=0.0)])
def test_with_a_threshold_of_0_noise_is_congestion_and_channels_are_never_given_back(
    policy: ScalePolicy,
) -> None:
    periods = run_region(Region(STEPS, noise=0.01), policy, 1500)
    low = [p for p in periods if p.load == 2000][5:]
    assert all(p.channels > p.needed for p in low)
    good = run_region(Region(STEPS, noise=0.01), Saso(), 1500)
    settled = [p for p in good if p.load == 2000]
    assert sum(p.channels == p.needed for p in settled) > 0.7 * len(settled)


@pytest.mark.parametrize("policy", [Saso(threshold=0.9), SasoPaper(threshold=0.9)])
def test_with_a_threshold_of_0_9_load_is_left_unhandled(policy: ScalePolicy) -> None:
    periods = run_region(Region(STEPS, noise=0.01), policy, 1500)
    assert max(channels(periods)) < 6
    assert sum(p.handled for p in periods) < 0.7 * sum(p.load for p in periods)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3])
def test_in_between_the_threshold_hardly_matters(threshold: float) -> None:
    periods = run_region(Region(STEPS, noise=0.01), Saso(threshold=threshold), 1500)
    assert channels(periods) == channels(run_region(Region(STEPS, noise=0.01), Saso(), 1500))


def test_the_most_sensitive_reacts_to_less() -> None:
    def least_drop(sensitivity: float) -> int:
        for drop in range(1, 100):
            state = SasoState(level=3)
            for throughput in (4000.0, 4000.0 * (1 - drop / 100)):
                before = state.level
                state, _ = saso_step(state, LEVELS, throughput, False, sensitivity)
            if state.level < before:
                return drop
        return 100

    assert least_drop(1.0) < least_drop(0.5) < least_drop(0.0)


def test_memory_survives_a_restart_above_the_lowest_level() -> None:
    limits = Limits(channels_max=32)

    def seen(channels: int, throughput: float, congestion: float) -> FlowView:
        table = RoutingTable.initial(64, channels)
        state = {"throughput": throughput, "congestion": congestion}
        return flow(view(table, np.zeros(64), **state), interval_s=1.0)

    memory: dict[str, object] = {}
    used = 1
    for _ in range(8):
        waits = 0.8 if used * 1000 < 5000 else 0.0
        wishes, memory = Saso().scale(seen(used, min(5000, used * 1000), waits), limits, memory)
        used = wishes["o"].channels
    assert used == 6
    kept, _ = Saso().scale(seen(6, 2000, 0.0), limits, memory)
    assert kept["o"].channels == 4  # less load: what was congested below may not be now
    fresh, _ = Saso().scale(seen(6, 2000, 0.0), limits, {})
    assert fresh["o"].channels == 6  # nobody knows what is below: not down into the unknown

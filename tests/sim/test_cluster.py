"""The simulated cluster: the same run from the same seed, and policies that do what they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from braided.control.events import Decided, Judged
from braided.control.policies.balancers import Elasticutor, Rc, Static
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policies.model import Model
from braided.control.policies.saso import Saso
from braided.control.policy import Limits
from braided.control.settings import Settings
from braided.sim import SCENARIOS
from braided.sim.arrivals import Constant, Spike
from braided.sim.cluster import Cluster, SimFlow, SimOperator, simulate
from braided.sim.keys import Hotspot, Zipf
from support.scenarios import result_of

FIXED = Limits(channels_min=16, channels_max=16)


def skewed(skew: float, shuffles: float) -> SimFlow:
    keys = Zipf(keys=10_000, skew=skew, shuffles_per_minute=shuffles)
    return SimFlow(
        Cluster(hosts=2, cores=8),
        (SimOperator("sum", keys, channels=16),),
        Constant(9000),
        duration_s=90,
    )


SURGE = SimFlow(
    Cluster(hosts=4, cores=8),
    (SimOperator("sum", Zipf(), channels=3),),
    Spike(2000, 8000, 40, 20),
    duration_s=100,
)


def test_a_run_is_determined_by_its_seed() -> None:
    flow = replace(skewed(0.8, 4), duration_s=20)
    once, again = simulate(flow, Settings()), simulate(flow, Settings())
    assert once == again
    assert once != simulate(replace(flow, seed=1), Settings())


@pytest.mark.parametrize("shuffles", [0, 2, 16])
@pytest.mark.parametrize("skew", [0.5, 0.8])
def test_slots_are_balanced_to_near_the_bound_from_the_second_batch_on(
    skew: float, shuffles: float
) -> None:
    flow = skewed(skew, shuffles)
    run = simulate(flow, Settings(scale=Off(), limits=FIXED))
    keys = flow.operators[0].keys
    versions = [keys.version(b.start_s) for b in run.batches]
    settled = [
        b.bound_ratio
        for n, b in enumerate(run.batches)
        if n and versions[n] == versions[n - 1]  # not the first one of a new distribution
    ]
    assert np.median(settled) <= 1.15
    static = simulate(flow, Settings(scale=Off(), balance=Static(), limits=FIXED))
    assert np.median(settled) < np.median([b.bound_ratio for b in static.batches])


def test_whoever_synchronises_everybody_pays_for_it() -> None:
    flow = skewed(0.8, 16)
    ours = simulate(flow, Settings(scale=Off(), balance=Elasticutor(1.05), limits=FIXED))
    rc = simulate(flow, Settings(scale=Off(), balance=Rc(1.05), limits=FIXED))
    assert rc.summary()["latency_s"] > ours.summary()["latency_s"]


@pytest.mark.parametrize("policy", [Ds2(), Model(target_s=1.5)])
def test_a_surge_is_followed_within_three_batches(policy: Ds2 | Model) -> None:
    run = simulate(SURGE, Settings(scale=policy, limits=Limits(channels_max=32)))
    first = next(b.batch for b in run.batches if b.start_s > 41)
    assert max(b.channels for b in run.batches[first : first + 4]) >= 9
    # And back, when it is over; channels are cheap enough to wait for calm.
    assert run.batches[-1].channels <= 6
    still = simulate(SURGE, Settings(scale=Off()))
    assert run.summary()["latency_p99_s"] < 0.2 * float(still.summary()["latency_p99_s"])


def test_a_surge_that_is_seen_coming_delays_nobody() -> None:
    calm = SimFlow(
        Cluster(hosts=1, cores=16, overhead_s=0.35, channel_s=0.045),
        (SimOperator("work", Zipf(keys=500, skew=0.0), channels=2),),
        Spike(500, 2000, 15, 20),
        duration_s=60,
        sized=True,
    )
    seen = Settings(limits=Limits(channels_max=16))
    large = Settings(limits=Limits(channels_min=8, channels_max=8))
    run = simulate(calm, seen)
    best = max(b.latency_max_s for b in simulate(calm, large).batches[5:])
    assert max(b.latency_max_s for b in run.batches[5:]) <= 1.2 * best
    ideal = 2 * 40 + 8 * 20
    assert sum(b.channels * max(1.0, b.duration_s) for b in run.batches) <= 1.3 * ideal
    surge = next(n for n, b in enumerate(run.batches) if b.start_s > 15.5)
    said = next(e for e in run.events if isinstance(e, Decided) and e.batch == surge)
    assert said.reason.startswith("input comes 3.9 times as fast")
    assert run.batches[surge].channels == said.channels_after > 2


def test_saso_follows_a_surge_level_by_level_and_comes_to_rest() -> None:
    flow = replace(SURGE, arrivals=Spike(2000, 5000, 40, 200), duration_s=140)
    run = simulate(flow, Settings(scale=Saso(), limits=Limits(channels_max=32)))
    used = [b.channels for b in run.batches]
    assert 6 <= used[-1] <= 11
    assert len(set(used[-20:])) == 1
    assert np.median([b.duration_s for b in run.batches[-20:]]) < 1


def test_executors_keep_slots_on_their_own_channels() -> None:
    keys = Hotspot(hot_keys=200, share=0.5, every_s=20)
    flow = SimFlow(
        Cluster(hosts=4, cores=8),
        (SimOperator("sum", keys, slots=512, channels=16),),
        Constant(9000),
        duration_s=60,
    )
    settings = Settings(scale=Off(), limits=FIXED, executors=4, reshape_every_batches=25)
    run = simulate(flow, settings)
    assert run.summary()["imbalance"] < 1.6
    kinds = {e.kind for e in run.events if isinstance(e, Decided)}
    assert "balance" in kinds


def test_decisions_say_what_they_expect_and_are_judged() -> None:
    run = simulate(SURGE, Settings(limits=Limits(channels_max=32)))
    scaled = [e for e in run.events if isinstance(e, Decided) and e.kind == "scale-up"]
    judged = {e.decision: e for e in run.events if isinstance(e, Judged)}
    assert scaled
    for decision in scaled:
        assert decision.metric in ("throughput", "busiest_share")
        assert decision.reason
        assert decision.held or judged[decision.decision].verdict != "ineffective"


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "locality"])
def test_every_scenario_runs_and_draws(name: str) -> None:
    result = result_of(name)
    assert result.table
    assert result.panels
    assert all(np.isfinite(v) for v in result.fields.values() if isinstance(v, float))


def _with_a_slow_host(speed: float, shuffles: float = 0.0, from_s: float = 20.0) -> SimFlow:
    """Four hosts with four channels each and room to spare; one of them is slow, some time on."""
    keys = Zipf(keys=10_000, skew=0.5, shuffles_per_minute=shuffles)
    return SimFlow(
        Cluster(hosts=4, cores=4, speeds=(speed,), slow_from_s=from_s),
        (SimOperator("sum", keys, slots=512, row_s=0.0002, channels=16),),
        Constant(40_000),
        duration_s=100,
    )


@pytest.mark.parametrize("speed", [0.7, 0.5, 0.25])
def test_a_slow_host_gets_less_and_then_nothing_moves_any_more(speed: float) -> None:
    run = simulate(_with_a_slow_host(speed), Settings(scale=Off(), limits=FIXED))
    slow_from = next(b.batch for b in run.batches if b.start_s >= 20)
    assert sum(b.moved_slots for b in run.batches[slow_from:]) > 0
    assert sum(b.moved_slots for b in run.batches[-40:]) == 0
    assert np.median([b.bound_ratio for b in run.batches[-40:]]) < 1.08
    table = run.tables["sum"]
    counts = table.counts()
    slow = [c for c, host in enumerate(table.hosts) if host == "host-0"]
    fast = [c for c, host in enumerate(table.hosts) if host != "host-0"]
    assert counts[slow].mean() < (speed + 0.1) * counts[fast].mean()
    assert run.summary()["ineffective"] == 0


@pytest.mark.parametrize("shuffles", [0.0, 12.0])
def test_who_takes_a_slow_host_for_heavy_slots_keeps_moving_or_is_left_behind(
    shuffles: float,
) -> None:
    flow = _with_a_slow_host(0.25, shuffles)
    known = simulate(flow, Settings(scale=Off(), limits=FIXED))
    unknown = simulate(replace(flow, speeds_measured=False), Settings(scale=Off(), limits=FIXED))
    assert known.summary()["latency_s"] < 0.8 * float(unknown.summary()["latency_s"])
    assert known.batches[-1].duration_s < 1


def test_a_host_that_is_fast_again_gets_its_part_back() -> None:
    flow = _with_a_slow_host(0.4, from_s=10)
    until = replace(flow, cluster=replace(flow.cluster, slow_until_s=50))
    run = simulate(until, Settings(scale=Off(), limits=FIXED))
    counts, hosts = run.tables["sum"].counts(), np.array(run.tables["sum"].hosts)
    of_hosts = [counts[hosts == name].sum() / 512 for name in sorted(set(hosts.tolist()))]
    assert of_hosts == pytest.approx([0.25] * 4, abs=0.05)
    assert sum(b.moved_slots for b in run.batches[-30:]) == 0


def test_hosts_that_are_chosen_by_state_read_less_than_naive_ones() -> None:
    # Side by side they share the cores, and whoever is counted anew pushes the others on.
    keys = Zipf(keys=10_000, skew=0.5)
    flow = SimFlow(
        Cluster(hosts=8, cores=2),
        tuple(SimOperator(f"o{n}", keys, channels=2) for n in range(3)),
        Spike(1000, 2500, 20, 20),
        duration_s=60,
    )
    limits = Limits(channels_max=16, total_max=16)
    ours = simulate(flow, Settings(limits=limits))
    naive = simulate(replace(flow, naive_hosts=True), Settings(limits=limits))
    assert float(ours.summary()["moved_mb"]) < 0.7 * float(naive.summary()["moved_mb"])
    for table in ours.tables.values():
        assert len(table.hosts) == table.channels

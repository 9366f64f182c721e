"""Scale policies on views: demand through the flow, a latency target, and what nobody knows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from braided.control.measure.arrival_rate import ArrivalRate
from braided.control.measure.view import OperatorView, congestion
from braided.control.policies.ds2 import Ds2, Off, demands
from braided.control.policies.model import Model
from braided.control.policies.saso import Saso
from braided.control.policies.saso_paper import SasoPaper
from braided.control.policy import Limits, ScalePolicy
from braided.control.registry import (
    balance_policy,
    policy_names,
    register_balance,
    register_scale,
    scale_policy,
)
from braided.control.routing.table import RoutingTable
from support.operator_views import flow, view

LIMITS = Limits(channels_max=64)


def operator(name: str, rate: float, true_rate: float, **others: float) -> OperatorView:
    table = RoutingTable.initial(256, int(others.pop("channels", 4)))
    load = np.full(256, rate / true_rate / 256 if true_rate else 0.0)
    seen = {"arrival_rate": rate, "throughput": rate, "true_rate": true_rate, **others}
    return view(table, load, name=name, **seen)


def test_demand_goes_through_the_flow_whatever_was_seen_downstream() -> None:
    slow = flow(
        operator("a", 1000, 500, selectivity=2.0),
        operator("b", 10, 500, selectivity=0.5),  # starved by a
        operator("c", 1, 500, backlog_rows=100),
    )
    assert demands(slow, catch_up_s=10) == {"a": 1000, "b": 2000, "c": 1010}


def test_ds2_asks_for_true_rates_and_some_room() -> None:
    wishes, _ = Ds2(utilisation=0.8).scale(
        flow(operator("a", 1000, 250, selectivity=0.5), operator("b", 1, 250)), LIMITS, {}
    )
    assert (wishes["a"].channels, wishes["b"].channels) == (5, 3)


def test_in_a_micro_batch_operators_share_the_interval() -> None:
    chain = flow(operator("a", 1000, 250), operator("b", 1000, 1000), interval_s=1.0)
    wishes, _ = Ds2(utilisation=0.8).scale(chain, LIMITS, {})
    time_s = 4 / wishes["a"].channels + 1 / wishes["b"].channels
    assert time_s <= 0.8
    # One channel less anywhere would not do.
    assert 4 / (wishes["a"].channels - 1) + 1 / wishes["b"].channels > 0.8
    alone, _ = Ds2().scale(flow(operator("a", 1000, 250), interval_s=1.0), LIMITS, {})
    assert alone["a"].channels == 5


def test_who_has_processed_nothing_is_left_alone() -> None:
    idle = flow(operator("a", 0, 0))
    for policy in (Ds2(), Model(), Off()):
        assert policy.scale(idle, LIMITS, {})[0] == {}


def test_the_model_takes_the_fewest_channels_for_the_target() -> None:
    seen = flow(operator("a", 90, 10))
    loose, _ = Model(target_s=1.0).scale(seen, LIMITS, {})
    tight, _ = Model(target_s=0.102).scale(seen, LIMITS, {})
    assert loose["a"].channels == 10
    assert tight["a"].channels > 12
    assert "expected for a target of 0.102 s" in tight["a"].reason


def test_a_target_nobody_can_meet_does_not_take_everything() -> None:
    wishes, _ = Model(target_s=0.01).scale(flow(operator("a", 90, 10)), LIMITS, {})
    assert wishes["a"].channels < 20
    assert "as near as it gets" in wishes["a"].reason


def test_channels_are_not_taken_for_time_that_they_have_no_part_in() -> None:
    # Half of an interval of 3 s is waiting, whatever there is to do, and there is next to nothing.
    idle = flow(operator("a", 7, 1000), interval_s=3.0)
    wishes, _ = Model(target_s=1.0).scale(idle, Limits(channels_max=8), {})
    assert wishes["a"].channels == 1


def test_whatever_the_target_a_batch_fits_its_interval() -> None:
    chain = flow(operator("a", 1000, 250), operator("b", 1000, 500), interval_s=1.0)
    wishes, _ = Model(target_s=60.0).scale(chain, LIMITS, {})
    assert 4 / wishes["a"].channels + 2 / wishes["b"].channels <= 0.9


def test_the_model_learns_that_it_is_wrong_by_a_factor() -> None:
    seen = flow(operator("a", 1000, 250, channels=8), interval_s=1.0, latency_s=1.5)
    memory: dict[str, object] = {}
    channels = []
    for _ in range(12):
        wishes, memory = Model(target_s=1.0).scale(seen, LIMITS, memory)
        channels.append(wishes["a"].channels)
    assert channels[-1] > channels[0]
    assert float(str(memory["fit"])) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("policy", [Saso(), SasoPaper(), Model(), Ds2(), Off()])
def test_memories_survive_json_and_wishes_stay_reasonable(policy: ScalePolicy) -> None:
    memory: dict[str, object] = {}
    used = 2
    for load in (100, 900, 900, 400, 4000, 100):
        seen = flow(
            operator("a", load, 250, channels=used, congestion=0.5 if load > used * 250 else 0.0),
            interval_s=1.0,
        )
        wishes, memory = policy.scale(seen, LIMITS, memory)
        memory = json.loads(json.dumps(memory))
        if "a" in wishes:
            used = LIMITS.clamp(wishes["a"].channels, 256)
            assert wishes["a"].reason
        assert 1 <= used <= 64


def test_saso_stays_on_a_number_that_is_no_level_until_there_is_a_reason() -> None:
    # 26 is what one key leaves useful, say; the level below is 23, and would do as well.
    calm = operator("a", 2000, 100, channels=26)
    busy = operator("a", 2800, 100, channels=26, congestion=0.9)
    wishes, memory = Saso().scale(flow(calm, interval_s=1.0), LIMITS, {})
    assert wishes["a"].channels == 26
    wishes, _ = Saso().scale(flow(busy, interval_s=1.0), LIMITS, memory)
    assert wishes["a"].channels == 32


@pytest.mark.parametrize("policy", [Saso(), Model(), Ds2()])
def test_a_rate_that_nobody_knows_is_not_below_nothing(policy: ScalePolicy) -> None:
    arrivals = ArrivalRate()
    for seconds in (26.0, 0.1) * 4:
        arrivals = arrivals.then(20, seconds)
    assert arrivals.error > 1
    unsure = replace(operator("a", 0.8, 100, channels=2), arrivals=arrivals)
    wishes, _ = policy.scale(flow(unsure, interval_s=1.0), LIMITS, {})
    assert all(1 <= wish.channels <= 2 for wish in wishes.values())


def test_congestion_is_what_does_not_fit_the_time_it_may_take() -> None:
    assert congestion(0.9, 1.0) == 0
    assert congestion(2.0, 1.0) == 0.5
    assert congestion(2.0, 1.0, blame=0.1) == pytest.approx(0.05)
    # A batch that collected for 8 s and takes 4 s works off the delay.
    assert congestion(4.0, 1.0, collected_s=8.0) == 0
    assert congestion(8.0, 1.0, collected_s=8.0) == 0.5
    assert congestion(5.0, 0.0) == 0


def test_policies_are_found_by_name_or_passed_as_objects() -> None:
    assert policy_names()["scale"] == ("saso", "saso-paper", "model", "ds2", "off")
    assert scale_policy("model", target_s=3.0) == Model(target_s=3.0)
    mine = Ds2(utilisation=0.5)
    assert scale_policy(mine) is mine
    with pytest.raises(ValueError, match="no balance policy 'fair'; there are elasticutor"):
        balance_policy("fair")
    with pytest.raises(TypeError, match="object with a method scale"):
        scale_policy(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="means one thing"):
        register_scale("ds2", Saso)
    register_balance("rc", type(balance_policy("rc")))  # the same again is no harm


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="between 5 and 2"):
        Limits(channels_min=5, channels_max=2)
    with pytest.raises(ValueError, match="hysteresis"):
        Limits(hysteresis=1.0)
    assert Limits(channels_min=4, channels_max=8).clamp(100, 6) == 6
    assert Limits(channels_min=4, channels_max=8).clamp(1, 2) == 2

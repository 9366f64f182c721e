"""One plan, not two that fight: what balancing costs of locality, and who goes first."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from braided.cli.decisions import told
from braided.control.events import Judged, Located, Planned
from braided.control.locality.loop import LocalityRule
from braided.control.locality.statistics import PairCounts
from braided.control.loop import Controller, Cycle
from braided.control.measure.view import FlowSample, OperatorSample
from braided.control.policies.balancers import Elasticutor
from braided.control.policy import Limits
from braided.control.routing.balance import imbalance
from braided.control.routing.table import RoutingTable
from braided.control.routing.within_hosts import rebalance_within_hosts
from braided.control.settings import Settings
from braided.control.worth import Prices, weigh
from support.operator_views import view

HOSTS = tuple("aabb")
TABLE = RoutingTable(3, 4, np.arange(32) % 4, hosts=HOSTS)


def test_a_slot_that_leaves_its_host_costs_the_rows_that_stayed() -> None:
    load = np.full(32, 0.01)
    load[TABLE.of(0)] = 0.05
    slots = TABLE.slots.copy()
    slots[TABLE.of(0)[:2]] = 2  # from host a to host b
    after = TABLE.next(slots)
    plain = view(TABLE, load)
    before = weigh(plain, after, Prices())
    assert before.pays and before.locality_s == 0.0
    anchor = np.zeros(32)
    anchor[TABLE.of(0)[:2]] = 1.0
    held = weigh(replace(plain, anchor=anchor), after, Prices())
    assert held.locality_s == -2.0 * Prices().horizon_s
    assert not held.pays
    slots[TABLE.of(0)[:2]] = 1  # to the other channel of the host
    within = weigh(replace(plain, anchor=anchor), TABLE.next(slots), Prices())
    assert within.pays and within.locality_s == 0.0


def test_hosts_are_balanced_within_themselves() -> None:
    load = np.full(32, 0.01)
    load[TABLE.of(0)] = 0.05
    after = rebalance_within_hosts(TABLE, load)
    host = np.array([0, 0, 1, 1])
    assert np.array_equal(host[after.slots], host[TABLE.slots])
    assert imbalance(after, load) < imbalance(TABLE, load)
    assert rebalance_within_hosts(after, np.full(32, 0.01)).epoch >= after.epoch
    even = np.full(32, 0.01)
    assert rebalance_within_hosts(TABLE, even) is TABLE


# -- in the loop -------------------------------------------------------------------------------

KEYS = 200
_CHANCE = np.random.default_rng(3)
HASH = {name: {b"%d" % n: int(_CHANCE.integers(0, 32)) for n in range(KEYS)} for name in ("x", "y")}


def _sample(batch: int, tables: dict[str, RoutingTable], heavy_slot: int | None) -> FlowSample:
    operators = []
    for name in ("x", "y"):
        rows = np.full(32, 1000.0)
        if heavy_slot is not None and name == "x":
            rows[heavy_slot] = 20_000.0
        busy = rows * 2e-5
        operators.append(
            OperatorSample(
                name=name,
                table=tables[name],
                rows=rows,
                busy_s=busy,
                keys=np.full(32, 10.0),
                state_bytes=np.full(32, 1e4),
                channel_busy_s=np.bincount(tables[name].slots, busy, 4),
                rows_out=float(rows.sum()),
            )
        )
    return FlowSample(batch, 1.0, 1.0, 0.8, tuple(operators), {"y": ("x",)})


def _pairs(seed: int) -> dict[tuple[str, str], list[PairCounts]]:
    chance = np.random.default_rng(seed)
    here = chance.integers(0, KEYS, 2000)
    rows = [(b"%d" % a, b"%d" % a) for a in here.tolist()]
    return {("x", "y"): [PairCounts.of_rows(*zip(*rows, strict=True), hold_every=10)]}


def _controller() -> Controller:
    return Controller(
        Settings(
            balance=Elasticutor(),
            limits=Limits(channels_min=4, channels_max=4),
            locality=LocalityRule(period_batches=4),
        )
    )


def _run(controller: Controller, batches: range, heavy_slot: int | None = None) -> Cycle:
    tables = {"x": TABLE, "y": TABLE}
    for batch in batches:
        cycle = controller.step(_sample(batch, tables, heavy_slot), pairs=_pairs(batch))
        if controller.keys_due():
            return controller.locate(cycle, HASH, {})
    raise AssertionError("a period is over by now")


def test_both_operators_change_together_and_nothing_else_of_them_does() -> None:
    controller = _controller()
    cycle = _run(controller, range(4), heavy_slot=0)
    assert set(cycle.keys) == {"x", "y"}
    assert not set(cycle.tables) & {"x", "y"}
    assert not (cycle.pin or cycle.unpin or cycle.split or cycle.whole)
    located = [event for event in cycle.events if isinstance(event, Located)]
    assert len(located) == 1 and not located[0].held
    assert located[0].locality_s > 0 and located[0].moving_s > 0
    # What was on its way for one of them comes to nothing, and the log says so.
    (judged,) = [event for event in cycle.events if isinstance(event, Judged)]
    assert (judged.operator, judged.verdict) == ("x", "unjudged") and "locality" in judged.why


def test_a_plan_that_others_undo_is_said_not_to_be_judged() -> None:
    controller = _controller()
    (located,) = [e for e in _run(controller, range(4)).events if isinstance(e, Located)]
    assert told(located).split()[2:5] == ["locality", f"#{located.decision}", "x,"]
    controller.keys_superseded()
    again = _run(controller, range(4, 8))
    (judged,) = [event for event in again.events if isinstance(event, Judged)]
    assert (judged.decision, judged.verdict) == (located.decision, "unjudged")
    assert "another table" in judged.why


def test_the_balancer_then_knows_what_slots_are_worth_where_they_are() -> None:
    controller = _controller()
    _run(controller, range(4))
    tables = {"x": RoutingTable(4, 4, TABLE.slots, hosts=HOSTS), "y": TABLE}
    cycle = controller.step(_sample(5, tables, None), pairs=_pairs(5))
    anchor = cycle.view.operators["x"].anchor
    assert anchor is not None and anchor.shape == (32,) and anchor.sum() > 0


def test_a_restart_knows_it_too() -> None:
    controller = _controller()
    _run(controller, range(4))
    again = Controller(controller.settings, json.loads(json.dumps(controller.memory())))
    tables = {"x": RoutingTable(4, 4, TABLE.slots, hosts=HOSTS), "y": TABLE}
    anchor = again.step(_sample(5, tables, None)).view.operators["x"].anchor
    assert anchor is not None and anchor.sum() > 0


def test_a_plan_says_what_it_loses_of_locality() -> None:
    assert Planned(0, "o", (), 1, 2, 3, 4.0, 5.0, 6.0, False).locality_s == 0.0
    assert Planned(0, "o", (), 1, 2, 3, 4.0, 5.0, 6.0, False, -1.5).locality_s == -1.5


def test_without_the_option_nothing_is_kept_or_asked_for() -> None:
    controller = Controller(Settings())
    controller.step(_sample(0, {"x": TABLE, "y": TABLE}, None), pairs=_pairs(0))
    assert not controller.keys_due()
    assert controller.locality() is None
    assert "locality" not in controller.memory()

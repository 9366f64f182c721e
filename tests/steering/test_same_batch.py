"""What the controller's thread leaves for batches that are counted, and what they make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from braided.control.events import Counted
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import FlowSample, OperatorSample
from braided.control.policies.balancers import Elasticutor, Static
from braided.control.routing.balance import imbalance
from braided.control.routing.table import Loads, RoutingTable
from braided.control.worth import Prices
from braided.steering.same_batch import SameBatch
from support.operator_views import flow, view

TABLE = RoutingTable.initial(32, 4)
NOTHING = np.zeros(32)
COSTS = {"o": SlotLoads(np.full(32, 1 / 32), np.full(32, 0.001), NOTHING)}


def rows(*hot: int) -> Loads:
    counted = np.full(32, 10.0)
    counted[list(hot)] = 200.0
    return counted


ON_ONE_CHANNEL = rows(0, 4, 8, 12)


def show(same_batch: SameBatch, batch: int, counted: Loads) -> None:
    """A batch with these rows is over."""
    busy = np.zeros(4)
    operator = OperatorSample("o", TABLE, counted, NOTHING, NOTHING, NOTHING, busy)
    sample = FlowSample(batch, 1.0, 1.0, 1.0, (operator,))
    seen = flow(view(TABLE, NOTHING))
    same_batch.learn(sample, type(seen)(**{**vars(seen), "batch": batch}), COSTS, Prices())


def made(mode: str = "auto", policy: object = None, names: tuple[str, ...] = ("o",)) -> SameBatch:
    return SameBatch(mode, policy or Elasticutor(1.05), frozenset(names))  # type: ignore[arg-type]


def test_a_batch_is_counted_once_one_before_it_would_have_been_shorter_for_it() -> None:
    same_batch = made()
    assert not same_batch.outlook(0).counts
    show(same_batch, 0, ON_ONE_CHANNEL)  # nobody has had a say yet
    assert not same_batch.outlook(1).counts
    show(same_batch, 1, ON_ONE_CHANNEL)
    outlook = same_batch.outlook(2)
    assert outlook.counts
    switched = same_batch.switched(2, outlook)
    assert switched is not None and switched.on
    assert same_batch.switched(3, outlook) is None


def test_tables_fit_the_counts_and_follow_those_in_effect() -> None:
    same_batch = made("on")
    assert same_batch.choose({"o": TABLE}, {"o": TABLE}, {"o": ON_ONE_CHANNEL}) == {}
    show(same_batch, 0, rows())
    proposed = TABLE.next((TABLE.slots + 1) % 4)
    plan = same_batch.choose({"o": proposed}, {"o": TABLE}, {"o": ON_ONE_CHANNEL})["o"]
    assert plan.table.epoch == 1 and plan.moved_slots > 0
    assert imbalance(plan.table, ON_ONE_CHANNEL) < 1.1


def test_what_rows_lose_that_leave_their_host_is_that_of_a_period() -> None:
    spread = replace(TABLE, hosts=("a", "b", "c", "d"))
    anchor = np.zeros(32)
    anchor[[0, 4, 8, 12]] = 0.05
    moved = []
    for period_s in (1.0, 20.0):
        same_batch = made("on")
        seen = flow(view(spread, NOTHING, anchor=anchor), interval_s=period_s)
        same_batch.learn(FlowSample(0, period_s, period_s, 1.0, ()), seen, COSTS, Prices())
        plan = same_batch.choose({"o": spread}, {"o": spread}, {"o": ON_ONE_CHANNEL})["o"]
        moved.append(plan.moved_slots)
    assert moved[0] > 0 == moved[1]


def test_what_passes_took_and_saved_is_shown_and_decides_whether_there_are_more() -> None:
    same_batch = made()
    show(same_batch, 0, rows())
    show(same_batch, 1, ON_ONE_CHANNEL)
    for batch in range(2, 12):
        outlook = same_batch.outlook(batch)
        if outlook.counts:
            same_batch.note(Counted(batch, 1000, 2.0, 0.4, {"o": 3}))
            shown = same_batch.show(batch, outlook)
            assert (shown["counted"], shown["passMs"], shown["savedMs"]) == (True, 2000, 400)
        show(same_batch, batch, ON_ONE_CHANNEL)
    assert not outlook.counts and "takes 2.000 s" in outlook.why
    assert same_batch.show(11, outlook) == {"counted": False, "why": outlook.why}


def test_who_can_not_be_counted_is_told_why() -> None:
    refused = [made("off"), made(policy=Static()), made(names=())]
    whys = [each.outlook(5) for each in refused]
    assert not any(why.counts for why in whys)
    assert all(word in why.why for word, why in zip(("off", "by_load", "keys"), whys, strict=True))
    same_batch = made("on")
    show(same_batch, 0, rows())
    assert same_batch.outlook(1).counts
    same_batch.leave_out("o")
    assert "Python" in same_batch.outlook(1).why

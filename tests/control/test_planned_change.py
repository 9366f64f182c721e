"""What a change of tables would do: slots and bytes that move, the pause, the balance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.measure.moving_cost import MovingRates
from braided.control.planned_change import PlannedChange, SlotFacts, SlotMove, plan_change
from braided.control.routing.balance import imbalance
from braided.control.routing.host_choice import ChannelDemand, moved_bytes
from braided.control.routing.rescale import rescale
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable, moves
from support.routing_tables import loads, tables

RATES = MovingRates(bytes_per_s=1000.0, slot_s=0.01)


def change(
    before: RoutingTable,
    after: RoutingTable,
    load: list[float] | None = None,
    size: list[float] | None = None,
    residence: Residence | None = None,
    **others: float,
) -> PlannedChange:
    facts = SlotFacts(
        np.ones(before.slots.size) if load is None else np.array(load),
        None if size is None else np.array(size),
        residence,
    )
    return plan_change({"op": before}, {"op": after}, {"op": facts}, RATES, others)


def table(slots: list[int], *hosts: str) -> RoutingTable:
    return RoutingTable(0, max(slots) + 1, np.array(slots), hosts=hosts)


def test_on_one_host_slots_change_channels_and_nobody_waits() -> None:
    plan = change(table([0, 1, 0, 1]), table([0, 1, 2, 1]), load=[1, 1, 2, 0], size=[9] * 4)
    operator = plan.operators["op"]
    assert (operator.channels_before, operator.channels_after) == (2, 3)
    assert operator.moves == (SlotMove(2, 0, 2, bytes=9),)
    assert (operator.imbalance_before, operator.imbalance_after) == (1.5, 1.5)
    assert (plan.slots_moved, plan.slots_to_other_hosts, plan.bytes_to_other_hosts) == (1, 0, 0)
    assert plan.pause_s == 0
    assert str(plan) == (
        "op: 2 -> 3 channels, 1 of 4 slots change channels, imbalance 1.50 -> 1.50\n"
        "no state goes to another host, so no batch waits for it"
    )


def test_nothing_is_said_of_what_does_not_change() -> None:
    same = table([0, 1, 0])
    plan = change(same, same)
    assert not plan.is_change and plan.slots_moved == 0
    assert str(plan) == "nothing would change"
    both = plan_change(
        {"a": same, "b": same},
        {"a": same, "b": table([0, 1, 2])},
        dict.fromkeys("ab", SlotFacts(np.ones(3))),
    )
    assert both.is_change and not both.operators["a"].is_change
    assert str(both).startswith("b: 2 -> 3 channels, 1 of 3 slots")


def test_a_batch_waits_for_the_channel_that_has_most_to_read() -> None:
    before = table([0, 0, 0, 1, 1], "a", "b")
    after = table([0, 2, 2, 3, 3], "a", "b", "b", "a")
    operator = change(before, after, size=[1, 200, 300, 400, 0]).operators["op"]
    assert [(m.slot, m.from_host, m.to_host) for m in operator.moves] == [
        (1, "a", "b"),
        (2, "a", "b"),
        (3, "b", "a"),
        (4, "b", "a"),
    ]
    assert (operator.slots_to_other_hosts, operator.bytes_to_other_hosts) == (4, 900)
    assert operator.pause_s == pytest.approx(RATES.expected_s(500, 2))


def test_channels_that_change_hosts_take_their_slots_along() -> None:
    before, after = table([0, 1, 0], "a", "b"), table([0, 1, 0], "c", "b")
    plan = change(before, after, size=[10, 20, 30])
    assert [(m.slot, m.from_channel, m.to_channel) for m in plan.operators["op"].moves] == [
        (0, 0, 0),
        (2, 0, 0),
    ]
    assert plan.is_change and plan.bytes_to_other_hosts == 40
    assert str(plan) == (
        "op: 2 channels, 0 of 3 slots change channels, 2 slots (40 bytes) to another host, "
        "imbalance 1.33 -> 1.33\nthe next batch waits about 60 ms for state"
    )
    assert str(replace(plan, is_prefetched=True)).endswith(
        "at most: it is fetched before, while batches go on as they are"
    )
    assert str(replace(plan, is_paused_for=True)).endswith(
        "the next batch waits about 60 ms for state, which is fetched while none runs"
    )


def test_state_is_read_from_where_it_is_and_not_where_it_should_be() -> None:
    before, after = table([0, 0, 0, 1], "a", "b"), table([1, 1, 1, 1], "a", "b")
    residence = Residence(("a", "b"), np.array([0, 1, -1, 0], dtype=np.int32))
    operator = change(before, after, size=[1, 2, 4, 8], residence=residence).operators["op"]
    # The second is there already, the third is read anew in any case, the last one stays.
    assert [(m.slot, m.from_host, m.to_other_host) for m in operator.moves] == [
        (0, "a", True),
        (1, "b", False),
        (2, "a", True),
    ]
    assert operator.bytes_to_other_hosts == 5


def test_a_channel_that_has_no_host_yet_has_all_to_read() -> None:
    plan = change(table([0, 0], "a"), table([0, 1], "a", ""), size=[5, 7])
    assert (plan.slots_to_other_hosts, plan.bytes_to_other_hosts) == (1, 7)
    first = change(table([0, 1]), table([0, 1], "a", "b"), size=[5, 7])
    assert not first.is_change


def test_a_slow_host_counts_by_its_time() -> None:
    even = table([0, 1], "fast", "slow")
    plan = change(even, table([0, 0, 1][:2], "fast"), slow=0.5)
    assert plan.operators["op"].imbalance_before == pytest.approx(2 / (2 / 1.5))
    assert plan.operators["op"].imbalance_after == 1.0


def test_tables_of_other_operators_or_sizes_are_no_change() -> None:
    facts = {"op": SlotFacts(np.ones(2))}
    with pytest.raises(ValueError, match="do not become"):
        plan_change({"op": table([0, 1])}, {"other": table([0, 1])}, facts)
    with pytest.raises(ValueError, match="2 slots do not become 3"):
        plan_change({"op": table([0, 1])}, {"op": table([0, 1, 1])}, facts)


@st.composite
def rescales(draw: st.DrawFn) -> tuple[RoutingTable, RoutingTable, Loads, Loads]:
    before = draw(tables())
    load, size = draw(loads(before.slots.size)), draw(loads(before.slots.size))
    after = rescale(before, draw(st.integers(1, 12)), load)
    names = st.sampled_from(["a", "b", "c"])
    hosts = [
        tuple(draw(st.lists(names, min_size=each.channels, max_size=each.channels)))
        for each in (before, after)
    ]
    return replace(before, hosts=hosts[0]), replace(after, hosts=hosts[1]), load, size


@given(st.lists(rescales(), min_size=1, max_size=3))
def test_moves_lead_from_one_table_to_the_other_and_bytes_are_those_that_hosts_read(
    cases: list[tuple[RoutingTable, RoutingTable, Loads, Loads]],
) -> None:
    before = {str(n): case[0] for n, case in enumerate(cases)}
    after = {str(n): case[1] for n, case in enumerate(cases)}
    homes = {name: Residence.of_table(each) for name, each in before.items()}
    facts = {str(n): SlotFacts(c[2], c[3], homes[str(n)]) for n, c in enumerate(cases)}
    plan = plan_change(before, after, facts, RATES)
    for name, operator in plan.operators.items():
        old, new, known = before[name], after[name], facts[name]
        slots = old.slots.copy()
        for move in operator.moves:
            assert slots[move.slot] == move.from_channel
            assert (old.hosts[move.from_channel], new.hosts[move.to_channel]) == (
                move.from_host,
                move.to_host,
            )
            assert move.to_other_host == (move.from_host != move.to_host)
            slots[move.slot] = move.to_channel
        assert slots.tolist() == new.slots.tolist()
        assert set(moves(old, new).tolist()) <= {move.slot for move in operator.moves}
        assert known.state_bytes is not None
        demand = ChannelDemand(new, homes[name], known.state_bytes)
        assert operator.bytes_to_other_hosts == moved_bytes(demand, new.hosts)
        assert operator.imbalance_before == imbalance(old, known.load)
        assert operator.imbalance_after == imbalance(new, known.load)
        read, many = operator.bytes_to_other_hosts, operator.slots_to_other_hosts
        assert RATES.expected_s(read, many) / new.channels <= operator.pause_s + 1e-9
        assert operator.pause_s <= RATES.expected_s(read, many) + 1e-9
        assert (operator.pause_s > 0) == (many > 0)
    assert plan.slots_moved == sum(len(each.moves) for each in plan.operators.values())
    assert plan.pause_s == pytest.approx(sum(each.pause_s for each in plan.operators.values()))
    same = plan_change(before, before, facts, RATES)
    assert not same.is_change and same.pause_s == 0

"""Whether the rows of a batch are worth counting, and the table that it then runs by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from braided.control.measure.slot_loads import SlotLoads
from braided.control.policies.balancers import Autoflow, Elasticutor, Static
from braided.control.policy import BalancePolicy
from braided.control.routing.balance import channel_times
from braided.control.routing.residence import Residence
from braided.control.routing.table import Loads, RoutingTable, moves
from braided.control.same_batch import (
    BatchTable,
    PassLedger,
    batch_work,
    plan_batch,
    saved_by,
)
from braided.control.worth import Prices
from support.operator_views import view

EVEN = RoutingTable.initial(64, 4)
BALANCE = Elasticutor(theta=1.05)


def hot(slots: list[int], seconds: float = 0.2) -> Loads:
    work = np.full(64, 0.01)
    work[slots] = seconds
    return work


def plan(work: Loads, table: RoutingTable = EVEN, policy: BalancePolicy = BALANCE) -> BatchTable:
    return plan_batch(view(table, np.zeros(64)), work, policy, Prices())


# -- the table of a batch --------------------------------------------------------------------


def test_hot_slots_of_one_channel_are_spread_in_the_batch_that_has_them() -> None:
    # The loads of the batch before, which were none, do not matter.
    found = plan(hot([0, 4, 8, 12]))
    assert found.moved_slots > 0
    times = channel_times(found.table, hot([0, 4, 8, 12]), None)
    assert times.max() <= 1.06 * times.mean()
    assert 0.5 < found.saved_s < 0.6  # of 0.92 s, all but the 0.35 s that a fair part takes


def test_the_table_stays_where_little_is_saved_or_moving_takes_longer_than_that() -> None:
    assert plan(np.full(64, 0.01)).table is EVEN
    assert plan(hot([0, 4, 8, 12]) / 100).table is EVEN  # milliseconds
    assert plan(hot([0, 4, 8, 12]), policy=Static()).table is EVEN
    hosts = ("a", "b", "c", "d")
    spread = replace(EVEN, hosts=hosts)
    there = view(spread, np.zeros(64), residence=Residence(hosts, EVEN.slots))
    large = replace(there, state_bytes=np.full(64, 1e9))
    work = hot([0, 4, 8, 12])
    assert plan_batch(there, work, BALANCE, Prices()).moved_slots > 0
    assert plan_batch(large, work, BALANCE, Prices()).table is spread


def test_rows_that_leave_their_host_for_it_count_for_as_long_as_the_batch_is() -> None:
    spread, work = replace(EVEN, hosts=("a", "b", "c", "d")), hot([0, 4, 8, 12])
    anchor = np.zeros(64)
    anchor[[0, 4, 8, 12]] = 0.1  # in s per s
    held = view(spread, np.zeros(64), anchor=anchor)
    free = plan_batch(replace(held, anchor=None), work, BALANCE, Prices())
    found = plan_batch(held, work, BALANCE, Prices(), period_s=1.0)
    lost_s = float(anchor[moves(spread, found.table)].sum())
    assert lost_s > 0.1
    assert np.isclose(found.saved_s, free.saved_s - lost_s)
    # In a batch of the rows of ten seconds ten times as many leave, for the same work.
    assert plan_batch(held, work, BALANCE, Prices(), period_s=10.0).table is spread


def test_a_table_that_several_steps_led_to_is_the_next_epoch_or_the_one_before_it() -> None:
    proposed = EVEN.next((EVEN.slots + 1) % 4)
    counted = proposed.next((EVEN.slots + 2) % 4)
    assert counted.epoch == 2
    assert counted.as_next_of(EVEN).epoch == 1
    assert proposed.next(EVEN.slots).as_next_of(EVEN) is EVEN


def test_work_is_rows_times_what_a_row_of_the_slot_costs_and_timers_beside_it() -> None:
    share = np.array([0.5, 0.5, 0.0])
    loads = SlotLoads(share, np.array([0.001, 0.002, 0.001]), np.array([0.0, 0.0, 0.0001]))
    rows = np.array([0.0, 100.0, 0.0])
    work = batch_work(rows, loads)
    assert work is not None
    assert np.allclose(work, [0.0, 0.2, 0.01])
    assert batch_work(rows, SlotLoads.none(3)) is None


@given(
    st.lists(st.floats(0, 10), min_size=64, max_size=64),
    st.integers(1, 16),
    st.sampled_from([BALANCE, Autoflow()]),
    st.lists(st.floats(0.1, 1), min_size=16, max_size=16) | st.none(),
)
def test_a_table_is_taken_only_if_the_batch_is_shorter_by_it(
    work: list[float],
    channels: int,
    policy: BalancePolicy,
    speeds: list[float] | None,
) -> None:
    table, load = RoutingTable.initial(64, channels), np.array(work)
    fast = None if speeds is None else np.array(speeds[:channels])
    found = plan_batch(view(table, np.zeros(64), speeds=fast), load, policy, Prices())
    assert found.table.channels == channels and found.table.pins == table.pins
    assert found.moved_slots == moves(table, found.table).size
    if found.moved_slots:
        before = float(channel_times(table, load, fast).max())
        after = float(channel_times(found.table, load, fast).max())
        cost_s = found.moved_slots * Prices().slot_s
        assert found.saved_s > 0
        assert np.isclose(before - after - cost_s, found.saved_s)
    else:
        assert found.table is table and found.saved_s == 0
    # What was counted once is not moved again.
    again = view(found.table, np.zeros(64), speeds=fast)
    settled = plan_batch(again, load, policy, Prices())
    assert isinstance(policy, Autoflow) or settled.table is found.table


def test_what_operators_save_is_added_up() -> None:
    assert saved_by({"a": BatchTable(EVEN, 0.25, 1), "b": BatchTable(EVEN)}) == 0.25


# -- whether to count ------------------------------------------------------------------------


def after(
    ledger: PassLedger, batches: range, saved_s: list[float], cost_s: float
) -> tuple[PassLedger, list[int]]:
    """The ledger after some batches that would save in turn what is given, and those counted."""
    counted = []
    for batch in batches:
        counts = ledger.outlook(batch).counts
        counted += [batch] if counts else []
        saved = saved_s[batch % len(saved_s)]
        ledger = ledger.seen(batch, saved, cost_s if counts else None)
    return ledger, counted


def test_nothing_is_counted_where_nothing_would_be_saved() -> None:
    ledger, counted = after(PassLedger(), range(200), [0.0, 0.01], 0.001)
    assert counted == []
    assert "0.005 s" in ledger.outlook(200).why
    # Nor where it is less than the first passes will take, whatever later ones do.
    assert after(PassLedger(), range(200), [0.06], 0.01)[1] == []


def test_after_a_batch_that_a_count_would_have_shortened_all_are_counted() -> None:
    # Hot sets that flip with every second batch: on average a pass saves half of a flip.
    _, counted = after(PassLedger(), range(40), [0.0, 0.3], 0.08)
    assert counted == list(range(2, 40))


def test_a_pass_that_costs_more_than_it_saves_ends_and_is_tried_again_ever_more_rarely() -> None:
    ledger, counted = after(PassLedger(), range(1000), [0.15], 0.3)
    assert counted[:5] == [1, 2, 3, 4, 5]  # the first ones are cold, and say little
    assert counted[5:] == [35, 95, 215, 455, 935]
    assert not ledger.outlook(1000).counts
    assert "takes 0.300 s; tried again at batch 1415" in ledger.outlook(1000).why


def test_a_trial_that_is_cheap_switches_it_on_again() -> None:
    ledger, _ = after(PassLedger(), range(20), [0.15], 0.3)
    _, counted = after(ledger, range(20, 60), [0.15], 0.02)
    assert counted == list(range(35, 60))


def test_it_ends_when_keys_stay_what_they_are() -> None:
    ledger, counted = after(PassLedger(), range(20), [0.3], 0.05)
    assert counted == list(range(1, 20))
    ledger, counted = after(ledger, range(20, 100), [0.0], 0.05)
    assert counted[-1] < 60  # what was saved is forgotten bit by bit
    _, counted = after(ledger, range(100, 110), [0.5], 0.05)
    assert counted[0] <= 104


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=120),
)
def test_passes_that_do_not_pay_are_few(batches: list[tuple[float, float]]) -> None:
    ledger, in_vain, trials = PassLedger(), 0, 0
    for batch, (saved_s, cost_s) in enumerate(batches):
        before = ledger
        counts = ledger.outlook(batch).counts
        ledger = ledger.seen(batch, saved_s, cost_s if counts else None)
        if counts and before.passes >= 5:
            # By what was known, it paid, or it was the one that is made now and then.
            pays = before.expected_s >= 0.9 * before.cost_s
            in_vain += not pays
            trials += not pays and batch < before.try_at
    assert trials == 0
    assert in_vain <= 1 + len(batches) // 30

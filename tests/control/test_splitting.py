"""Which keys are split, into how many shares, and where these go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.events import Decided
from braided.control.hot_keys import (
    HotKeyRule,
    balance_bound,
    load_if_split,
    pin_change,
    share_slots,
)
from braided.control.loop import Controller
from braided.control.measure.view import FlowSample, HeavyKey, KeyLoad, OperatorSample, OperatorView
from braided.control.registry import scale_policy
from braided.control.routing.balance import channel_loads
from braided.control.routing.pins import pin_key
from braided.control.routing.table import Pin, RoutingTable
from braided.control.settings import Settings
from braided.control.worth import Prices, weigh_pin
from support.operator_views import view

RULE = HotKeyRule(cool_batches=2)
SLOTS, CHANNELS = 64, 8
HOT = 3


def seen(share: float, shares: tuple[int, ...] = (), can_split: bool = True) -> OperatorView:
    """An operator of load 8, with a key that has a share of it; the rest is spread evenly."""
    table = RoutingTable.initial(SLOTS, CHANNELS)
    if shares:
        table = pin_key(table, Pin(b"k", HOT, 0, HOT, shares), 1)
    load = np.full(SLOTS, (1 - share) * CHANNELS / SLOTS)
    for slot in shares or (HOT,):
        load[slot] += share * CHANNELS / (len(shares) or 1)
    key = KeyLoad(b"k", HOT, *[share * CHANNELS] * 3, len(shares) or 1)
    return replace(
        view(table, load),
        heavy=(key,),
        pinned=frozenset(pin.key for pin in table.pins),
        can_split=can_split,
    )


def test_a_key_hotter_than_a_channel_is_split_into_shares_that_fit_anywhere() -> None:
    change = pin_change(seen(0.6), CHANNELS, {}, RULE)
    (split,) = change.split
    assert split.key.key == b"k" and len(split.slots) == 16 and not change.pin
    after = load_if_split(seen(0.6), split)
    table = RoutingTable.initial(SLOTS, CHANNELS)
    assert after.sum() == pytest.approx(8)
    assert channel_loads(table, after).max() < 1.05, "before anything has moved"


def test_where_no_key_is_to_be_pinned_none_stays_split() -> None:
    for rule in (replace(RULE, pins_max=0), replace(RULE, splits=False)):
        change = pin_change(seen(0.6, (1, 2, 4)), CHANNELS, {}, rule)
        assert not change.split and change.whole == (b"k",)
    with pytest.raises(ValueError, match="twice among its shares"):
        seen(0.6, (1, 2, 1))


@pytest.mark.parametrize(
    "operator, rule",
    [
        (seen(0.6, can_split=False), RULE),
        (seen(0.15), RULE),  # a bit more than a channel's part: others leave it alone
        (seen(0.6), replace(RULE, pins_max=0)),
        (seen(0.6), replace(RULE, splits=False)),
        (seen(0.16), replace(RULE, company_least=0.3)),  # not worth it
        (seen(0.6, tuple(range(14))), RULE),
    ],
)
def test_other_keys_stay_as_they_are(operator: OperatorView, rule: HotKeyRule) -> None:
    assert not pin_change(operator, CHANNELS, {}, rule).split


def test_a_split_key_that_grows_gets_more_shares() -> None:
    (split,) = pin_change(seen(0.6, (HOT, 9, 20)), CHANNELS, {}, RULE).split
    assert len(split.slots) == 16


def test_a_split_key_is_whole_again_when_it_has_fitted_one_channel_for_a_while() -> None:
    shares = (HOT, 9, 20, 30)
    warm = pin_change(seen(0.09, shares), CHANNELS, {b"k": 1}, RULE)
    assert (warm.whole, warm.unpin, warm.cold) == ((), (), {b"k": 0})
    once = pin_change(seen(0.05, shares), CHANNELS, {}, RULE)
    assert (once.whole, once.cold) == ((), {b"k": 1})
    twice = pin_change(seen(0.05, shares), CHANNELS, once.cold, RULE)
    assert (twice.whole, twice.unpin, twice.cold) == ((b"k",), (), {})


def test_a_split_key_is_whole_at_once_where_keys_can_no_longer_be_split() -> None:
    change = pin_change(seen(0.6, (HOT, 9, 20, 30), can_split=False), CHANNELS, {}, RULE)
    assert (change.whole, change.split) == ((b"k",), ())


def test_a_pinned_key_saves_no_more_than_its_company_takes() -> None:
    operator = seen(0.15)
    load = operator.load.copy()
    load[HOT] += 0.5
    gain_s, cost_s = weigh_pin(replace(operator, load=load), operator.heavy[0], Prices())
    assert 0.5 < gain_s / Prices().horizon_s < 0.8
    assert cost_s == 2 * Prices().slot_s


def test_the_bound_is_that_of_a_share() -> None:
    assert balance_bound(np.ones(8), 4, [KeyLoad(b"k", 0, 6.0, 6.0, 6.0, shares=2)]) == 3


def test_thresholds_that_would_come_and_go_are_refused() -> None:
    with pytest.raises(ValueError, match="come and go"):
        HotKeyRule(split_share=0.5, whole_share=0.6)


@given(
    seed=st.integers(0, 1_000),
    channels=st.integers(1, 12),
    count=st.integers(2, 30),
    hot=st.floats(0.5, 20.0),
)
def test_shares_go_to_slots_of_their_own_where_there_is_least_to_do(
    seed: int, channels: int, count: int, hot: float
) -> None:
    chance = np.random.default_rng(seed)
    pins = (Pin(b"p", 5, 0, 7), Pin(b"q", 6, 0, 8, (8, 9)))
    table = RoutingTable(0, channels, chance.integers(0, channels, 24), pins)
    load = chance.random(24)
    load[HOT] += hot
    operator = view(table, load)
    key = KeyLoad(b"k", HOT, hot, hot, hot)
    slots = share_slots(operator, key, count)
    assert len(slots) == len(set(slots)) == min(count, 24 - 3)
    assert not {7, 8, 9}.intersection(slots)
    if len(slots) < count:
        return  # there are no more
    before = load.copy()
    before[HOT] -= hot
    others, after = channel_loads(table, before), load.copy()
    after[HOT] -= hot
    after[list(slots)] += hot / count
    free = {int(table.slots[slot]) for slot in set(range(24)) - {7, 8, 9} - set(slots)}
    busy = channel_loads(table, after)
    # A channel that got one had less than any that could have taken it, or than it had before.
    for channel in range(channels):
        if busy[channel] > others[channel] + 1e-9:
            assert all(busy[channel] - hot / count <= busy[other] + 1e-9 for other in free)


def test_the_loop_splits_a_key_and_deals_out_slots_as_they_will_be() -> None:
    settings = Settings(scale=scale_policy("off"), hot_keys=RULE)
    rows = np.full(SLOTS, 50.0)
    rows[HOT] = 4800.0

    def sample(
        batch: int, table: RoutingTable, rows: np.ndarray, at: tuple[int, ...]
    ) -> FlowSample:
        heavy = tuple(HeavyKey(b"k", slot, *[4750.0 / len(at)] * 3) for slot in at)
        operator = OperatorSample(
            name="o",
            table=table,
            rows=rows,
            busy_s=rows / 1000,
            keys=rows,
            state_bytes=rows,
            channel_busy_s=channel_loads(table, rows / 1000),
            heavy=heavy,
            pinned=frozenset(pin.key for pin in table.pins),
            can_split=True,
        )
        return FlowSample(batch, 1.0, 1.0, 1.0, (operator,))

    controller, table = Controller(settings), RoutingTable.initial(SLOTS, CHANNELS)
    never = Controller(replace(settings, hot_keys=replace(RULE, splits=False)))
    held = never.step(sample(0, table, rows, (HOT,)))
    assert not held.split and not held.view.operators["o"].can_split
    cycle = controller.step(sample(0, table, rows, (HOT,)))
    (split,) = cycle.split["o"]
    # The busiest channel had 4.8 + 7 * 0.05 busy seconds, and has 7 * 0.05 and its shares.
    (decided,) = (e for e in cycle.events if isinstance(e, Decided) and e.kind == "split")
    assert decided.gain_s is not None and decided.gain_s / Prices().horizon_s > 3.5
    assert decided.cost_s == len(split.slots) * Prices().slot_s
    table = cycle.tables.get("o", table)
    table = pin_key(table, Pin(b"k", HOT, 0, HOT, split.slots), table.epoch + 1)
    dealt = np.full(SLOTS, 50.0)
    dealt[list(split.slots)] += 4750.0 / len(split.slots)
    assert channel_loads(table, dealt).max() < 1.1 * dealt.sum() / CHANNELS
    # It is known as one key, although several channels have it, and stays as it is.
    cycle = controller.step(sample(1, table, dealt, split.slots))
    (key,) = cycle.view.operators["o"].heavy
    assert key.shares == len(split.slots) and key.load == pytest.approx(4.75, rel=0.05)
    assert not (cycle.split or cycle.whole or cycle.pin or cycle.unpin)

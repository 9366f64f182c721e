"""Hot keys: pinned when heavy and in company, unpinned when cool for a while, and the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from braided.control.hot_keys import HotKeyRule, balance_bound, pin_change
from braided.control.measure.view import KeyLoad, OperatorView
from braided.control.routing.table import RoutingTable
from support.operator_views import view

RULE = HotKeyRule(cool_batches=2)


def seen(*heavy: KeyLoad, pinned: frozenset[bytes] = frozenset()) -> OperatorView:
    load = np.array([2.0, 0.5, 0.5, 1.0])
    return replace(view(RoutingTable.initial(4, 4), load), heavy=heavy, pinned=pinned)


def key(load: float, slot: int = 0, off: float = 0.0, name: bytes = b"k") -> KeyLoad:
    return KeyLoad(name, slot, load, load - off, load + off)


def test_a_key_that_is_heavy_and_in_company_is_pinned() -> None:
    assert [k.key for k in pin_change(seen(key(0.9)), 4, {}, RULE).pin] == [b"k"]


def test_a_key_that_may_not_be_heavy_is_not_pinned() -> None:
    assert not pin_change(seen(key(0.4)), 4, {}, RULE).pin
    assert not pin_change(seen(key(0.9, off=0.6)), 4, {}, RULE).pin


def test_a_key_that_has_its_slot_to_itself_gains_nothing() -> None:
    assert not pin_change(seen(key(1.99)), 4, {}, RULE).pin


def test_the_heaviest_come_first_where_there_is_room_for_few() -> None:
    keys = [key(0.6, name=b"a"), key(0.9, name=b"b"), key(0.7, name=b"c")]
    change = pin_change(seen(*keys), 4, {}, HotKeyRule(pins_max=2))
    assert [k.key for k in change.pin] == [b"b", b"c"]


def test_a_pinned_key_is_let_go_after_it_was_cool_for_a_while() -> None:
    pinned = frozenset([b"k"])
    once = pin_change(seen(pinned=pinned), 4, {}, RULE)
    assert (once.unpin, once.cold) == ((), {b"k": 1})
    warm = pin_change(seen(key(0.3), pinned=pinned), 4, once.cold, RULE)
    assert warm.cold == {b"k": 0}
    twice = pin_change(seen(key(0.1), pinned=pinned), 4, once.cold, RULE)
    assert (twice.unpin, twice.cold) == ((b"k",), {})


def test_no_channel_does_less_than_its_part_or_the_hottest_key() -> None:
    load = np.ones(8)
    assert balance_bound(load, 4) == 2
    assert balance_bound(load, 4, [key(3.0), key(1.0)]) == 3


def test_thresholds_that_would_come_and_go_are_refused() -> None:
    with pytest.raises(ValueError, match="come and go"):
        HotKeyRule(pin_share=0.2, unpin_share=0.3)

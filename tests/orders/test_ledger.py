"""What is kept of orders, and how much of it."""

from __future__ import annotations

from braided.orders.ledger import TRIES_MAX, OrderLedger
from braided.orders.messages import CutOrder, ForgetOrder, Order, StopOrder


def ledger(*orders: Order) -> OrderLedger:
    entered = OrderLedger()
    for order in orders:
        entered.enter(order)
    return entered


def test_the_first_cut_of_a_channel_counts() -> None:
    known = ledger()
    assert known.enter(CutOrder("t", "op", 1, 80))
    assert not known.enter(CutOrder("t", "op", 1, 100))
    assert known.enter(CutOrder("t", "op", 2, 100))
    assert known.cuts("t") == {("op", 1): 80, ("op", 2): 100}
    assert known.cut_of("t", "op", 1) == 80
    assert known.cut_of("t", "other", 1) is None


def test_a_try_that_is_over_leaves_nothing_and_does_not_come_back() -> None:
    known = ledger(StopOrder("t"), CutOrder("t", "op", 1, 80), ForgetOrder("t"))
    assert not known.is_stopped("t") and known.cuts("t") == {} and known.is_over("t")
    assert not known.enter(StopOrder("t"))
    assert not known.enter(CutOrder("t", "op", 1, 80))
    assert not known.enter(ForgetOrder("t"))
    assert not known.is_stopped("t") and known.cuts("t") == {}


def test_the_newest_tries_are_kept() -> None:
    known = ledger(*(StopOrder(f"t{n}") for n in range(100)))
    stopped = [n for n in range(100) if known.is_stopped(f"t{n}")]
    assert stopped == list(range(100 - TRIES_MAX, 100))
    assert len(known.orders()) == TRIES_MAX


def test_of_a_thousand_tries_that_came_and_went_little_is_left() -> None:
    known = OrderLedger()
    for n in range(1000):
        known.enter(StopOrder(f"t{n}"))
        known.enter(CutOrder(f"t{n}", "op", 0, n))
        known.enter(ForgetOrder(f"t{n}"))
    assert len(known.orders()) <= 64


def test_orders_told_again_make_the_same_ledger() -> None:
    known = ledger(
        StopOrder("a"),
        CutOrder("b", "op", 1, 80),
        CutOrder("a", "op", 3, 5),
        StopOrder("c"),
        ForgetOrder("c"),
    )
    copy = ledger(*known.orders())
    assert copy.orders() == known.orders()
    assert copy.is_stopped("a") and not copy.is_stopped("b") and copy.is_over("c")

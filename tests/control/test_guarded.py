"""Policies under guard: what they do wrong is told, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from braided.control.events import encode, read
from braided.control.policies.guarded import Guard, GuardedBalance, GuardedScale
from braided.control.policy import Limits, Wish
from braided.control.routing.table import RoutingTable
from support.operator_views import flow, view

TABLE = RoutingTable.initial(8, 2)
OPERATOR = view(TABLE, np.ones(8))


class Answers:
    """A policy that gives the same answer to everything, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def scale(self, *_: Any) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    balance = scale


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RuntimeError("no idea"), "RuntimeError: no idea"),
        (None, "TypeError"),
        ({"o": Wish(2, "")}, "ValueError"),
        (({"p": Wish(2, "")}, {}), "a wish for 'p'; there are o"),
        (({"o": 2}, {}), "a wish is a Wish, not int"),
        (({"o": Wish(0, "")}, {}), "a wish for 0 channels"),
        (({"o": Wish(2.5, "")}, {}), "a wish for 2.5 channels"),  # type: ignore[arg-type]
        (({}, {"at": object()}), "TypeError"),
        (({}, None), "the memory is a dict, not NoneType"),
    ],
)
def test_wishes_that_can_not_be_are_none(answer: Any, error: str) -> None:
    guard = Guard(batch=3)
    policy = GuardedScale(Answers(answer), guard, "scale mine")
    assert policy.scale(flow(OPERATOR), Limits(), {"kept": 1}) == ({}, {"kept": 1})
    (failed,) = guard.take()
    assert (failed.batch, failed.policy) == (0, "scale mine")  # the batch is the flow's
    assert error in failed.error
    assert list(read([encode(failed)])) == [failed]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RuntimeError("no idea"), "RuntimeError: no idea"),
        (None, "a table is a RoutingTable, not NoneType"),
        (RoutingTable.initial(9, 3), "a table of 9 slots for 8"),
        (RoutingTable(1, 2, TABLE.slots), "a table for 2 channels where 3 were asked for"),
        (RoutingTable.initial(8, 3), "not the next one"),
    ],
)
def test_tables_that_can_not_be_move_the_fewest_slots_instead(answer: Any, error: str) -> None:
    guard = Guard()
    table = GuardedBalance(Answers(answer), guard, "balance mine").balance(OPERATOR, 3)
    assert (table.channels, table.epoch) == (3, 1)
    assert all(table.slots[slot] in (before, 2) for slot, before in enumerate(TABLE.slots))
    (failed,) = guard.take()
    assert error in failed.error


def test_slots_stay_where_nobody_asked_for_channels() -> None:
    policy = GuardedBalance(Answers(ValueError()), Guard(), "balance mine")
    assert policy.balance(OPERATOR, 2) is TABLE


def test_who_failed_is_asked_again_after_ten_batches_then_twenty() -> None:
    guard, answers = Guard(), Answers(ValueError("again"))
    policy = GuardedBalance(answers, guard, "balance mine")
    asked = []
    for batch in range(100):
        guard.batch = batch
        before = answers.asked
        policy.balance(OPERATOR, 2)
        if answers.asked > before:
            asked.append(batch)
    assert asked == [0, 11, 32, 73]
    assert [failed.held_until for failed in guard.take()] == [10, 31, 72, 153]
    assert guard.take() == ()


def test_numbers_of_numpy_are_numbers_too() -> None:
    wishes = ({"o": Wish(np.int64(3), "")}, {})  # type: ignore[arg-type]
    policy = GuardedScale(Answers(wishes), Guard(), "scale mine")
    found, _ = policy.scale(flow(OPERATOR), Limits(), {})
    assert type(found["o"].channels) is int

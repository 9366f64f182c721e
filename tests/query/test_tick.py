"""The bell: each ring is one offset more, and a batch that has begun answers all before it."""

from __future__ import annotations

import threading
import time

import pytest

from braided.spark.tick import Bell

WAIT_S = 30.0


class Source:
    """Where a bell took its source, in order."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.moved = threading.Event()

    def move(self, offset: int) -> None:
        self.offsets.append(offset)
        self.moved.set()


def hung(at: int = -1) -> tuple[Bell, Source]:
    bell, source = Bell(at), Source()
    bell.hang(source.move)
    source.moved.clear()
    return bell, source


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_source_goes_on_where_it_was_left() -> None:
    assert hung()[1].offsets == [-1]
    bell, source = hung(at=7)
    bell.ring()
    assert source.offsets == [7, 8]


def test_what_rang_before_it_hung_is_heard() -> None:
    bell, source = Bell(3), Source()
    bell.ring()
    bell.hang(source.move)
    assert source.offsets == [4]


def test_a_batch_answers_what_rang_until_it_began() -> None:
    bell, source = hung()
    bell.ring()
    bell.ring()  # after Spark looked, and before the batch began
    bell.answer(0)
    assert source.offsets == [-1, 0, 1, 0], "or a batch would follow with nothing to do"
    bell.ring()
    assert source.offsets[-1] == 1


def test_it_rings_when_a_timer_is_due() -> None:
    bell, source = hung()
    bell.set_due(now_ms() + 20)
    assert source.moved.wait(WAIT_S)
    assert source.offsets == [-1, 0]


def test_a_timer_that_is_due_already_rings_before_spark_looks_again() -> None:
    bell, source = hung()
    bell.set_due(0)
    assert source.offsets == [-1, 0]
    bell.set_due(0)
    assert source.offsets == [-1, 0], "once is enough"
    bell.answer(0)
    bell.set_due(0)
    assert source.offsets == [-1, 0, 1]


def test_a_timer_at_the_end_of_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    look = Bell._look

    def looks(self: Bell, due_ms: int) -> None:
        look(self, due_ms)
        looked.set()

    monkeypatch.setattr("braided.spark.tick._LOOK_S", 0.01)
    monkeypatch.setattr(Bell, "_look", looks)
    bell, source = hung()
    bell.set_due(2**63 - 1)
    for _ in range(3):
        assert looked.wait(WAIT_S)
        looked.clear()
    assert source.offsets == [-1]
    bell.close()


def test_a_timer_that_was_answered_set_anew_or_closed_is_silent() -> None:
    due_ms = now_ms() + 3_600_000
    for quiet in (
        lambda bell: bell.answer(-1),
        lambda bell: bell.set_due(due_ms + 1),
        lambda bell: bell.close(),
    ):
        bell, source = hung()
        bell.set_due(due_ms)
        timer = bell._timer
        assert timer is not None
        quiet(bell)
        timer.join(WAIT_S)
        assert not timer.is_alive(), "it was cancelled, or this takes an hour"
        bell._look(0)  # one that was about to ring just then
        assert source.offsets == [-1]
        bell.close()


def test_nobody_hears_a_closed_bell() -> None:
    bell, source = hung()
    bell.close()
    bell.ring()
    bell.set_due(0)
    bell.set_due(now_ms() + 3_600_000)
    assert source.offsets == [-1]
    assert bell._timer is None, "no thread is left to wait"

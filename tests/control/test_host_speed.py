"""Speeds of hosts: what is the host's fault, and what is the slots' own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.measure.estimator import SlotTotals, at_full_speed
from braided.control.measure.host_speed import SPEED_MIN, HostSpeeds, SlotRuns
from braided.control.routing.residence import Residence

SLOTS = 64
NAMES = ("a", "b", "c", "d")


def runs(
    where: np.ndarray,
    speeds: tuple[float, ...],
    cost_s: np.ndarray | float = 0.001,
    noise: np.ndarray | float = 1.0,
) -> SlotRuns:
    """A batch of 100 rows a slot on hosts of these speeds."""
    rows = np.full(where.size, 100.0)
    busy_s = rows * cost_s * noise / np.array(speeds)[where]
    return SlotRuns(rows, busy_s, Residence(NAMES[: len(speeds)], where.astype(np.int32)))


def even(hosts: int) -> np.ndarray:
    return np.arange(SLOTS) % hosts


@given(
    st.lists(st.sampled_from([1.0, 0.7, 0.5, 0.2]), min_size=1, max_size=3),
    st.integers(0, 1000),
)
def test_slow_hosts_are_found_and_nobody_else(slow: list[float], seed: int) -> None:
    speeds = (1.0, *slow)
    chance = np.random.default_rng(seed)
    known = HostSpeeds()
    own = chance.lognormal(0, 0.3, SLOTS) * 0.001
    for _ in range(6):
        noise = chance.lognormal(0, 0.1, SLOTS)
        # Each host has slots of all kinds; who has few of them has few of the dear ones too.
        known.add({"o": runs(even(len(speeds)), speeds, np.sort(own), noise)})
    for name, speed in zip(NAMES, speeds, strict=False):
        assert known.speed(name) == pytest.approx(speed, rel=0.25)
        assert known.speed(name) == 1 or speed < 1


@given(st.lists(st.floats(0.87, 1.0), min_size=2, max_size=4))
def test_less_than_a_fifth_is_none(speeds: list[float]) -> None:
    known = HostSpeeds()
    for _ in range(6):
        known.add({"o": runs(even(len(speeds)), tuple(speeds))})
    assert {known.speed(name) for name in NAMES} == {1.0}
    assert known.of_channels(NAMES) is None
    assert known.of_slots(runs(even(len(speeds)), tuple(speeds)).ran_on) is None


def test_a_change_is_known_after_two_batches_and_a_pause_never() -> None:
    known = HostSpeeds()
    for _ in range(5):
        known.add({"o": runs(even(2), (1.0, 1.0))})
    known.add({"o": runs(even(2), (1.0, 0.2))})
    assert known.speed("b") == 1
    known.add({"o": runs(even(2), (1.0, 1.0))})
    known.add({"o": runs(even(2), (1.0, 1.0))})
    assert known.speed("b") == 1
    known.add({"o": runs(even(2), (1.0, 0.5))})
    known.add({"o": runs(even(2), (1.0, 0.5))})
    assert known.speed("b") == pytest.approx(0.5, rel=0.05)
    for _ in range(3):
        known.add({"o": runs(even(2), (1.0, 1.0))})
    assert known.speed("b") == 1


def test_slots_that_are_dear_wherever_they_run_are_not_a_slow_host() -> None:
    dear = np.where(np.arange(SLOTS) < SLOTS // 2, 0.001, 0.003)
    where = np.where(np.arange(SLOTS) < SLOTS // 2, 0, 1)
    known = HostSpeeds()
    for _ in range(4):
        known.add({"o": runs(where, (1.0, 1.0), dear)})
    # As long as nobody has moved, nobody can tell.
    assert known.speed("b") == pytest.approx(1 / 3, rel=0.05)
    where[-10:] = 0
    for _ in range(5):
        known.add({"o": runs(where, (1.0, 1.0), dear)})
    assert known.speed("a") == known.speed("b") == 1


def test_slots_that_have_been_elsewhere_tell_the_host_from_the_slot() -> None:
    chance = np.random.default_rng(3)
    own = chance.lognormal(0, 1.0, SLOTS) * 0.001
    known = HostSpeeds()
    for _ in range(30):
        where = chance.permutation(even(4))
        for _ in range(3):
            known.add({"o": runs(where, (1.0, 0.4, 1.0, 0.7), own)})
    assert known.speed("b") == pytest.approx(0.4, rel=0.1)
    assert known.speed("d") == pytest.approx(0.7, rel=0.1)
    assert known.speed("a") == known.speed("c") == 1


def _cheaper(batch: int) -> float:
    return 0.001 * (1 + np.exp(-batch / 3))  # caches that fill


def _dearer(batch: int) -> float:
    return 0.001 * (1 + batch / 10)  # state that grows


@pytest.mark.parametrize("cost_s", [_cheaper, _dearer])
def test_what_makes_all_slots_dearer_or_cheaper_is_no_hosts_doing(
    cost_s: Callable[[int], float],
) -> None:
    known = HostSpeeds()
    where = even(2)
    for batch in range(40):
        # Now and then some slots go to the other host, all in one direction.
        if batch in (3, 6, 9):
            where = where.copy()
            where[np.flatnonzero(where == 0)[:8]] = 1
        known.add({"o": runs(where, (1.0, 1.0), cost_s(batch))})
        assert known.speed("a") == known.speed("b") == 1


def test_operators_are_compared_with_themselves_and_speak_together() -> None:
    known = HostSpeeds()
    alone = np.zeros(SLOTS, dtype=int)
    for _ in range(4):
        known.add(
            {
                "cheap": runs(even(2)[:10], (1.0, 0.5), 0.001),
                "dear": runs(even(2)[:10], (1.0, 0.5), 0.1),
                "alone": runs(alone, (1.0, 0.5), 5.0),
            }
        )
    assert known.speed("a") == 1
    assert known.speed("b") == pytest.approx(0.5, rel=0.05)


def test_nothing_is_said_of_who_is_alone_new_or_idle() -> None:
    known = HostSpeeds()
    known.add({})
    for _ in range(5):
        known.add({"o": runs(even(1), (0.3,))})
    assert known.speed("a") == known.speed("nobody") == 1
    # Two batches of a new host, which starts its workers.
    for _ in range(2):
        known.add({"o": runs(even(2), (1.0, 0.3))})
    assert known.speed("b") == 1
    few = SlotRuns(np.full(SLOTS, 2.0), np.ones(SLOTS), Residence(NAMES[:2], even(2)))
    for _ in range(5):
        known.add({"o": few})
    assert known.speed("b") == 1


def test_a_host_without_slots_is_forgotten_some_time_later() -> None:
    known = HostSpeeds()
    for _ in range(4):
        known.add({"o": runs(even(2), (1.0, 0.3))})
    assert known.speed("b") < 0.4
    for _ in range(40):
        known.add({"o": runs(even(1), (1.0,))})
    assert known.speed("b") < 0.4
    for _ in range(40):
        known.add({"o": runs(even(1), (1.0,))})
    assert known.speed("b") == 1


def test_nobody_is_slower_than_a_tenth() -> None:
    known = HostSpeeds()
    for _ in range(4):
        known.add({"o": runs(even(2), (1.0, 0.001))})
    assert known.speed("b") == SPEED_MIN
    channels = known.of_channels(("b", "a", ""))
    assert channels is not None
    assert channels.tolist() == [SPEED_MIN, 1.0, 1.0]


def test_time_at_full_speed_is_what_the_fastest_host_would_have_taken() -> None:
    known = HostSpeeds()
    for _ in range(4):
        known.add({"o": (seen := runs(even(2), (1.0, 0.5)))})
    totals = SlotTotals(seen.rows, seen.busy_s)
    full = at_full_speed(totals, known.of_slots(seen.ran_on))
    assert full.busy_s == pytest.approx(np.full(SLOTS, 0.1), rel=0.05)
    assert at_full_speed(totals, None) is totals

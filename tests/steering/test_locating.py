"""Keys that are to be where others are: what happens when their hashes can't be had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from braided.control.locality.loop import LocalityRule
from braided.control.locality.statistics import PairCounts
from braided.control.loop import Controller, Cycle
from braided.control.measure.view import FlowSample, OperatorSample
from braided.control.policies.guarded import Guard
from braided.control.policy import Limits
from braided.control.routing.key_assignment import Hashes, KeyAssignment
from braided.control.routing.table import RoutingTable
from braided.control.settings import Settings
from braided.control.worth import Prices
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.locating import Locating

SLOTS, KEYS, PERIOD = 32, 200, 4
TABLE = RoutingTable(3, 4, np.arange(SLOTS) % 4, hosts=tuple("aabb"))
TABLES = {"x": TABLE, "y": TABLE}


class Numbered:
    """Hashes of keys that are numbers, by chance; and a Spark that may be out of order."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.fails_when_assigned = False

    def of_keys(self, name: str, keys: Sequence[bytes]) -> tuple[Hashes, Hashes]:
        self.asked += 1
        if self.error is not None and not self.fails_when_assigned:
            raise self.error
        chance = np.random.default_rng(ord(name)).integers(0, 1 << 40, KEYS)
        hashes = np.array([chance[int(key)] for key in keys], np.int64)
        return hashes, hashes

    def assigned(self, name: str, keys: Sequence[bytes], slots: Any) -> KeyAssignment:
        if self.error is not None:
            raise self.error
        return KeyAssignment.of(keys, *self.of_keys(name, keys), slots)


class Steered:
    """Batches of two operators in a row, as the thread of the controller sees them."""

    def __init__(self, pairs_max: int = 200_000) -> None:
        rule = LocalityRule(period_batches=PERIOD, pairs_max=pairs_max)
        limits = Limits(channels_min=4, channels_max=4)
        self.controller = Controller(Settings(limits=limits, locality=rule))
        self.hashes, self.guard = Numbered(), Guard()
        self.commands = Commands(TABLES, Bell())
        self.locating = Locating(cast(Any, self.hashes), self.commands, self.guard)
        self.batch = -1

    def run(self, is_uneven: bool = False) -> Cycle:
        self.batch += 1
        self.guard.batch = self.batch
        cycle = self.controller.step(_sample(self.batch, is_uneven), pairs=_pairs(self.batch))
        cycle = self.locating.locate(self.controller, cycle, {}, Prices())
        self.locating.propose(self.controller, cycle)
        return cycle

    def taken(self) -> set[str]:
        """The operators whose keys the next batch would assign."""
        taken = self.commands.take(lambda name: np.ones(SLOTS))
        return {name for name, table in taken.items() if len(table.assigned.keys)}


def _sample(batch: int, is_uneven: bool) -> FlowSample:
    rows = np.full(SLOTS, 1000.0)
    if is_uneven:
        rows[TABLE.of(0)] = 5000.0
    busy = rows * 2e-5
    by_channel = np.bincount(TABLE.slots, busy, 4)
    keys, size = np.full(SLOTS, 10.0), np.full(SLOTS, 1e4)
    operators = tuple(
        OperatorSample(name, TABLE, rows, busy, keys, size, by_channel, float(rows.sum()))
        for name in TABLES
    )
    return FlowSample(batch, 1.0, 1.0, 0.8, operators, {"y": ("x",)})


def _pairs(seed: int) -> dict[tuple[str, str], list[PairCounts]]:
    keys = [b"%d" % n for n in np.random.default_rng(seed).integers(0, KEYS, 2000).tolist()]
    return {("x", "y"): [PairCounts.of_rows(keys, keys, hold_every=10)]}


def _anchored(steered: Steered) -> float:
    """What all slots would cost more on the other of two hosts."""
    anchors = [each.anchor for each in steered.run().view.operators.values()]
    return float(sum(each.sum() for each in anchors if each is not None))


def test_a_period_ends_with_keys_for_all_operators() -> None:
    steered = Steered()
    for _ in range(PERIOD):
        steered.run()
    assert not steered.guard.failures
    assert steered.taken() == {"x", "y"}


def test_hashes_that_fail_hold_back_locality_alone_and_for_a_while() -> None:
    steered = Steered()
    steered.hashes.error = RuntimeError("Spark is out of order")
    for _ in range(PERIOD):
        cycle = steered.run()
    (failed,) = steered.guard.take()
    assert (failed.policy, failed.held_until) == ("locality", PERIOD - 1 + 10)
    assert not steered.guard.is_held("controller")
    assert not cycle.keys
    assert steered.controller.locality() == {"batches": 0, "rowsCounted": 0, "pairs": 0}

    steered.hashes.error, steered.hashes.asked = None, 0
    balanced: set[str] = set()
    while steered.batch < failed.held_until:
        cycle = steered.run(is_uneven=True)
        assert not cycle.keys
        balanced |= set(cycle.tables)
    assert balanced == {"x", "y"}
    assert not steered.hashes.asked  # though two periods are over
    assert steered.run().keys
    assert steered.taken() == {"x", "y"}


def test_what_is_counted_meanwhile_has_the_bounds_of_a_period() -> None:
    steered = Steered(pairs_max=50)
    steered.hashes.error = RuntimeError("Spark is out of order")
    for _ in range(60):
        steered.run()
        shown = steered.controller.locality()
        assert shown is not None and shown["pairs"] <= 2 * 1.25 * 50
    assert [each.held_until - each.batch for each in steered.guard.take()] == [10, 20, 40]
    assert steered.hashes.asked == 3


def test_what_could_not_be_asked_for_is_not_promised_or_counted_on() -> None:
    steered = Steered()
    steered.hashes.error = RuntimeError("Spark is out of order")
    steered.hashes.fails_when_assigned = True
    for _ in range(PERIOD):
        steered.run()
    assert [each.policy for each in steered.guard.take()] == ["locality"]
    assert not steered.taken()
    shown = steered.controller.locality()
    assert shown is not None and "expected" not in shown
    # Keys are worth where they are what they are worth by their hashes.
    asked = Steered()
    for _ in range(PERIOD):
        asked.run()
    assert _anchored(steered) == pytest.approx(0.5 * _anchored(asked), rel=0.2)


def test_a_query_that_stops_is_no_failure_of_locality() -> None:
    steered = Steered()
    steered.hashes.error = RuntimeError("java.lang.InterruptedException")
    with pytest.raises(RuntimeError, match="Interrupted"):
        for _ in range(PERIOD):
            steered.run()
    assert not steered.guard.failures

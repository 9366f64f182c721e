"""How many executors a query asks for and gives back; only the executors are made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from braided.control.routing.table import RoutingTable
from braided.hosts.fleet import Fleet, FleetBounds
from braided.spark.executors import Executor


class Asked:
    """What Spark was told: how many in all, and who goes."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.released: list[str] = []

    def request(self, total: int) -> None:
        self.totals.append(total)

    def release(self, ids: list[str], total: int) -> None:
        self.released += ids
        self.totals.append(total)


class Case:
    """A fleet of at most four executors of one core each."""

    def __init__(self) -> None:
        self.asked = Asked()
        context: Any = self
        executors: Any = self.asked
        self.fleet = Fleet(context, executors, FleetBounds(1, 4), cores=1)

    def there(self, count: int) -> list[Executor]:
        observed = [Executor(str(n), f"host{n}", 1) for n in range(count)]
        self.fleet.saw(observed)
        return observed


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    yield made
    made.fleet.close()


def tables(channels: int) -> dict[str, RoutingTable]:
    return {"op": RoutingTable(0, channels, np.arange(16, dtype=np.int32) % channels)}


def test_what_is_missing_is_asked_for_again(case: Case) -> None:
    case.there(4)
    assert case.fleet.aim(tables(4))
    assert case.asked.totals == [4]
    assert case.fleet.aim(tables(4))
    assert case.asked.totals == [4], "nothing is missing"
    case.there(3)
    assert not case.fleet.aim(tables(4))
    assert case.asked.totals == [4, 4]


def test_also_after_a_migration_that_has_left_a_number(case: Case) -> None:
    case.there(2)
    case.fleet.aim(tables(2))
    case.fleet.fix(3)
    case.there(2)
    case.asked.totals.clear()
    assert not case.fleet.aim(tables(2))
    assert case.asked.totals == [3]
    case.there(3)
    assert case.fleet.aim(tables(2))
    assert case.asked.totals == [3]


def test_executors_that_have_not_come_yet_are_called_off(case: Case) -> None:
    case.there(2)
    case.fleet.aim(tables(4))
    case.fleet.aim(tables(2))
    assert case.fleet.release(case.there(2), {"host0", "host1"}) == []
    assert (case.asked.totals[-1], case.fleet.requested) == (2, 2)
    assert case.asked.released == []


def test_who_is_given_back_is_not_replaced_and_who_stays_is(case: Case) -> None:
    observed = case.there(4)
    case.fleet.aim(tables(4))
    case.fleet.aim(tables(2))
    assert case.fleet.release(observed, {"host0", "host1", "host2"}) == ["3"]
    assert (case.asked.released, case.asked.totals[-1]) == (["3"], 3)

"""Migrations of a query of which only the batches and the executors are made up."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from braided.control.events import Migrated
from braided.control.planned_change import PlannedChange
from braided.errors import MigrationError, UnsupportedError
from braided.migrate.steps import Strategy
from braided.query.cutting import Cutter
from braided.query.migrating import Migration, Migrations
from support.stream_harness import wait_until


class Cluster:
    """Executors "1" on host "host1" and so on, that come when they are asked for."""

    def __init__(self, executors: int) -> None:
        self.ids = [str(n + 1) for n in range(executors)]
        self.confined_to: frozenset[str] | None = None
        self.is_migrating = False
        self.grows_itself = False
        self.wanted: int | None = None
        self.hosts = SimpleNamespace(host_of=lambda executor: f"host{executor}")

    executors_most = 3

    def look(self) -> list[Any]:
        return [SimpleNamespace(id=id, host=f"host{id}", cores=1) for id in self.ids]

    def weights(self) -> dict[str, float]:
        return {}

    def request(self, total: int) -> None:
        self.wanted = total
        self.ids += [str(n + 1) for n in range(len(self.ids), total)]

    def release(self, executors: frozenset[str], total: int) -> None:
        self.ids = [id for id in self.ids if id not in executors]
        self.wanted = total

    def prepare(self, executors: frozenset[str], *_: Any) -> frozenset[str]:
        return executors

    def plan_on(self, *_: Any) -> PlannedChange:
        return PlannedChange({})

    def confine(self, executors: frozenset[str] | None) -> None:
        self.confined_to = executors

    def is_confined(self, tables: dict[str, Any]) -> bool:
        named = {host for table in tables.values() for host in table.hosts}
        return self.confined_to is not None and named <= {f"host{id}" for id in self.confined_to}


class Query:
    """Whose batches begin and end when a test says so."""

    def __init__(self, cluster: Cluster) -> None:
        self.version: Any = SimpleNamespace(batch=1, tables={}, view=None)
        self.moves = threading.Event()
        self.noted: list[Any] = []
        self.done: list[Migration] = []
        self.failed: list[Exception] = []
        self.migrations = Migrations(
            cluster,  # type: ignore[arg-type]
            Cutter(),
            self.moves.set,
            lambda: None,
            self.noted.append,
        )

    def migrate(self, strategy: Strategy, executors: int | None) -> threading.Thread:
        def migrate() -> None:
            try:
                self.done.append(
                    self.migrations.migrate(strategy, executors, 20.0, lambda: self.version)
                )
            except Exception as error:
                self.failed.append(error)

        thread = threading.Thread(target=migrate, daemon=True)
        thread.start()
        return thread

    def begins(self, tables: dict[str, Any]) -> None:
        assert self.migrations.wait_for_turn(lambda: True)
        self.migrations.began(tables)

    def ends(self, batch: int, tables: dict[str, Any], *ran_on: str) -> dict[str, Any]:
        reports = [
            SimpleNamespace(channel=channel, executor=id, rows_in=10)
            for channel, id in enumerate(ran_on)
        ]
        ended: Any = SimpleNamespace(
            batch=batch, tables=tables, rows_left=0, reports={"sums": reports}
        )
        return self.migrations.ended(ended, 5) or {}


def tables(*executors: str) -> dict[str, Any]:
    return {"sums": SimpleNamespace(hosts=tuple(f"host{id}" for id in executors))}


def test_a_batch_that_ran_before_the_newcomers_were_used_has_not_moved() -> None:
    query = Query(Cluster(2))
    few, many = tables("1", "2"), tables("1", "2", "3")
    query.begins(few)
    with pytest.raises(MigrationError, match="to 4 executors"):
        query.migrations.migrate(Strategy.DSM, 4, 20.0, lambda: query.version)
    moving = query.migrate(Strategy.DSM, 3)
    wait_until(query.moves.is_set, "channels are confined to three executors")

    shown = query.ends(0, few, "1", "2")
    assert shown["restore_s"] is None and shown["outcome"] is None

    query.begins(many)
    shown = query.ends(1, many, "1", "2", "3")
    assert shown["restore_s"] > shown["rebalance_s"] > 0
    assert shown["recovery_s"] is None, "nobody was killed"
    moving.join(20.0)
    assert not moving.is_alive()
    query.begins(many)
    assert query.ends(2, many, "1", "2", "3")["outcome"] == "done"


def test_a_batch_that_is_done_again_where_it_should_be_has_moved() -> None:
    cluster = Cluster(2)
    query = Query(cluster)
    both = tables("1", "2")
    query.begins(both)
    moving = query.migrate(Strategy.DSM, 1)
    wait_until(query.moves.is_set, "channels are confined to one executor")
    shown = query.ends(0, both, "1", "1")
    assert shown["restore_s"] == shown["recovery_s"] == shown["catch_up_s"] > 0
    assert shown["rows_redone"] == 10
    moving.join(20.0)
    assert query.done[0].outcome == "done"
    assert (cluster.ids, cluster.wanted) == (["1"], 1)


def test_a_batch_of_which_a_killed_executor_has_done_a_part_has_not_moved() -> None:
    query = Query(Cluster(2))
    both, one = tables("1", "2"), tables("1")
    query.begins(both)
    moving = query.migrate(Strategy.DSM, 1)
    wait_until(query.moves.is_set, "channels are confined to one executor")
    shown = query.ends(0, both, "1", "2")
    assert shown["restore_s"] is None and shown["recovery_s"] > 0
    query.begins(one)
    shown = query.ends(1, one, "1")
    assert shown["restore_s"] > shown["recovery_s"]
    moving.join(20.0)
    assert query.done[0].outcome == "done"


@pytest.mark.parametrize("strategy", [Strategy.CCR, Strategy.DCR])
def test_a_batch_is_in_flight_from_when_nothing_holds_it_up(strategy: Strategy) -> None:
    """Before its tables are known, too: a migration that begins then waits for it."""
    cluster = Cluster(2)
    query = Query(cluster)
    assert query.migrations.wait_for_turn(lambda: True)
    moving = query.migrate(strategy, 1)
    wait_until(lambda: query.migrations._is_paused or query.moves.is_set(), "batches are paused")
    assert not query.moves.wait(0.5), "it has moved while a batch was in flight"
    query.migrations.began(tables("1", "2"))
    shown = query.ends(0, tables("1", "2"), "1", "2")
    assert shown["drain_s"] > 0 and shown["restore_s"] is None
    query.begins(tables("1"))
    query.ends(1, tables("1"), "1")
    moving.join(20.0)
    assert query.done[0].outcome == "done"
    assert (cluster.ids, cluster.wanted) == (["1"], 1)


def test_what_fails_in_the_middle_is_taken_back_and_raised() -> None:
    cluster = Cluster(2)

    is_over = threading.Event()

    def prepared(*_: Any) -> frozenset[str]:
        cluster.look = broken  # type: ignore[method-assign]
        is_over.wait(20.0)
        return frozenset()

    def broken() -> list[Any]:
        cluster.look = Cluster(3).look  # type: ignore[method-assign]
        raise RuntimeError("Spark does not answer\nat length")

    cluster.prepare = prepared  # type: ignore[method-assign]
    query = Query(cluster)
    for batch in (-2, -1):  # of one batch no rate is known that it could be waited for
        query.begins(tables("1", "2"))
        query.ends(batch, tables("1", "2"), "1", "2")
    query.migrate(Strategy.DCR, 3).join(20.0)
    assert [str(error) for error in query.failed] == ["Spark does not answer\nat length"]
    assert (cluster.ids, cluster.wanted) == (["1", "2"], 2)
    assert cluster.confined_to is None and not cluster.is_migrating
    [noted] = query.noted
    assert isinstance(noted, Migrated)
    assert (noted.outcome, noted.why) == ("undone", "RuntimeError: Spark does not answer")
    query.begins(tables("1", "2"))
    assert query.ends(0, tables("1", "2"), "1", "2")["outcome"] == "undone"
    query.begins(tables("1", "2"))
    assert query.ends(1, tables("1", "2"), "1", "2") == {}, "it is shown for ever"
    is_over.set()


def test_more_executors_than_there_may_be_are_not_asked_for_meanwhile_either() -> None:
    query = Query(Cluster(2))
    with pytest.raises(MigrationError, match=r"needs 4 for a while.*maxExecutors is 3.*'dsm'"):
        query.migrations.migrate(Strategy.CCR, None, 20.0, lambda: query.version)
    with pytest.raises(MigrationError, match="needs 4 for a while"):
        query.migrations.plan(Strategy.DCR, None, query.version, {})
    assert query.migrations.plan(Strategy.DSM, None, query.version, {}) is not None


def test_a_dry_run_says_how_state_is_brought_by_that_strategy() -> None:
    query = Query(Cluster(2))
    plans = {each: query.migrations.plan(each, 1, query.version, {}) for each in Strategy}
    assert {each: (plan.is_prefetched, plan.is_paused_for) for each, plan in plans.items()} == {
        Strategy.DSM: (False, False),
        Strategy.DCR: (True, False),
        Strategy.CCR: (False, True),
    }


def test_nobody_migrates_against_spark_s_own_allocation() -> None:
    cluster = Cluster(2)
    cluster.grows_itself = True
    query = Query(cluster)
    for asks in (
        lambda: query.migrations.migrate(Strategy.CCR, 1, 20.0, lambda: query.version),
        lambda: query.migrations.plan(Strategy.CCR, 1, query.version, {}),
    ):
        with pytest.raises(UnsupportedError, match=r"dynamicAllocation\.enabled=false"):
            asks()

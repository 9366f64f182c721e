"""Migrations of a query of which only the batches and the executors are made up."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from braided.errors import MigrationError
from braided.migrate.steps import Strategy
from braided.query.cutting import Cutter
from braided.query.migrating import Migrations
from support.stream_harness import wait_until


class Cluster:
    """Executors "1" on host "host1" and so on, that come when they are asked for."""

    def __init__(self, executors: int) -> None:
        self.ids = [str(n + 1) for n in range(executors)]
        self.confined_to: frozenset[str] | None = None
        self.is_migrating = False
        self.hosts = SimpleNamespace(host_of=lambda executor: f"host{executor}")

    executors_most = 3

    def look(self) -> list[Any]:
        return [SimpleNamespace(id=id, host=f"host{id}", cores=1) for id in self.ids]

    def weights(self) -> dict[str, float]:
        return {}

    def request(self, total: int) -> None:
        self.ids += [str(n + 1) for n in range(len(self.ids), total)]

    def confine(self, executors: frozenset[str] | None) -> None:
        self.confined_to = executors

    def is_confined(self, tables: dict[str, Any]) -> bool:
        named = {host for table in tables.values() for host in table.hosts}
        return self.confined_to is not None and named <= {f"host{id}" for id in self.confined_to}


def tables(*executors: str) -> dict[str, Any]:
    return {"sums": SimpleNamespace(hosts=tuple(f"host{id}" for id in executors))}


def outcome(batch: int, tables: dict[str, Any]) -> Any:
    return SimpleNamespace(batch=batch, tables=tables, rows_left=0, reports={})


def test_a_batch_that_ran_before_the_newcomers_were_used_has_not_moved() -> None:
    cluster = Cluster(2)
    ring = threading.Event()
    migrations = Migrations(cluster, Cutter(), ring.set, lambda _: None)  # type: ignore[arg-type]
    few, many = tables("1", "2"), tables("1", "2", "3")
    migrations.began(few)
    version: Any = SimpleNamespace(batch=1)
    with pytest.raises(MigrationError, match="to 4 executors"):
        migrations.migrate(Strategy.DSM, 4, 20.0, lambda: version)
    moving = threading.Thread(
        target=migrations.migrate, args=(Strategy.DSM, 3, 20.0, lambda: version)
    )
    moving.start()
    wait_until(ring.is_set, "channels are confined to three executors")

    shown = migrations.ended(outcome(0, few), 5)
    assert shown is not None
    assert shown["restore_s"] is None and shown["outcome"] is None

    migrations.began(many)
    shown = migrations.ended(outcome(1, many), 5)
    assert shown is not None
    assert shown["restore_s"] > shown["rebalance_s"] > 0
    moving.join(20.0)
    assert not moving.is_alive()
    migrations.began(many)
    shown = migrations.ended(outcome(2, many), 5)
    assert shown is not None and shown["outcome"] == "done"

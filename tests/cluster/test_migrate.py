"""Queries that move to other executors while they run, by each strategy, and lose no row."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import braided
from braided.api.query import ElasticQuery
from braided.bench.standalone_cluster import StandaloneCluster
from support.bare import ROOT
from support.cluster_operators import INPUT, OUTPUT, Sums, Waits, expected_sums
from support.cluster_session import HOSTS
from support.stream_harness import Lab, wait_until

ROWS = 200
WAIT_S = 0.01


class Migrating:
    """Two operators on a cluster, with batches that take a second each."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.feed = lab.feed(INPUT)
        self.rows: list[tuple[int, int]] = []
        self._random = random.Random(5)
        stream = braided.stream(self.feed.frame(maxFilesPerTrigger=1)).groupBy("k")
        waits = stream.apply(Waits.with_(wait_s=WAIT_S), INPUT).name("waits")
        sums = waits.groupBy("k").apply(Sums.with_(ballast_bytes=200), OUTPUT).name("sums")
        self.add(2)
        self.query: ElasticQuery = lab.start(sums, slots=32, channels=4, balance="static")

    def add(self, batches: int) -> None:
        for _ in range(batches):
            rows = [(self._random.randrange(100), self._random.randrange(50)) for _ in range(ROWS)]
            self.rows += rows
            self.feed.add(rows)

    def migrate(self, strategy: str, executors: Any, **more: Any) -> Any:
        """While batches run."""
        begun = self.sections()[-1]["batchId"] if self.sections() else -1
        self.add(6)
        wait_until(lambda: self.newest_batch() > begun, "a batch has ended", 120)
        return self.query.migrate(strategy, executors, **more)

    def newest_batch(self) -> int:
        return max((section["batchId"] for section in self.sections()), default=-1)

    def sections(self) -> list[dict[str, Any]]:
        return [p["braided"] for p in self.query.recentProgress if "braided" in p]

    def hosts(self) -> set[str]:
        """Where the newest batch with rows ran."""
        self.add(1)
        self.query.processAllAvailable()
        tables = self.query.routing().values()
        return {host for table in tables for host in table.hosts}

    def all_hosts(self) -> set[str]:
        """Those of the cluster, once channels are on all of them: hosts that have just come are
        warmed first.
        """
        wait_until(lambda: len(self.hosts()) == HOSTS, "channels are on every host", 180)
        return self.hosts()

    def check(self) -> None:
        self.query.processAllAvailable()
        self.query.stop()
        found: dict[int, tuple[int, int]] = {}
        output = self.lab.spark.read.parquet(str(self.lab.out)).collect()
        assert len(output) == len(self.rows)
        for row in output:
            found[row.k] = max(found.get(row.k, (0, 0)), (row.n, row.s))
        assert found == expected_sums(self.rows)


def test_a_query_goes_where_it_is_told_by_each_strategy_and_loses_nothing(
    lab: Lab, cluster: StandaloneCluster
) -> None:
    flow = Migrating(lab)
    flow.query.processAllAvailable()
    before = flow.all_hosts()

    planned = flow.query.migrate("ccr", 2, dry_run=True)
    assert planned.slots_to_other_hosts > 0
    assert flow.hosts() == before  # nothing has changed

    captured = flow.migrate("ccr", 2)
    assert (captured.outcome, captured.why) == ("done", "")
    kept = flow.hosts()
    assert len(kept) == 2 and kept < before
    metrics = captured.metrics
    assert metrics.strategy == "ccr"
    assert metrics.rows_lost == metrics.rows_repeated == metrics.rows_redone == 0
    assert metrics.restore_s is not None and metrics.catch_up_s is not None
    assert metrics.drain_s is not None and metrics.rebalance_s is not None
    shown = [section["migration"] for section in flow.sections() if "migration" in section]
    assert shown[-1]["strategy"] == "ccr" and shown[-1]["restore_s"] == metrics.restore_s

    drained = flow.migrate("dcr", 4)
    assert drained.outcome == "done", drained
    assert flow.hosts() == before
    assert drained.metrics.prepare_s is not None and drained.metrics.catch_up_s is None

    named = sorted(before - kept)
    killed = flow.migrate("dsm", named)
    assert killed.outcome == "done", killed
    assert flow.hosts() == set(named)
    metrics = killed.metrics
    assert metrics.drain_s is None and metrics.recovery_s is not None
    assert metrics.catch_up_s is not None and metrics.recovery_s <= metrics.catch_up_s
    flow.check()


def test_what_can_not_be_done_in_time_is_undone(lab: Lab) -> None:
    flow = Migrating(lab)
    flow.query.processAllAvailable()
    before = flow.all_hosts()
    undone = flow.migrate("dcr", [*before, "127.0.0.77"], timeout=3.0)
    assert undone.outcome == "undone"
    assert "did not come in time" in undone.why
    assert flow.hosts() == before
    for wrong in (0, True, [], [""]):
        with pytest.raises(ValueError, match="migrate takes"):
            flow.query.migrate("ccr", wrong)
    with pytest.raises(ValueError, match="'dsm', 'dcr', 'ccr'"):
        flow.query.migrate("now", 2)
    flow.check()


def test_who_is_lost_after_a_scale_in_is_replaced_also_if_nobody_asked_for_executors_before(
    tmp_path: Path,
) -> None:
    """In a process of its own: in this one, `spark` has asked."""
    ways = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    program = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/scale_in_program.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": ways},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert program.returncode == 0, program.stderr[-3000:]
    said = json.loads(program.stdout.splitlines()[-1])
    assert said == {"outcome": "done", "replaced": True, "goes_on": True}

"""The benchmark of hosts on a few rows: that it measures what it says, not what comes out."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from braided.bench.hosts import HostsSize, measure
from braided.bench.standalone_cluster import StandaloneCluster

SIZE = HostsSize(
    keys=300,
    padding=100,
    rows=200,
    batches=2,
    warm=2,
    files=300,
    kills=False,
    brief=("no_placement", "placement"),
)


def test_all_modes_go_through_all_phases_and_end_with_the_same_totals(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    result = measure(spark, cluster, tmp_path, SIZE, lambda _: None)
    assert result["identical"]
    assert result["bytes_caught_up_stable"] == 0
    assert result["on_planned_host"] > 0.9
    assert {"moved_batch_ratio", "grow_batch_ratio", "grow_start_ratio"} <= result.keys()
    assert set(result["modes"]) == {"no_placement", "placement", "prefetch"}
    assert list(result["modes"]["prefetch"]) == ["stable", "rebalance", "grow", "shrink"]
    for phases in result["modes"].values():
        assert list(phases)[:2] == ["stable", "rebalance"]
        assert all(phase["rows_per_s"] > 0 for phase in phases.values())
        assert all(phase["executor_seconds"] > 0 for phase in phases.values())
    prefetched = {
        mode: sum(phase["bytes_prefetched"] for phase in phases.values())
        for mode, phases in result["modes"].items()
    }
    assert prefetched["no_placement"] == prefetched["placement"] == 0 < prefetched["prefetch"]

"""The benchmark of migrations on a flow that hardly waits: that it measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braided.bench import migrate
from braided.bench.migrate import MigrateSize, measure
from braided.workloads.dataflows import DATAFLOWS

LINEAR = next(dataflow for dataflow in DATAFLOWS if dataflow.name == "linear")
SIZE = MigrateSize(
    dataflows=(LINEAR,),
    cases=(("ccr", "in"), ("ccr", "in"), ("dsm", "out")),
    batches=1,
    stabilised=(),
    is_rehearsed=False,
    wait_s=0.01,
)


def test_dataflows_have_the_tasks_instances_and_output_of_the_paper() -> None:
    assert {d.name: (len(d.tasks), d.instances) for d in DATAFLOWS} == {
        "linear": (5, 5),
        "diamond": (5, 8),
        "star": (5, 8),
        "grid": (15, 21),
        "traffic": (11, 13),
    }
    for dataflow in DATAFLOWS:
        ends = [path for task in dataflow.last for path in dataflow.paths(task)]
        assert len(ends) == {"linear": 1, "traffic": 3}.get(dataflow.name, 4)


def test_cases_are_measured_and_rows_come_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LEAVING_S", 0.1)
    result = measure(spark, tmp_path, SIZE, lambda _: None)
    assert result["identical"]
    assert result["rows_lost"] == result["rows_repeated"] == 0
    assert result["grid_in_restore_ratio"] is None
    inwards, again, outwards = result["cases"]
    # What can't be measured costs no more than its own figures.
    assert again["note"] == "not tried: there are 2 executors to begin with, not 4"
    assert again["strategy"] == "ccr" and again["restore_s"] is None
    assert result["paper"]["comparable"] and result["paper"]["not_comparable"]
    assert (inwards["dag"], inwards["strategy"], inwards["direction"]) == ("linear", "ccr", "in")
    assert (outwards["strategy"], outwards["direction"]) == ("dsm", "out")
    for case in (inwards, outwards):
        assert case["rows_lost"] == case["rows_repeated"] == 0
        assert case["pause_s"] > 0 and 0 < case["rebalance_s"] < case["restore_s"]
        assert case["catch_up_s"] >= case["restore_s"]
        assert case["stabilise_s"] is case["paper_restore_s"] is None
        assert case["note"] == "stable output was not waited for"
    assert inwards["prepare_s"] > 0 and inwards["drain_s"] >= 0
    assert inwards["paper_drain_s"] == 0.256
    assert outwards["prepare_s"] is outwards["drain_s"] is outwards["paper_drain_s"] is None

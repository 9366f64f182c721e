"""What an operator puts over its rows is planned twice, and anew when something is otherwise."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

import braided
from braided.spark.plan_top import PlanTop, PlanTops
from support.stream_harness import Lab, wait_until
from support.stream_operators import SCHEMA, BatchTotals, Totals

ROWS = [(f"k{i % 4}", i % 3, i, i) for i in range(12)]
BATCHES = 4


def tops_of(spark: SparkSession) -> PlanTops:
    """They keep nothing before their class is compiled."""
    tops = PlanTops(spark)
    wait_until(tops._maker.done, "the class is compiled")
    return tops


def test_a_plan_fits_over_rows_with_the_same_columns_and_no_others(spark: SparkSession) -> None:
    rows = spark.range(6).selectExpr("id", "id % 3 AS k")
    made = rows.filter("k > 0").selectExpr("*", "id + k AS total").sortWithinPartitions("total")
    top = tops_of(spark).of(made, rows)
    assert top is not None
    fewer = top.over(rows.filter("id > 2"))
    assert fewer is not None
    assert fewer.collect() == made.filter("id > 2").collect() != []
    assert fewer.schema == made.schema
    assert top.over(spark.range(6).selectExpr("id", "id % 3 AS k")) is None
    assert top.over(rows.select("id")) is None


def test_an_operator_is_planned_over_each_batch_and_anew_by_another_table(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    tops_of(lab.spark)
    fitted: list[bool] = []
    over = PlanTop.over

    def noted(top: PlanTop, frame: DataFrame) -> DataFrame | None:
        made = over(top, frame)
        fitted.append(made is not None)
        return made

    monkeypatch.setattr(PlanTop, "over", noted)
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).name("totals")
    flow = flow.groupBy("c").apply(BatchTotals, SCHEMA).name("batches")
    with lab.running(flow, channels=2) as query:
        for number in range(BATCHES):
            feed.add(ROWS)
            query.processAllAvailable()
            # On hosts, what runs there is made of the rows themselves.
            each = [] if any(query.routing()["totals"].hosts) else [True, True]
            assert fitted == each * max(0, number - 1)
        query.rescale(3, operator="totals")
        query.processAllAvailable()
        assert query.routing()["totals"].channels == 3
        for _ in range(2):
            fitted.clear()
            feed.add(ROWS)
            query.processAllAvailable()
        assert fitted == each
    totals = {(k,): {"count": 0, "total": 0} for k, *_ in ROWS}
    for k, _, v, _ in ROWS:
        totals[k,]["count"] += BATCHES + 2
        totals[k,]["total"] += v * (BATCHES + 2)
    assert lab.state(flow, "totals") == totals

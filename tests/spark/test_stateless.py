"""Stateless DataFrame methods before, between and after keyed operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

import braided
from braided.errors import DefinitionError, UnsupportedError
from support.stream_harness import Lab
from support.stream_operators import SCHEMA, Threshold, Totals

ROWS = [("ab"[i % 2] if i % 5 else None, i % 3, i, i) for i in range(30)]


def test_every_stateless_method_works_before_between_and_after_operators(lab: Lab) -> None:
    def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            frame["v"] *= 2
            yield frame

    def shifted(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            v = pa.array([value + 1 for value in chunk["v"].to_pylist()], pa.int64())
            yield chunk.set_column(chunk.schema.get_field_index("v"), "v", v)

    names = lab.spark.createDataFrame([(0, "zero"), (1, "one")], "c int, name string")
    feed = lab.feed(SCHEMA)
    feed.add(ROWS, files=2)

    class Pass(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            yield row

    def steps(stream: braided.Stream) -> braided.Stream:
        return (
            stream.select("*")
            .select(F.col("*"), F.col("v").alias("w"))
            .selectExpr("*", "v + w AS x")
            .filter(F.col("v") >= 2)
            .where("seq < 28")
            .withColumn("y", F.col("x") - F.col("w"))
            .withColumns({"z": F.lit(1)})
            .withColumnRenamed("z", "one")
            .withColumnsRenamed({"one": "uno"})
            .drop("w", "uno")
            .fillna({"k": "nobody"})
            .dropna(subset=["c"])
            .replace("a", "A", subset=["k"])
            .join(F.broadcast(names), "c", "left")
            .fillna("many", subset=["name"])
            .select("k", "c", "v", "seq", "name")
            .mapInPandas(doubled, "k string, c int, v bigint, seq bigint, name string")
            .mapInArrow(shifted, "k string, c int, v bigint, seq bigint, name string")
            .drop("name")
            .toDF("k", "c", "v", "seq")
            .transform(lambda s: s.filter("v > 0"))
        )

    def expected(rows: list[Any]) -> list[Any]:
        found = []
        for k, c, v, seq in rows:
            if v >= 2 and seq < 28:
                found.append(({"a": "A", None: "nobody"}.get(k, k), c, 2 * v + 1, seq))
        return found

    flow = steps(braided.stream(feed.frame())).groupBy("k").apply(Pass, SCHEMA).name("one")
    flow = steps(flow).groupBy("c").apply(Pass, SCHEMA).name("two")
    flow = steps(flow)
    assert flow.schema.simpleString() == "struct<k:string,c:int,v:bigint,seq:bigint>"
    lab.run(flow, channels=2)
    once, twice = expected(ROWS), expected(expected(ROWS))
    assert Counter(lab.rows()) == Counter(expected(twice))
    assert lab.state(flow, "one") == {
        (k,): {"rows": n} for k, n in Counter(row[0] for row in once).items()
    }
    assert lab.state(flow, "two") == {
        (c,): {"rows": n} for c, n in Counter(row[1] for row in twice).items()
    }


def test_columns_of_the_stream_itself_can_be_used_after_an_operator(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    kept = flow.filter(flow.v > 50).withColumn("v", flow["v"] + flow.c).select(flow.k, "v")
    lab.run(kept, channels=2)
    sums: dict[Any, list[int]] = {}
    expected = []
    for k, _, v, _ in ROWS:
        sums.setdefault(k, []).append(v)
        if sum(sums[k]) > 50:
            expected.append((k, sum(sums[k]) + len(sums[k])))
    assert Counter(lab.rows()) == Counter(expected)


def test_steps_between_operators_can_be_written_in_any_way_that_spark_takes(lab: Lab) -> None:
    class Pass(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            yield row.k, row["with.dots"], row.n

    other = lab.spark.createDataFrame([("a", 1), ("b", 2)], "k string, n int")
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).name("one")
    flow = flow.withColumn("with.dots", F.lit(1)).select("*").selectExpr("*").fillna("x", ["k"])
    flow = flow.dropna("any", None, ["k"]).replace("x", "y", ["k"]).fillna(0)
    flow = flow.join(F.broadcast(other), F.col("seq") % 2 == F.col("n") - 1).drop(other.k)
    flow = flow.select("k", "`with.dots`", "n")
    flow = flow.groupBy("k").apply(Pass, "k string, d int, n int").name("two")
    lab.run(flow, channels=2)
    assert Counter(lab.rows()) == Counter(
        ("y" if k is None else k, 1, seq % 2 + 1) for k, _, _, seq in ROWS
    )


def test_a_step_that_multiplies_an_operators_partitions_fails_the_batch(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    other = lab.spark.range(4).repartition(2).hint("shuffle_replicate_nl")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).crossJoin(other)
    query = lab.start(flow, channels=2)
    with pytest.raises(StreamingQueryException, match="changes its partitions"):
        query.processAllAvailable()


@pytest.mark.parametrize("channels", [1, 3])
def test_order_survives_stateless_steps(lab: Lab, channels: int) -> None:
    names = lab.spark.createDataFrame([(0, "zero"), (1, "one")], "c int, name string")
    feed = lab.feed(SCHEMA)
    feed.add(ROWS, files=3)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    flow = (
        flow.select("*")
        .select("k", F.col("c").alias("n"), "seq")
        .selectExpr("*", "n % 3 AS c")
        .join(F.broadcast(names), "c", "left")
        .fillna("many")
        .drop("n")
        .toDF("c", "k", "seq", "name")
        .filter("name != 'one'")
    )
    lab.run(flow, channels=channels, orderBy="seq", orderPreserving=True)
    seen: Counter[Any] = Counter()
    expected = []
    for k, _, _, seq in ROWS:
        seen[k] += 1
        name = {0: "zero", 1: "one"}.get(seen[k] % 3, "many")
        if name != "one":
            expected.append((seen[k] % 3, k or "many", seq, name))
    assert lab.rows() == expected


def test_order_preserving_mode_refuses_a_function_that_loses_the_order(lab: Lab) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Totals, SCHEMA)
    flow = flow.mapInPandas(lambda frames: frames, SCHEMA)
    with pytest.raises(UnsupportedError, match=r"mapInPandas\(\) after operator 'Totals'"):
        lab.start(flow, "noop", orderPreserving=True)


@pytest.mark.parametrize(
    "method",
    [
        *("dropDuplicates", "drop_duplicates", "distinct", "orderBy", "sort", "limit", "agg"),
        *("withWatermark", "unionByName", "intersect", "subtract", "sample", "groupby"),
        *("repartition", "coalesce", "rollup", "cube", "collect", "count", "show", "write"),
        "cache",
    ],
)
def test_what_has_no_meaning_after_an_operator_is_refused_with_a_sentence(
    lab: Lab, method: str
) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Totals, SCHEMA)
    with pytest.raises(UnsupportedError) as raised:
        getattr(flow, method)
    assert str(raised.value).startswith(f"{method}() after a keyed operator: ")
    assert len(str(raised.value).split()) > 6


def test_what_depends_on_chance_or_on_a_stream_is_refused_after_an_operator(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    for step in (
        lambda: flow.withColumn("r", F.rand()),
        lambda: flow.select("*", F.monotonically_increasing_id()),
        lambda: flow.filter("rand() > 0.5"),
    ):
        with pytest.raises(UnsupportedError, match="not deterministic"):
            step()
    with pytest.raises(UnsupportedError, match="static DataFrame"):
        flow.join(feed.frame(), "k")
    with pytest.raises(UnsupportedError, match=r"\.apply\(OperatorClass, schema\)"):
        flow.groupBy("k").applyInPandas(print, SCHEMA)
    with pytest.raises(AnalysisException, match="nothing"):
        flow.select("nothing")
    with pytest.raises(AttributeError, match="no_such_method"):
        flow.no_such_method  # noqa: B018


def test_flows_that_can_not_run_are_refused_where_they_are_written(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    with pytest.raises(DefinitionError, match="not streaming"):
        braided.stream(lab.spark.range(1)).select("id")
    with pytest.raises(DefinitionError, match="takes a DataFrame, not str"):
        braided.stream("df")  # type: ignore[arg-type]
    stream = braided.stream(feed.frame())
    with pytest.raises(DefinitionError, match="no keyed operator"):
        stream.writeStream  # noqa: B018
    with pytest.raises(DefinitionError, match=r"derived from braided\.Operator"):
        stream.groupBy("k").apply(dict, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="not understood"):
        stream.groupBy("k").apply(Totals, "k strig")
    with pytest.raises(DefinitionError, match="ProcessingTime or EventTime"):
        stream.groupBy("k").apply(Totals, SCHEMA, timeMode="Sometimes")
    with pytest.raises(DefinitionError, match="withWatermark"):
        stream.groupBy("k").apply(Totals, SCHEMA, timeMode="EventTime").writeStream.format(
            "noop"
        ).start()
    with pytest.raises(DefinitionError, match="can't name an operator"):
        stream.groupBy("k").apply(Totals, SCHEMA).name("a/b")
    with pytest.raises(DefinitionError, match="goes after an operator"):
        stream.name("early")


def test_a_stream_shows_its_schema_and_plan_as_a_dataframe_does(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k", "c").apply(Threshold, SCHEMA)
    flow = flow.select("k", F.expr("v + 1").alias("more"))
    assert flow.schema.simpleString() == "struct<k:string,more:bigint>"
    assert flow.columns == ["k", "more"]
    assert flow.dtypes == [("k", "string"), ("more", "bigint")]
    assert flow.isStreaming
    assert repr(flow) == "braided.Stream[k: string, more: bigint]"
    flow.printSchema()
    assert " |-- more: long" in capsys.readouterr().out
    flow.explain()
    shown = capsys.readouterr().out
    assert "braided operator 'Threshold': Threshold by (k, c)" in shown
    assert "Physical Plan" in shown
    flow.explain(True)
    assert "Analyzed Logical Plan" in capsys.readouterr().out

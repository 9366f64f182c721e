"""Every place that output can go to, and every trigger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import braided
from braided.errors import CheckpointMismatchError, DefinitionError, UnsupportedError
from support.power_cut import cut_at
from support.stream_harness import Feed, Lab, last_batch, wait_until
from support.stream_operators import SCHEMA, Totals

ROWS = [("ab"[i % 2], 0, i, i) for i in range(6)]
TOTALS = [
    ("a", 1, 0, 0), ("b", 1, 1, 1), ("a", 2, 2, 2), ("b", 2, 4, 3), ("a", 3, 6, 4), ("b", 3, 9, 5),
]  # fmt: skip


@pytest.fixture
def feed(lab: Lab) -> Feed:
    made = lab.feed(SCHEMA)
    made.add(ROWS[:4])
    made.add(ROWS[4:])
    return made


def flow(feed: Feed) -> braided.Stream:
    frame = feed.frame(maxFilesPerTrigger=1)
    return braided.stream(frame).groupBy("k").apply(Totals, SCHEMA)


def found(df: DataFrame) -> Counter[Any]:
    return Counter(map(tuple, df.select("k", "c", "v", "seq").collect()))


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_file_formats_show_exactly_the_output(lab: Lab, feed: Feed, kind: str) -> None:
    lab.run(flow(feed), kind)
    assert (lab.out / "_spark_metadata").is_dir()
    assert found(lab.spark.read.schema(SCHEMA).format(kind).load(str(lab.out))) == Counter(TOTALS)


def test_the_log_of_a_file_sink_is_compacted_by_spark_and_goes_on(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    for row in ROWS:
        feed.add([row])
    log = lab.out / "_spark_metadata"
    every = "spark.sql.streaming.fileSink.log.compactInterval"
    lab.spark.conf.set(every, "3")
    try:
        lab.run(flow(feed), "parquet")
        assert {"2.compact", "3", "4", "5.compact"} <= {path.name for path in log.iterdir()}
        feed.add([("c", 0, 1, 9)])
        lab.run(flow(feed), "parquet")
    finally:
        lab.spark.conf.unset(every)
    assert found(lab.spark.read.parquet(str(lab.out))) == Counter([*TOTALS, ("c", 1, 1, 9)])
    lines = {
        path.name: path.read_text().splitlines() for path in log.iterdir() if path.name[0] != "."
    }
    assert lines["6"][0] == lines["5.compact"][0], "ours have the version that Spark's have"


def test_options_of_a_file_format_reach_it(lab: Lab, feed: Feed) -> None:
    writer = flow(feed).writeStream.option("header", True).option("sep", ";")
    query = writer.trigger(once=True).start(
        str(lab.out), format="csv", checkpointLocation=str(lab.checkpoint), outputMode="update"
    )
    query.awaitTermination()
    files = [p.read_text().splitlines() for p in lab.out.glob("*.csv")]
    assert {lines[0] for lines in files} == {"k;c;v;seq"}
    assert sorted(line for lines in files for line in lines[1:])[:2] == ["a;1;0;0", "a;2;2;2"]


def test_text_takes_one_column_and_partition_by_makes_directories(lab: Lab, feed: Feed) -> None:
    lines = flow(feed).selectExpr("k", "concat(k, ':', v) AS line")
    writer = lines.writeStream.partitionBy("k").trigger(availableNow=True)
    query = writer.start(path=str(lab.out), format="text", checkpointLocation=str(lab.checkpoint))
    query.awaitTermination()
    assert sorted(p.name for p in lab.out.iterdir() if p.name[0] != "_") == ["k=a", "k=b"]
    read = lab.spark.read.text(str(lab.out))
    assert Counter(map(tuple, read.select("value", "k").collect())) == Counter(
        (f"{k}:{v}", k) for k, _, v, _ in TOTALS
    )


def test_parquet_by_partition_is_exactly_the_output(lab: Lab, feed: Feed) -> None:
    writer = flow(feed).writeStream.format("parquet").partitionBy("k", "c")
    options = {"path": str(lab.out), "checkpointLocation": f"file://{lab.checkpoint}"}
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()
    assert (lab.out / "k=a" / "c=3").is_dir()
    assert found(lab.spark.read.parquet(str(lab.out))) == Counter(TOTALS)


ODD = [
    None, "", " ", "a/b", "a=b", "k=a", "%2F", "100%", "ü€", ".", "..", "x y", "#?&", "a:b", "'\"`",
    "__HIVE_DEFAULT_PARTITION__", "null", "1", "[b]", "{c}", "~", "*", "line\nbreak", "tab\t",
]  # fmt: skip


def test_any_value_makes_a_partition_and_comes_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark writes partitions: an empty string, and Spark's own word for null, are null."""
    feed = lab.feed("k string, c int, v long, seq long")
    keyed = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)

    def start() -> braided.ElasticQuery:
        writer = keyed.writeStream.format("parquet").partitionBy("K").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(lab.checkpoint)).start(str(lab.out))

    for batch in range(2):
        feed.add([(k, 0, i, i) for i, k in enumerate(ODD)])
        with cut_at(monkeypatch, "publishing"), pytest.raises(Exception, match="power cut"):
            start().awaitTermination()
        start().awaitTermination()
        read = lab.spark.read.schema("c int, v long, seq long, k string").parquet(str(lab.out))
        nulls = ("", "__HIVE_DEFAULT_PARTITION__")
        expected = Counter(
            (None if k in nulls else k, c, i * c, i)
            for c in range(1, batch + 2)
            for i, k in enumerate(ODD)
        )
        assert found(read) == expected
    native = lab.home / "native"
    lab.spark.createDataFrame([(k, 1) for k in ODD], "k string, v int").write.partitionBy(
        "k"
    ).parquet(str(native))
    assert {p.name for p in native.glob("k=*")} == {p.name for p in lab.out.glob("k=*")}


def test_partitions_of_every_simple_type_come_back(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    typed = flow(feed).selectExpr(
        "seq",
        "c = 1 AS flag",
        "DATE'2024-02-29' + c AS day",
        "TIMESTAMP'2024-02-29 23:59:59.5' AS moment",
        "CAST(v / 4 AS DECIMAL(10, 2)) AS price",
        "CAST(CASE WHEN v > 2 THEN v / 4 END AS DOUBLE) AS number",
    )
    by = ["flag", "day", "moment", "price", "number"]
    writer = typed.writeStream.partitionBy(by).trigger(availableNow=True)
    writer.start(str(lab.out), "orc", checkpointLocation=str(lab.checkpoint)).awaitTermination()
    read = lab.spark.read.schema(typed.schema).orc(str(lab.out))
    expected = lab.spark.createDataFrame(TOTALS, SCHEMA).selectExpr(
        "seq",
        "c = 1 AS flag",
        "DATE'2024-02-29' + c AS day",
        "TIMESTAMP'2024-02-29 23:59:59.5' AS moment",
        "CAST(v / 4 AS DECIMAL(10, 2)) AS price",
        "CAST(CASE WHEN v > 2 THEN v / 4 END AS DOUBLE) AS number",
    )
    names = ["seq", *by]
    assert sorted(map(tuple, read.select(names).collect()), key=str) == sorted(
        map(tuple, expected.select(names).collect()), key=str
    )


def test_memory_is_a_table_named_as_the_query(lab: Lab, feed: Feed) -> None:
    writer = flow(feed).writeStream.format("memory").queryName("totals_in_memory")
    query = writer.option("checkpointLocation", str(lab.checkpoint)).start()
    query.processAllAvailable()
    assert query.name == "totals_in_memory"
    assert found(lab.spark.table("totals_in_memory")) == Counter(TOTALS)
    query.stop()
    assert found(lab.spark.table("totals_in_memory")) == Counter(TOTALS)


def test_console_prints_each_batch(
    lab: Lab, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    query = flow(feed).writeStream.format("console").trigger(availableNow=True).start()
    query.awaitTermination()
    shown = capsys.readouterr().out
    assert "Batch: 0" in shown and "Batch: 1" in shown
    assert "|  b|  3|  9|  5|" in shown


def test_noop_runs_the_flow_and_keeps_the_state(lab: Lab, feed: Feed) -> None:
    lab.run(flow(feed), "noop")
    assert lab.state(flow(feed)) == {
        ("a",): {"count": 3, "total": 6},
        ("b",): {"count": 3, "total": 9},
    }
    assert not lab.out.exists()


def test_foreach_batch_gets_each_batch_with_its_id(lab: Lab, feed: Feed) -> None:
    batches: dict[int, list[Any]] = {}

    def take(df: DataFrame, batch: int) -> None:
        assert df.schema.simpleString() == "struct<k:string,c:int,v:bigint,seq:bigint>"
        assert df.count() == len(df.collect())
        batches[batch] = [tuple(row) for row in df.collect()]

    lab.run(flow(feed), take)
    assert {batch: Counter(rows) for batch, rows in batches.items()} == {
        0: Counter(TOTALS[:4]),
        1: Counter(TOTALS[4:]),
    }


def test_a_batch_without_output_reaches_every_kind_of_sink(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    sizes = []
    feed.add([])
    nothing = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).filter("v < 0")
    with lab.running(nothing, lambda df, batch: sizes.append((batch, df.count()))) as query:
        query.processAllAvailable()
        feed.add(ROWS)
        query.processAllAvailable()
    assert sizes == [(0, 0), (1, 0)]


def test_an_error_of_the_users_function_fails_the_query_and_the_batch_comes_again(
    lab: Lab, feed: Feed
) -> None:
    batches: list[tuple[int, Counter[Any]]] = []

    def broken(df: DataFrame, batch: int) -> None:
        batches.append((batch, found(df)))
        raise LookupError("no place for it")

    query = lab.start(flow(feed), broken)
    with pytest.raises(Exception, match="no place for it"):
        query.processAllAvailable()
    lab.run(flow(feed), lambda df, batch: batches.append((batch, found(df))))
    assert batches == [(0, Counter(TOTALS[:4])), (0, Counter(TOTALS[:4])), (1, Counter(TOTALS[4:]))]


def test_a_processing_time_trigger_goes_on_and_once_takes_one_batch(lab: Lab, feed: Feed) -> None:
    query = lab.start(flow(feed), trigger={"processingTime": "50 milliseconds"})
    wait_until(lambda: len(lab.rows()) == 6, "two batches")
    query.stop()
    feed.add([("a", 0, 100, 6)])
    feed.add([("a", 0, 100, 7)])
    query = lab.start(flow(feed), trigger={"once": True})
    query.awaitTermination()
    query.stop()
    assert sorted(lab.rows())[3:5] == [("a", 4, 106, 6), ("a", 5, 206, 7)]
    assert last_batch(query)["batchId"] == 2


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda w: w.format("memory"), DefinitionError, "queryName"),
        (lambda w: w.format("parquet"), DefinitionError, "needs a path"),
        (lambda w: w.format("parquet").option("path", "/x"), DefinitionError, "checkpointLocation"),
        (lambda w: w.format("pulsar"), UnsupportedError, "foreachBatch"),
        (lambda w: w.format("noop").partitionBy("k"), DefinitionError, "partitionBy"),
        (lambda w: w.format("parquet").option("path", "/x").partitionBy("z"), DefinitionError, "z"),
        (lambda w: w.outputMode("complete"), UnsupportedError, "'append' or 'update'"),
        (lambda w: w.outputMode("some"), DefinitionError, "'append' or 'update'"),
        (lambda w: w.trigger(continuous="1 second"), UnsupportedError, "micro-batches"),
        (lambda w: w.trigger(), DefinitionError, "one of processingTime"),
        (lambda w: w.trigger(once=True, availableNow=True), DefinitionError, "one of"),
        (lambda w: w.queryName(" "), DefinitionError, "empty"),
        (lambda w: w.foreachBatch(3), DefinitionError, "function"),
        (lambda w: w.clusterBy("k"), UnsupportedError, "partitionBy"),
        (lambda w: w.format("foreach").partitionBy("k"), DefinitionError, "partitionBy"),
        (
            lambda w: w.format("parquet").option("path", "/x").partitionBy("k", "K"),
            DefinitionError,
            "twice",
        ),
        (
            lambda w: w.format("parquet").option("path", "/x").partitionBy("k", "c", "v", "seq"),
            DefinitionError,
            "all columns",
        ),
        (lambda w: w.format("hive").option("path", "/x"), UnsupportedError, "Hive"),
        (lambda w: w.format("no such format"), UnsupportedError, "no data source of that name"),
        (lambda w: w.format("pulsar"), UnsupportedError, "spark.jars.packages"),
        (lambda w: w.format("rate"), UnsupportedError, "can be read but takes no rows"),
        (lambda w: w.format("delta"), DefinitionError, "needs a path"),
        (lambda w: w.format("delta").option("path", "/x"), DefinitionError, "checkpointLocation"),
        (lambda w: w.format("jdbc"), DefinitionError, "checkpointLocation"),
    ],
)
def test_a_writer_that_can_not_start_says_why(lab: Lab, change: Any, kind: Any, words: str) -> None:
    # Not in the session that other tests have registered sources in.
    fresh = Lab(lab.spark.newSession(), lab.home)
    writer = flow(fresh.feed(SCHEMA)).writeStream
    with pytest.raises(kind, match=words):
        change(writer).start()


def test_the_output_of_another_query_is_not_mixed_in(lab: Lab, feed: Feed, tmp_path: Path) -> None:
    lab.run(flow(feed))
    lab.checkpoint = tmp_path / "another"
    with pytest.raises(CheckpointMismatchError, match="_spark_metadata"):
        lab.start(flow(feed))

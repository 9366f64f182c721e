"""`toTable`: tables of files, exactly once, and tables of other kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

import braided
from braided.errors import CheckpointMismatchError, DefinitionError, UnsupportedError
from support.power_cut import cut_at
from support.stream_harness import Feed, Lab
from support.stream_operators import SCHEMA, Totals

ROWS = [("ab"[i % 2], 0, i, i) for i in range(6)]
TOTALS = [
    ("a", 1, 0, 0), ("b", 1, 1, 1), ("a", 2, 2, 2), ("b", 2, 4, 3), ("a", 3, 6, 4), ("b", 3, 9, 5),
]  # fmt: skip


class Sides(braided.Operator):
    """Takes two inputs and gives nothing out."""

    def onLeft(self, row: Any) -> Iterator[Any]:
        return iter(())

    def onRight(self, row: Any) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def feed(lab: Lab) -> Feed:
    made = lab.feed(SCHEMA)
    made.add(ROWS[:4])
    made.add(ROWS[4:])
    return made


@pytest.fixture
def tables(lab: Lab) -> Iterator[Lab]:
    """No tables from the tests before, and none for those after."""
    yield lab
    for table in lab.spark.catalog.listTables():
        kind = "VIEW" if "VIEW" in table.tableType or table.isTemporary else "TABLE"
        lab.spark.sql(f"DROP {kind} IF EXISTS `{table.name}`")


def flow(feed: Feed) -> braided.Stream:
    frame = feed.frame(maxFilesPerTrigger=1)
    return braided.stream(frame).groupBy("k").apply(Totals, SCHEMA)


def run(lab: Lab, stream: braided.Stream, table: str, **options: Any) -> braided.ElasticQuery:
    writer = stream.writeStream.trigger(availableNow=True)
    query = writer.toTable(table, **{"checkpointLocation": str(lab.checkpoint), **options})
    query.awaitTermination()
    return query


def found(df: DataFrame) -> Counter[Any]:
    return Counter(map(tuple, df.select("k", "c", "v", "seq").collect()))


@pytest.mark.parametrize("kind", [None, "orc", "csv", "json"])
def test_a_missing_table_is_made_and_filled(tables: Lab, feed: Feed, kind: str | None) -> None:
    query = run(tables, flow(feed), "made", format=kind, partitionBy="k", queryName="filler")
    assert query.name == "filler"
    table = tables.spark.table("made")
    assert table.columns == ["c", "v", "seq", "k"]
    assert all(field.nullable for field in table.schema.fields)
    assert found(table) == Counter(TOTALS)
    described = {
        row.col_name: row.data_type for row in tables.spark.sql("DESC EXTENDED made").collect()
    }
    assert (described["Provider"], described["Type"]) == (kind or "parquet", "MANAGED")


def test_options_of_the_format_are_kept_with_the_table_and_count_for_the_next_query(
    tables: Lab, feed: Feed
) -> None:
    run(tables, flow(feed), "made", format="csv", header=True, sep=";")
    assert found(tables.spark.table("made")) == Counter(TOTALS)
    feed.add([("a", 0, 1, 6)])
    run(tables, flow(feed), "made", format="csv")
    assert found(tables.spark.table("made")) == Counter([*TOTALS, ("a", 4, 7, 6)])


def test_a_path_makes_an_external_table(tables: Lab, feed: Feed) -> None:
    run(tables, flow(feed), "default.`oddName`", path=str(tables.out))
    assert (tables.out / "_spark_metadata" / "1").exists()
    assert found(tables.spark.table("`oddName`")) == Counter(TOTALS)
    tables.spark.sql("DROP TABLE `oddName`")
    assert found(tables.spark.read.parquet(str(tables.out))) == Counter(TOTALS)


def test_a_table_that_exists_takes_rows_by_name_and_readers_see_them_at_once(
    tables: Lab, feed: Feed
) -> None:
    tables.spark.sql(
        "CREATE TABLE there (SEQ bigint, c int, k string, v bigint) USING csv PARTITIONED BY (k)"
    )
    table = tables.spark.table("there")
    assert table.collect() == []
    run(tables, flow(feed), "there", format="csv")
    assert found(tables.spark.table("there")) == Counter(TOTALS)
    feed.add([("a", 0, 1, 6)])
    run(tables, flow(feed), "there", format="csv")
    assert found(tables.spark.table("there")) == Counter([*TOTALS, ("a", 4, 7, 6)])


@pytest.mark.parametrize(
    "point", ["between-prepares", "after-manifest", "publishing", "after-publish"]
)
def test_two_tables_are_exactly_once_wherever_a_query_dies(
    tables: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def start() -> None:
        stream = flow(feed)
        writers = [stream.writeStream.table(name).partitionBy("k") for name in ("one", "two")]
        writers[0].option("checkpointLocation", str(tables.checkpoint)).trigger(availableNow=True)
        braided.start(*writers).awaitTermination()

    # A redelivered batch does not come by the places that are passed once per batch.
    once = point.startswith("after")
    for nth in (1, 1 if once else 2):
        with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
            start()
    start()
    for name in ("one", "two"):
        assert found(tables.spark.table(name)) == Counter(TOTALS)


def test_a_query_that_can_not_start_makes_no_table(tables: Lab, feed: Feed) -> None:
    tables.run(flow(feed))
    other = braided.stream(feed.frame()).groupBy("v").apply(Totals, SCHEMA)
    with pytest.raises(CheckpointMismatchError):
        run(tables, other, "made")
    with pytest.raises(DefinitionError, match="needs a checkpointLocation"):
        flow(feed).writeStream.toTable("made")
    with pytest.raises(CheckpointMismatchError, match="_spark_metadata"):
        run(tables, flow(feed), "made")  # the batches so far went elsewhere
    twice = feed.frame().selectExpr("k", "v AS x", "v AS x")
    sides = (braided.stream(frame).groupBy("k") for frame in (twice, feed.frame()))
    joined = braided.connect(*sides).apply(Sides, "k string")
    with pytest.raises(AnalysisException):
        run(tables, joined, "made", checkpointLocation=str(tables.checkpoint) + "-new")
    assert not tables.spark.catalog.tableExists("made")
    assert not Path(str(tables.checkpoint) + "-new").exists()


def test_a_table_that_does_not_fit_is_refused_before_anything_runs(tables: Lab, feed: Feed) -> None:
    columns = "k string, c int, v bigint, seq bigint"
    for statement in (
        "CREATE TABLE typed (k string, c int, v int, seq bigint) USING parquet",
        "CREATE TABLE wider (k string, c int, v bigint, seq bigint, more int) USING parquet",
        f"CREATE TABLE js ({columns}) USING json",
        f"CREATE TABLE parted ({columns}) USING parquet PARTITIONED BY (c)",
        f"CREATE TABLE buckets ({columns}) USING parquet CLUSTERED BY (k) INTO 4 BUCKETS",
        f"CREATE TABLE full ({columns}) USING parquet",
        "INSERT INTO full VALUES ('z', 1, 1, 1)",
        "CREATE VIEW looking AS SELECT * FROM js",
        "CREATE TEMPORARY VIEW passing AS SELECT 1",
    ):
        tables.spark.sql(statement)
    refusals = {
        "typed": (DefinitionError, "v:int"),
        "wider": (DefinitionError, "more:int"),
        "js": (DefinitionError, r"format json .* writes parquet"),
        "parted": (DefinitionError, r"partitioned by \(c\), not by \(k\)"),
        "buckets": (UnsupportedError, "buckets"),
        "full": (DefinitionError, "not written by a stream"),
        "looking": (DefinitionError, "is a view"),
        "passing": (DefinitionError, "temporary view"),
        "a b": (DefinitionError, "not the name of a table"),
        "nowhere.at.all": (UnsupportedError, "create it before"),
    }
    for name, (kind, words) in refusals.items():
        by = "k" if name == "parted" else None
        with pytest.raises(kind, match=words):
            run(tables, flow(feed), name, partitionBy=by)
    with pytest.raises(UnsupportedError, match="are not made by a stream"):
        run(tables, flow(feed), "made", format="jdbc")
    with pytest.raises(DefinitionError, match="take one"):
        flow(feed).writeStream.foreachBatch(print).toTable("made")
    assert [row.k for row in tables.spark.table("full").collect()] == ["z"]
    assert not (tables.checkpoint / "offsets").exists()


def test_a_table_that_is_not_of_files_gets_identical_rows_at_least_once(
    tables: Lab, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    tables.spark.createDataFrame([], SCHEMA).write.jdbc(url, "totals")
    tables.spark.sql(f"CREATE TABLE derby USING jdbc OPTIONS (url '{url}', dbtable 'totals')")
    with cut_at(monkeypatch, "after-publish"), pytest.raises(Exception, match="power cut"):
        run(tables, flow(feed), "derby", format="jdbc")
    run(tables, flow(feed), "derby", format="jdbc")
    assert found(tables.spark.table("derby")) == Counter([*TOTALS[:4], *TOTALS])

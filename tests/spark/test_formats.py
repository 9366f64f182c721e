"""Formats that are not files: what Spark can append to in batches, each with its guarantee."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import braided
from braided.errors import UnsupportedError
from braided.sinks import delta_log
from support.power_cut import cut_at
from support.sqlite_source import Sqlite, rows_in, session_with_delta
from support.stream_harness import Feed, Lab
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


def run(lab: Lab, feed: Feed, format: str, **options: Any) -> None:
    flow = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)
    writer = flow.writeStream.format(format).options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(lab.checkpoint)).start().awaitTermination()


# Where a query dies, for the n-th time it gets there, and which rows come twice for it.
DEATHS = [("after-manifest", 1, []), ("publishing", 2, []), ("after-publish", 1, TOTALS[:4])]


@pytest.mark.parametrize(("point", "nth", "twice"), DEATHS)
def test_jdbc_gets_every_row_and_those_of_a_redelivered_batch_again(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, twice: list[Any]
) -> None:
    options = {"url": f"jdbc:derby:{lab.home}/db;create=true", "dbtable": "totals"}
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        run(lab, feed, "jdbc", **options)
    run(lab, feed, "jdbc", **options)
    read = lab.spark.read.format("jdbc").options(**options).load()
    assert Counter(map(tuple, read.collect())) == Counter([*TOTALS, *twice])


@pytest.mark.parametrize(("point", "nth", "twice"), DEATHS)
def test_a_data_source_in_python_is_written_to_at_least_once(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, twice: list[Any]
) -> None:
    lab.spark.dataSource.register(Sqlite)
    path = str(lab.home / "rows.db")
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        run(lab, feed, "sqlite_rows", path=path)
    run(lab, feed, "sqlite_rows", path=path)
    assert Counter(rows_in(path)) == Counter([*TOTALS, *twice])


@pytest.fixture(scope="module")
def delta_session(spark: SparkSession) -> SparkSession:
    return session_with_delta(spark)


@pytest.fixture
def with_delta(lab: Lab, delta_session: SparkSession) -> Iterator[Lab]:
    with Lab(delta_session, lab.home) as other:
        yield other


def test_delta_is_refused_where_neither_its_package_nor_its_classes_are(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "is_installed", lambda: False)
    with pytest.raises(UnsupportedError, match=r"pip install 'braided\[delta\]'.*delta-spark"):
        run(lab, feed, "delta", path=str(lab.out))
    assert not lab.checkpoint.exists()


@pytest.mark.parametrize(("point", "nth", "twice"), DEATHS)
def test_delta_is_told_application_and_version_so_that_no_batch_is_taken_twice(
    with_delta: Lab, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, twice: list[Any]
) -> None:
    lab, feed = with_delta, with_delta.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:])
    path = str(lab.home / "rows.db")
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        run(lab, feed, "delta", path=path)
    run(lab, feed, "delta", path=path)
    assert Counter(rows_in(path)) == Counter(TOTALS)
    versions = rows_in(path, "versions")
    assert [version for _, version in versions] == ["0", "1"]
    assert len({application for application, _ in versions}) == 1
    # Another query on the same table is another application.
    lab.checkpoint = lab.home / "another"
    run(lab, feed, "delta", path=path)
    assert Counter(rows_in(path)) == Counter([*TOTALS, *TOTALS])
    assert len({application for application, _ in rows_in(path, "versions")}) == 2


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_upsert_by_batch_and_key_is_exactly_once(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """As in docs/sinks.md, with a death on either side of the database's commit."""
    path = str(lab.home / "totals.db")
    seen = []

    def upsert(rows: DataFrame, batch: int) -> None:
        seen.append(batch)
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS totals (k PRIMARY KEY, v, batch)")
            db.executemany(
                "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (k) DO UPDATE "
                "SET v = v + excluded.v, batch = excluded.batch WHERE batch < excluded.batch",
                [(k, total, batch) for k, total in rows.groupBy("k").sum("v").collect()],
            )

    def start() -> None:
        source = braided.stream(feed.frame(maxFilesPerTrigger=1))
        stream = source.groupBy("k").apply(Totals, SCHEMA)
        writer = stream.writeStream.foreachBatch(upsert).trigger(availableNow=True)
        writer.option("checkpointLocation", str(lab.checkpoint)).start().awaitTermination()

    point = "publishing" if fails == "before" else "after-publish"
    # A redelivered batch does not come by the place that is passed once per batch.
    for nth in (1, 2 if fails == "before" else 1):
        with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
            start()
    start()
    assert seen == ([0, 1] if fails == "before" else [0, 0, 1, 1])
    assert sorted(rows_in(path, "totals")) == [("a", 8, 1), ("b", 14, 1)]

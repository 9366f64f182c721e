"""Programs as a new user would write them, from README and docs alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import braided
from support.stream_harness import Feed, Lab

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "account string, amount int, t timestamp"


def payments(*each: tuple[str, int, int]) -> list[tuple[str, int, datetime]]:
    return [(who, amount, START + timedelta(minutes=minute)) for who, amount, minute in each]


def balance(version: int) -> type[braided.Operator]:
    if version == 1:

        class Balance(braided.Operator):
            total: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                self.total += row.amount
                yield row.account, self.total
    else:

        class Balance(braided.Operator):  # type: ignore[no-redef]
            total: float = 0.0
            payments: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                self.total += row.amount
                self.payments += 1
                yield row.account, int(self.total)

    return Balance


def upsert_into(path: Path) -> Any:
    def upsert(df: Any, batch: int) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS b (account TEXT PRIMARY KEY, total INT)")
            rows = [tuple(row) for row in df.collect()]
            connection.executemany("INSERT OR REPLACE INTO b VALUES (?, ?)", rows)

    return upsert


def start(lab: Lab, feed: Feed, version: int) -> Any:
    rows = braided.stream(feed.frame(maxFilesPerTrigger=1).withWatermark("t", "5 minutes"))
    by_window = rows.groupBy(F.window("t", "10 minutes"), "account").agg(F.sum("amount").alias("s"))
    balances = rows.groupBy("account").apply(balance(version), "account string, total int")
    return braided.start(
        by_window.name("windows")
        .writeStream.format("parquet")
        .option("path", str(lab.out))
        .option("checkpointLocation", str(lab.checkpoint))
        .option("braided.late", "divert"),
        balances.writeStream.foreachBatch(upsert_into(lab.home / "balances.db")),
    )


def test_windows_late_rows_an_upsert_versions_and_a_field_that_changes(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(payments(("ann", 5, 1), ("bob", 7, 2)))
    feed.add(payments(("ann", 1, 30)))
    feed.add(payments(("bob", 2, 31)))
    feed.add(payments(("ann", 100, 3)))  # the first window is over by then
    query = start(lab, feed, 1)
    query.processAllAvailable()
    late = sum(p.stateOperators[0].numRowsDroppedByWatermark for p in query.recentProgress)
    names = [each.operatorName for each in query.lastProgress.stateOperators]
    query.stop()
    assert (late, names) == (1, ["windows", "Balance"])
    [kept] = braided.lateRows(lab.checkpoint, lab.spark).collect()
    assert kept.operator == "windows" and '"amount":100' in kept.row
    newest = braided.state(lab.checkpoint, lab.spark, "Balance").agg(F.max("batch")).first()[0]
    feed.add(payments(("bob", 10, 61)))
    query = start(lab, feed, 2)  # an int became a float, and a field is new
    query.processAllAvailable()
    query.stop()
    with sqlite3.connect(lab.home / "balances.db") as connection:
        assert dict(connection.execute("SELECT * FROM b")) == {"ann": 106, "bob": 19}
    changed = braided.stateDiff(lab.checkpoint, lab.spark, newest, operator="Balance").collect()
    assert [(row.key.account, row.after.total) for row in changed] == [("bob", 19.0)]
    sums = {(row[0]["start"].minute if row[0] else None, row[1], row[2]) for row in lab.rows()}
    assert {(0, "ann", 5), (0, "bob", 7)} <= sums

"""Programs as a new user would write them, from README and docs alone."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import braided
from braided.cli.main import main
from support.bare import finish, repository
from support.bare import start as run_bare
from support.program_parts import FAR_MS, GAP_MS, Sessions, TopList, Watch
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


# -- sessions, then a top list of them, with scaling on ------------------------------------------

CLICKS = "user string, country string, t timestamp"
Click = tuple[str, str, datetime]


def clicks_of(batch: int, surge: int = 0) -> list[Click]:
    """A few users, each of whom stays away every fourth time, which ends a session; in a surge
    there are more of them, and each clicks more often.
    """
    at = START + timedelta(minutes=10 * batch)
    return [
        (f"u{user:02}", "ab"[user % 2], at)
        for user in range(20 if surge else 5)
        if (batch + user) % 4
        for _ in range(1 + (2 + user % 3) * surge)
    ]


def top_lists(batches: list[list[Click]]) -> dict[str, list[tuple[int, str]]]:
    """The same by a plain loop."""
    sessions: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
    running: dict[str, tuple[str, int, datetime]] = {}
    gap = timedelta(milliseconds=GAP_MS)
    for user, country, at in (click for batch in batches for click in batch):
        _, clicks, last = running.get(user, (country, 0, at))
        if at - last > gap:
            sessions[country].append((clicks, user))
            clicks = 0
        running[user] = country, clicks + 1, at
    for user, (country, clicks, _) in running.items():
        sessions[country].append((clicks, user))
    return {country: sorted(all, reverse=True)[:3] for country, all in sessions.items()}


def test_sessions_get_channels_in_a_surge_and_their_top_list_is_exact(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = lab.feed(CLICKS)
    clicks = braided.stream(feed.frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds"))
    sessions = clicks.groupBy("user").apply(
        Sessions, "user string, country string, clicks int", timeMode="EventTime"
    )
    top = sessions.groupBy("country").apply(TopList, "country string, users array<string>")
    query = (
        top.writeStream.format("parquet")
        .option("checkpointLocation", str(lab.checkpoint))
        .option("braided.channels", 1)
        .option("braided.channels.max", 2)
        .start(str(lab.out))
    )
    batches: list[list[Click]] = []

    def give(surge: int = 0) -> int:
        """One more batch, when those before are done, and how many channels there are then."""
        batches.append(clicks_of(len(batches), surge))
        feed.add(batches[-1])
        query.processAllAvailable()
        channels: int = query.routing()["Sessions"].channels
        return channels

    calm = [give() for _ in range(5)]
    # On one channel 3 s of looking things up, 6, 9: however slow the machine is besides, it is too
    # much for one at some point.
    surge = [give(surge=3)]
    while surge[-1] == 1 and len(surge) < 6:
        surge.append(give(surge=3 * (1 + len(surge))))
    surge.append(give(surge=3))
    for _ in range(3):
        give()
    for day in (1, 2):  # the watermark passes all sessions, and then their timers fire
        feed.add([("nobody", "nowhere", START + timedelta(days=day))])
        query.processAllAvailable()
    control = query.lastProgress["braided"]["control"]
    query.stop()
    assert control["scale"] == "ds2"
    assert (max(calm), surge[-1]) == (1, 2)
    found = braided.state(lab.checkpoint, lab.spark, "TopList").collect()
    lists = {row.key.country: [tuple(each) for each in row.state.best] for row in found}
    lists.pop("nowhere", None)
    assert lists == top_lists(batches)
    newest = {country: users for country, users in lab.rows() if country in lists}
    assert newest == {country: [user for _, user in best] for country, best in lists.items()}
    assert main(["decisions", str(lab.checkpoint)]) == 0
    told = capsys.readouterr().out
    assert "started with scale ds2" in told and "1 to 2 channels" in told
    [first, *_] = [line for line in told.splitlines() if "scale-up" in line and "1 -> 2" in line]
    assert "Sessions" in first and "rows/s to take in" in first


# -- a native program that moves over, with its state and where it was ---------------------------

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def watched(payments: Any) -> Any:
    return payments.groupBy("account").transformWithState(
        statefulProcessor=Watch(),
        outputStructType="account string, said string",
        outputMode="Append",
        timeMode="ProcessingTime",
    )


def test_a_native_program_moves_over_and_gives_what_it_would_have_given(
    lab: Lab, tmp_path: Path
) -> None:
    """Both go on with the same files: what the native query had read is read by neither again."""
    feed = lab.feed("account string, amount int")
    native, moved = str(lab.home / "native"), str(lab.home / "moved")
    said: dict[str, list[tuple[Any, ...]]] = {"native": [], "moved": []}

    def run_native() -> None:
        # A stateful query by processing time would run empty batches for ever.
        writer = watched(feed.frame()).writeStream.option("checkpointLocation", native)
        writer = writer.foreachBatch(lambda df, _: said["native"].extend(map(tuple, df.collect())))
        writer.trigger(once=True).start().awaitTermination()

    lab.spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    try:
        feed.add([(name, 3 * n + 1) for n, name in enumerate("abcdef")])
        run_native()
        said["native"].clear()
        command = f".venv/bin/braided import-state {native} {moved} --name Watch --with-offsets"
        printed, _ = finish(run_bare(command, repository(tmp_path)))
        assert printed.startswith("6 keys, ") and "goes on where it stopped" in printed

        feed.add([(name, 2 * n + 5) for n, name in enumerate("abcdefgh")])
        run_native()
        writer = watched(braided.stream(feed.frame())).writeStream
        query = (
            writer.foreachBatch(lambda df, _: said["moved"].extend(map(tuple, df.collect())))
            .option("checkpointLocation", moved)
            .option("braided.channels", 2)
            .start()
        )
        query.processAllAvailable()
        query.rescale(5)
        feed.add([(name, 0) for name in "abcdefghi"])
        query.processAllAvailable()
        channels = query.routing()["Watch"].channels
        query.stop()
        run_native()
    finally:
        lab.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert channels == 5
    assert Counter(said["moved"]) == Counter(said["native"])
    of_a = f"2 6 [('small', 2)] (5,) [{FAR_MS + 1}, {FAR_MS + 5}]"
    assert ("a", of_a) in said["moved"]
    # A timer for each payment: six that were imported, eight since.
    assert Counter(told for _, told in said["moved"])["a moment later"] == 14

"""Delta tables without Delta Lake in the JVM: what arrives, once, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    Transaction,
    write_deltalake,
)

import braided
from braided import failpoints
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
)
from braided.sinks import delta_log, table_log
from braided.store.durable.location import Location
from support.delta_stand_in import DeltaTables
from support.power_cut import cut_at
from support.s3 import S3Lab
from support.sqlite_source import session_with_delta
from support.stream_harness import Feed, Lab, manifests_of
from support.stream_operators import SCHEMA, Totals
from support.table_operators import WIDE, Widened

RETENTION = "delta.setTransactionRetentionDuration"
ROWS = [("ab"[i % 2], 0, i, i) for i in range(6)]
TOTALS = [
    ("a", 1, 0, 0), ("b", 1, 1, 1), ("a", 2, 2, 2), ("b", 2, 4, 3), ("a", 3, 6, 4), ("b", 3, 9, 5),
]  # fmt: skip


@pytest.fixture
def feed(lab: Lab) -> Feed:
    return feed_of(lab)


def feed_of(lab: Lab) -> Feed:
    made = lab.feed(SCHEMA)
    made.add(ROWS[:4])
    made.add(ROWS[4:])
    return made


def totals(feed: Feed) -> braided.Stream:
    return braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)


def run(lab: Lab, stream: braided.Stream, *partition_by: str, **options: Any) -> None:
    writer = stream.writeStream.format("delta").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", lab.address(lab.checkpoint)).partitionBy(*partition_by)
    writer.start(lab.address(lab.out)).awaitTermination()


def rows_of(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(path)).to_pyarrow_table()
    chosen = table.select(list(columns) or table.column_names)
    return sorted((tuple(row.values()) for row in chosen.to_pylist()), key=repr)


def data_files(path: Path) -> set[Path]:
    return {file for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}


def files_in_log(path: Path) -> set[Path]:
    return {Path(uri) for uri in DeltaTable(str(path)).file_uris()}


# -- exactly once ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "nth"),
    [("manifest-writing", 2), ("after-manifest", 1), ("publishing", 2), ("after-publish", 1)],
)
def test_a_query_that_died_leaves_every_row_once_and_no_other_file(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed))
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted(TOTALS)
    assert data_files(lab.out) == files_in_log(lab.out)
    [identity] = {
        (o.kind, o.target) for m in manifests_of(lab.checkpoint).values() for o in m.outputs
    }
    assert identity == ("delta", str(lab.out))
    # Another query on the same table is another application.
    lab.checkpoint = lab.home / "another"
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted([*TOTALS, *TOTALS])


def meanwhile(patch: pytest.MonkeyPatch, act: Callable[[], Any], nth: int = 1) -> None:
    """Does something the n-th time that a batch is about to be written to a log, after the reader
    of the log has looked at it.
    """
    look, times = delta_log.DeltaLog._look_again, iter(range(1, 100))

    def looked(log: Any, *args: Any) -> None:
        look(log, *args)
        if next(times) == nth:
            act()

    patch.setattr(delta_log.DeltaLog, "_look_again", looked)


def test_another_appender_gets_in_between_and_both_are_in_the_table(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = pa.table({"k": ["z"], "c": pa.array([1], pa.int32()), "v": [1], "seq": [99]})
    meanwhile(monkeypatch, lambda: write_deltalake(str(lab.out), theirs, mode="append"), nth=2)
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted([*TOTALS, ("z", 1, 1, 99)])


def test_of_two_publishers_of_one_batch_one_wins(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, times = delta_log.DeltaLog.publish, iter(range(100))

    def twice(log: Any, *args: Any) -> bool:
        """Somebody publishes the same when we have looked and found nothing."""
        if next(times) == 1:
            other = delta_log.DeltaLog(log.location, {})
            with monkeypatch.context() as patch:
                meanwhile(patch, lambda: publish(other, *args))
                patch.setattr(table_log, "_PAUSE_S", 0.0)
                return publish(log, *args)
        return publish(log, *args)

    monkeypatch.setattr(delta_log.DeltaLog, "publish", twice)
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted(TOTALS)


def test_a_batch_that_was_prepared_for_delta_lakes_own_writer_is_published_and_the_other_way_round(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lab(session_with_delta(lab.spark), lab.home) as with_delta:
        for first, second in ((with_delta, lab), (lab, with_delta)):
            frame = Feed(first.spark, feed.directory, SCHEMA)
            with cut_at(monkeypatch, "publishing"), pytest.raises(Exception, match="power cut"):
                run(first, totals(frame))
            rest = Feed(second.spark, feed.directory, SCHEMA)
            with cut_at(monkeypatch, "before-routing"), pytest.raises(Exception, match="power cut"):
                run(second, totals(rest))
            assert rows_of(lab.out) == sorted(TOTALS[:4])
            staged = lab.checkpoint / "braided" / "out"
            lab.checkpoint = with_delta.checkpoint = lab.home / "again"
            lab.out = with_delta.out = lab.home / "another table"
            assert first is lab or list(staged.iterdir())


def test_a_committed_batch_that_a_table_would_not_take_any_more_is_said_to_be_committed(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was prepared for Delta Lake's own writer, and meets another table without that."""
    columns = "k", "c", "CASE WHEN seq <> 2 THEN v END AS v", "seq"
    with Lab(session_with_delta(lab.spark), lab.home) as with_delta:
        frame = Feed(with_delta.spark, feed.directory, SCHEMA)
        with cut_at(monkeypatch, "publishing"), pytest.raises(Exception, match="power cut"):
            run(with_delta, totals(frame).selectExpr(*columns))
    table_of(lab.out, K, C, Field("v", "long", False), SEQ)
    said = r"PublishError: batch 0 is committed.*'v' .*must not be null"
    with pytest.raises(Exception, match=said):
        run(lab, totals(feed).selectExpr(*columns))
    shutil.rmtree(lab.out)
    table_of(lab.out, K, C, V, SEQ)
    run(lab, totals(feed).selectExpr(*columns))
    expected = [(k, c, None if seq == 2 else v, seq) for k, c, v, seq in TOTALS]
    assert rows_of(lab.out) == sorted(expected, key=repr)


@pytest.fixture(params=[False, True], ids=["log", "data source"])
def either(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Either way to write a table: by its log, or by a data source that Delta Lake has."""
    if not request.param:
        yield lab
        return
    with Lab(session_with_delta(lab.spark, DeltaTables), lab.home) as with_delta:
        yield with_delta


def test_an_older_copy_of_the_checkpoint_is_refused(either: Lab) -> None:
    lab, feed, older = either, either.feed(SCHEMA), either.home / "older"
    feed.add(ROWS[:4])
    run(lab, totals(feed))
    shutil.copytree(lab.checkpoint, older)
    feed.add(ROWS[4:])
    run(lab, totals(feed))
    shutil.rmtree(lab.checkpoint)
    older.rename(lab.checkpoint)
    with pytest.raises(CheckpointMismatchError, match=r"has batch 1 .* ends with batch 0"):
        run(lab, totals(feed))
    assert rows_of(lab.out) == sorted(TOTALS)
    assert data_files(lab.out) == files_in_log(lab.out)


def in_log(path: Path, kind: str) -> list[dict[str, Any]]:
    """What the entries of a log say of one kind of action."""
    entries = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    return [action[kind] for action in actions if kind in action]


def test_an_entry_says_when_it_was_written_for_readers_that_forget(lab: Lab, feed: Feed) -> None:
    began_ms = time.time_ns() // 1_000_000
    run(lab, totals(feed))
    noted = in_log(lab.out, "txn")
    assert [action["version"] for action in noted] == [0, 1]
    times = [began_ms, *(action["lastUpdated"] for action in noted), time.time_ns() // 1_000_000]
    assert times == sorted(times)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_batch_that_the_table_may_have_forgotten_is_not_added_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    forgets = {RETENTION: "interval 1 millisecond"}
    table = table_of(lab.out, K, C, V, SEQ, configuration=forgets)
    point = "table-logged" if is_there else "publishing"
    with cut_at(monkeypatch, point), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed))
    table.update_incremental()
    table.create_checkpoint()  # into which goes what is not forgotten yet
    with pytest.raises(Exception, match=r"PublishError.*remembers no batch .*after 0.001 s"):
        run(lab, totals(feed))
    assert rows_of(lab.out) == (sorted(TOTALS) if is_there else [])
    # What docs/sinks.md says to do about it.
    table.alter.set_table_properties({RETENTION: "interval 60 days"})
    if is_there:
        [name] = {prepared.sink for prepared in manifests_of(lab.checkpoint)[0].outputs}
        [application] = {action["appId"] for action in in_log(lab.out, "txn")}
        assert application.endswith(name)
        noted = Transaction(application, 0, time.time_ns() // 1_000_000)
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[noted]),
        )
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted(TOTALS)


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        ("interval 30 days", 30 * 86_400),
        ("INTERVAL 1 week 2 Hours", 7 * 86_400 + 7200),
        ("90 minutes", 5400),
        ("interval 1500 milliseconds", 1.5),
        ("a while", 0),
    ],
)
def test_what_a_table_remembers_for_how_long(tmp_path: Path, interval: str, seconds: float) -> None:
    table_of(tmp_path / "t", K, configuration={RETENTION: interval})
    table_of(tmp_path / "other", K)
    log = delta_log.DeltaLog(Location.of(str(tmp_path / "t")), {})
    assert log.exists() and log.remembers_s == seconds
    log = delta_log.DeltaLog(Location.of(str(tmp_path / "other")), {})
    assert log.exists() and log.remembers_s is None


# -- partitions and types --------------------------------------------------------------------------

ODD = ["plain", "a b/c%é", "x=y", "", None, "q?#:*", "__", "1"]


def test_partitions_and_types_come_back_as_they_were_given(lab: Lab) -> None:
    try:
        lab.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        feed = lab.feed("k string, n int")
        feed.add([(k, n) for n, k in enumerate(ODD)])
        stream = braided.stream(feed.frame()).groupBy("k").apply(Widened, WIDE)
        run(lab, stream, "k", "at")
    finally:
        lab.spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = DeltaTable(str(lab.out))
    assert table.metadata().partition_columns == ["k", "at"]
    found = {row["n"]: row for row in table.to_pyarrow_table().to_pylist()}
    for n, k in enumerate(ODD):
        moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456 + n)
        row = found.pop(n)
        assert row["k"] == (k or None)  # as Delta has it: a partition is never an empty text
        assert row["d"] == Decimal(n) / 4 and row["l"] == [{"x": n}] and row["b"] == (n % 2 == 0)
        assert row["day"] == (moment.date() if n else None)
        assert row["local"] == moment
        assert row["at"] == moment.replace(tzinfo=dt.UTC)
        assert row["f"] == n / 3 or n == 1
    assert not found
    # In the table's log they say that they are in UTC, whatever the zone of who reads them is.
    logged = {each["partitionValues"]["at"] for each in in_log(lab.out, "add")}
    moments = [f"2024-02-29T23:59:59.{123456 + n}Z" for n in range(len(ODD))]
    assert logged == set(moments)
    actions = table.get_add_actions(flatten=True)
    shown = pa.table(actions).to_pylist()
    assert {a["num_records"] for a in shown} == {1}
    for action in shown:
        assert action["min.n"] == action["max.n"] and action["null_count.day"] == (
            action["min.n"] == 0
        )


# -- schemas ---------------------------------------------------------------------------------------


def table_of(path: Path, *fields: Field, **more: Any) -> DeltaTable:
    return DeltaTable.create(str(path), Schema(list(fields)), **more)


K, C, V, SEQ = Field("k", "string"), Field("c", "integer"), Field("v", "long"), Field("seq", "long")


def test_what_delta_lake_would_not_take_is_refused_before_anything_starts(lab: Lab) -> None:
    with Lab(session_with_delta(lab.spark, DeltaTables), lab.home) as lab:
        feed, every = feed_of(lab), [K, C, V, SEQ]

        def refused(said: str, *fields: Field, by: str = "", **options: Any) -> None:
            lab.out = lab.home / f"table {len(list(lab.home.iterdir()))}"
            table_of(lab.out, *fields, partition_by=["k"])
            with pytest.raises(DefinitionError, match=said):
                run(lab, totals(feed), *filter(None, [by]), **options)
            assert not lab.checkpoint.exists()

        refused("has no column 'seq'.*mergeSchema", K, C, V)
        refused("'c' is string in the table", K, Field("c", "string"), V, SEQ, mergeSchema=True)
        refused("'w' must not be null, and the output lacks", *every, Field("w", "long", False))
        refused(r"is partitioned by \(k\), not by \(c\)", *every, by="c")


def test_what_does_not_fit_is_refused_before_anything_starts(lab: Lab, feed: Feed) -> None:
    def refused(said: str, *fields: Field, partition: str = "", **more: Any) -> None:
        lab.out = lab.home / f"table {len(list(lab.home.iterdir()))}"
        if fields:
            table_of(lab.out, *fields, **more)
        with pytest.raises(DefinitionError, match=said):
            run(lab, totals(feed), *filter(None, [partition]))
        assert not lab.checkpoint.exists()

    every, more = [K, C, V, SEQ], Field("w", "long")
    refused("has no column 'seq'.*mergeSchema", K, C, V)
    refused("'c' is string in the table and int in the output", K, Field("c", "string"), V, SEQ)
    refused("'w' must not be null, and the output lacks", *every, Field("w", "long", False))
    refused(r"is partitioned by \(k\), not by \(c\)", *every, partition="c", partition_by=["k"])
    refused("is partitioned by 'w', which the output lacks", *every, more, partition_by=["w"])
    table = table_of(lab.home / "constrained", K, C, V, SEQ)
    table.alter.add_constraint({"positive": "v >= 0"})
    with pytest.raises(DefinitionError, match=r"asks of its writers.*delta\.constraints\.positive"):
        lab.out = lab.home / "constrained"
        run(lab, totals(feed))
    lab.out = lab.home / "files"
    lab.out.mkdir()
    (lab.out / "part.parquet").write_bytes(b"")
    with pytest.raises(DefinitionError, match="no Delta table"):
        run(lab, totals(feed))
    with pytest.raises(DefinitionError, match="needs a path"):
        totals(feed).writeStream.format("Delta").start()
    assert not lab.checkpoint.exists()


def test_merge_schema_adds_columns_and_those_of_others_are_null(lab: Lab, feed: Feed) -> None:
    table_of(lab.out, Field("K", "string"), C, Field("other", "long"))
    run(lab, totals(feed), mergeSchema=True)
    assert [field.name for field in DeltaTable(str(lab.out)).schema().fields] == [
        "K", "c", "other", "v", "seq",
    ]  # fmt: skip
    assert rows_of(lab.out, "K", "c", "v", "seq") == sorted(TOTALS)
    assert {row[0] for row in rows_of(lab.out, "other")} == {None}


def test_a_table_that_is_changed_between_batches_ends_the_query_before_the_commit(
    either: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, feed = either, feed_of(either)
    reach, times = failpoints.reach, iter(range(100))

    def change(name: str) -> None:
        if name == "before-routing" and next(times) == 1:
            changed = Schema([K, C, V, SEQ, Field("w", "long", False)])
            _replace_schema(lab.out, json.loads(changed.to_json()))
        reach(name)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", change)
        with pytest.raises(Exception, match=r"OutputSchemaError.*'w' must not be null"):
            run(lab, totals(feed))
    assert max(manifests_of(lab.checkpoint)) == 0


def _replace_schema(path: Path, schema: dict[str, Any]) -> None:
    """As an engine does that alters a table: an entry of the log with other metadata."""
    log = path / "_delta_log"
    entries = [json.loads(line) for f in sorted(log.glob("*.json")) for line in f.open()]
    metadata = [entry["metaData"] for entry in entries if "metaData" in entry][-1]
    metadata["schemaString"] = json.dumps(schema)
    newest = max(int(file.stem) for file in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text(json.dumps({"metaData": metadata}) + "\n")


def test_nulls_in_a_column_that_takes_none_end_the_query_before_the_commit(either: Lab) -> None:
    lab, feed = either, feed_of(either)
    table_of(lab.out, K, C, Field("v", "long", False), SEQ)
    stream = totals(feed).selectExpr("k", "c", "CASE WHEN seq < 4 THEN v END AS v", "seq")
    with pytest.raises(Exception, match=r"OutputSchemaError.*'v' .*must not be null"):
        run(lab, stream)
    assert rows_of(lab.out) == sorted(TOTALS[:4])
    assert max(manifests_of(lab.checkpoint)) == 0


def test_a_batch_that_can_not_be_published_is_published_when_the_table_is_right_again(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until = lab.home / "elsewhere"

    def gone() -> None:
        lab.out.rename(run_until)

    with monkeypatch.context() as patch:
        reach, times = failpoints.reach, iter(range(100))
        patch.setattr(
            failpoints,
            "reach",
            lambda name: gone() if name == "publishing" and next(times) == 1 else reach(name),
        )
        with pytest.raises(Exception, match=r"PublishError.*batch 1 is committed"):
            run(lab, totals(feed))
    run_until.rename(lab.out)
    run(lab, totals(feed))
    assert rows_of(lab.out) == sorted(TOTALS)


# -- an object store -------------------------------------------------------------------------------


def test_a_table_in_an_object_store_is_written_by_the_sessions_settings(
    s3_lab: S3Lab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = s3_lab
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:])
    with cut_at(monkeypatch, "manifest-writing", 2), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed), "k")
    with cut_at(monkeypatch, "after-publish"), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed), "k")
    run(lab, totals(feed))
    assert rows_of(lab.out, "k", "c", "v", "seq") == sorted(TOTALS)
    assert data_files(lab.out) == files_in_log(lab.out)
    secret = lab._server.spark_settings["spark.hadoop.fs.s3a.secret.key"]
    written = [file for file in lab.root.rglob("*") if file.is_file()]
    assert written and not [file for file in written if secret.encode() in file.read_bytes()]
    assert secret not in "".join(capfd.readouterr())

"""Iceberg tables without Iceberg in the JVM: what arrives, once, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import braided
from braided import failpoints
from braided.errors import CheckpointMismatchError, DefinitionError
from braided.sinks import iceberg_log, table_log
from support.iceberg import catalog_at, catalog_options, data_files_of, rows_in
from support.power_cut import cut_at
from support.s3 import S3Lab
from support.stream_harness import Feed, Lab, manifests_of
from support.stream_operators import SCHEMA, Totals
from support.table_operators import WIDE, Widened

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


def totals(feed: Feed) -> braided.Stream:
    return braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)


def run(lab: Lab, stream: braided.Stream, *partition_by: str, **options: Any) -> None:
    writer = stream.writeStream.format("iceberg").trigger(availableNow=True)
    writer.options(**{**catalog_options(lab.home), **options}).partitionBy(*partition_by)
    writer.option("checkpointLocation", lab.address(lab.checkpoint))
    writer.toTable(f"db.{lab.out.name}").awaitTermination()


def table_of(lab: Lab) -> Table:
    return catalog_at(lab.home).load_table(f"db.{lab.out.name}")


@pytest.fixture(autouse=True)
def namespace(request: pytest.FixtureRequest) -> None:
    name = "lab" if "lab" in request.fixturenames else "s3_lab"
    catalog_at(request.getfixturevalue(name).home)


# -- exactly once ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("point", "nth"), [("manifest-writing", 2), ("after-publish", 1)])
def test_a_query_that_died_leaves_every_row_once_and_no_other_file(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed), **{"catalog.token": "do-not-tell"})
    # Snapshots are not kept for ever; the batch is known all the same.
    if point == "after-publish":
        table_of(lab).append(pa.table({"k": ["z"], "c": pa.array([1], pa.int32())}))
        table = table_of(lab)
        [first] = [s.snapshot_id for s in table.snapshots() if s.summary["braided.batch"] == "0"]
        table.maintenance.expire_snapshots().by_id(first).commit()
        assert len(table_of(lab).snapshots()) == 1
        table_of(lab).delete("k = 'z'")
    run(lab, totals(feed))
    assert rows_in(table_of(lab)) == sorted(TOTALS)
    there, named = data_files_of(table_of(lab))
    assert point == "after-publish" or there == named
    [identity] = {
        (o.kind, o.target) for m in manifests_of(lab.checkpoint).values() for o in m.outputs
    }
    assert identity == ("iceberg", "lake.db.out")
    written = [file for file in lab.home.rglob("*") if file.is_file()]
    assert written and not [file for file in written if b"do-not-tell" in file.read_bytes()]


def meanwhile(patch: pytest.MonkeyPatch, act: Callable[[], Any], nth: int = 1) -> None:
    """Does something the n-th time that a batch is about to be written to a table, after we have
    looked at it.
    """
    look, times = table_log.TableLog._look_again, iter(range(1, 100))

    def looked(log: Any, *args: Any) -> None:
        look(log, *args)
        if next(times) == nth:
            act()

    patch.setattr(table_log.TableLog, "_look_again", looked)


def test_others_get_in_between_and_of_two_publishers_of_one_batch_one_wins(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, times = iceberg_log.IcebergLog.publish, iter(range(100))
    theirs = pa.table({"k": ["z"], "c": pa.array([1], pa.int32()), "v": [1], "seq": [99]})
    tried = []

    def twice(log: Any, *args: Any) -> bool:
        number = next(times)
        with monkeypatch.context() as patch:
            patch.setattr(table_log, "_PAUSE_S", 0.0)
            if number == 0:
                meanwhile(patch, lambda: table_of(lab).append(theirs))
            elif number == 1:
                properties = {
                    name.partition(".")[2]: value
                    for name, value in catalog_options(lab.home).items()
                    if name != "catalog"
                }
                other = iceberg_log.IcebergLog("lake", "db.out", properties)
                meanwhile(patch, lambda: tried.append(publish(other, *args)))
            tried.append(publish(log, *args))
            return tried[-1]

    monkeypatch.setattr(iceberg_log.IcebergLog, "publish", twice)
    run(lab, totals(feed))
    assert tried == [True, True, False]
    assert rows_in(table_of(lab)) == sorted([*TOTALS, ("z", 1, 1, 99)])


def test_an_older_copy_of_the_checkpoint_is_refused(lab: Lab, feed: Feed) -> None:
    run(lab, totals(feed))
    for path in (lab.checkpoint / "braided" / "manifests").iterdir():
        if path.name.startswith("00000000000000000001") or path.stem.lstrip("0") == "1":
            path.unlink()
    for log in ("offsets", "commits"):
        (lab.checkpoint / log / "1").unlink()
    with pytest.raises(CheckpointMismatchError, match=r"has batch 1 .* ends with batch 0"):
        run(lab, totals(feed))
    there, named = data_files_of(table_of(lab))
    assert there == named


# -- partitions and types --------------------------------------------------------------------------

ODD = ["plain", "a b/c%é", "x=y", "", None, "q?#:*", "__", "long " * 60]


def test_partitions_and_types_come_back_as_they_were_given(lab: Lab) -> None:
    try:
        lab.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        feed = lab.feed("k string, n int")
        feed.add([(k, n) for n, k in enumerate(ODD)])
        wide = braided.stream(feed.frame()).groupBy("k").apply(Widened, WIDE)
        run(lab, wide, "k", "at")
        first = table_of(lab)
        # By something that is made of columns, in a table that others have made.
        spec = PartitionSpec(
            *[
                PartitionField(first.schema().find_field(name).field_id, 1000 + i, made, f"p{i}")
                for i, (name, made) in enumerate(
                    {
                        "k": TruncateTransform(1),
                        "d": TruncateTransform(50),
                        "n": TruncateTransform(3),
                        "at": HourTransform(),
                        "local": HourTransform(),
                        "day": MonthTransform(),
                    }.items()
                )
            ]
        )
        lab.out, lab.checkpoint = lab.home / "parts", lab.home / "again"
        catalog_at(lab.home).create_table("db.parts", first.schema(), partition_spec=spec)
        run(lab, wide)
    finally:
        lab.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [(f.name, f.transform) for f in first.spec().fields] == [
        ("k", IdentityTransform()),
        ("at", IdentityTransform()),
    ]
    for table in (first, table_of(lab)):
        found = {row["n"]: row for row in table.scan().to_arrow().to_pylist()}
        for n, k in enumerate(ODD):
            moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456 + n)
            row = found.pop(n)
            assert row["k"] == k
            assert row["d"] == Decimal(n) / 4 and row["l"] == [{"x": n}]
            assert row["b"] == (n % 2 == 0)
            assert row["day"] == (moment.date() if n else None)
            assert row["local"] == moment
            assert row["at"] == moment.replace(tzinfo=dt.UTC)
            assert row["f"] == n / 3 or n == 1
            # By what readers skip files.
            at = row["at"].isoformat()
            assert len(table.scan(f"n = {n} and at = '{at}' and b = {row['b']}").to_arrow()) == 1
        assert not found


def test_small_integers_are_written_as_larger_ones(lab: Lab, feed: Feed) -> None:
    run(lab, totals(feed).selectExpr("k", "smallint(c) AS c", "struct(tinyint(v) AS v) AS s"))
    assert str(table_of(lab).schema().find_type("c")) == "int"
    assert rows_in(table_of(lab)) == sorted((k, c, {"v": v}) for k, c, v, _ in TOTALS)


# -- schemas ---------------------------------------------------------------------------------------

K = NestedField(1, "k", StringType())
C = NestedField(2, "c", IntegerType())
V, SEQ = NestedField(3, "v", LongType()), NestedField(4, "seq", LongType())


def test_what_does_not_fit_is_refused_before_anything_starts(lab: Lab, feed: Feed) -> None:
    catalog = catalog_at(lab.home)

    def refused(said: str, *fields: NestedField, partition: str = "", **more: Any) -> None:
        lab.out = lab.home / f"table{len(catalog.list_tables('db'))}"
        catalog.create_table(f"db.{lab.out.name}", Schema(*fields), **more)
        with pytest.raises(DefinitionError, match=said):
            run(lab, totals(feed), *filter(None, [partition]))
        assert not lab.checkpoint.exists()

    every, more = [K, C, V, SEQ], NestedField(5, "w", LongType())
    text, must = NestedField(2, "c", StringType()), NestedField(5, "w", LongType(), required=True)
    by_k = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k"))
    by_w = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "w"))
    buckets = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    mapping = {"schema.name-mapping.default": '[{"names": ["k"], "field-id": 1}]'}
    refused("has no column 'seq'.*mergeSchema", K, C, V)
    refused("'c' is string in the table and int in the output", K, text, V, SEQ)
    refused("'w' must not be null, and the output lacks", *every, must)
    refused(r"is partitioned by \(k\), not by \(c\)", *every, partition="c", partition_spec=by_k)
    refused("is partitioned by 'w', which the output lacks", *every, more, partition_spec=by_w)
    refused(r"asks of its writers.*bucket\[4\]", *every, partition_spec=buckets)
    refused("name-mapping.default has no column 'c'", *every, properties=mapping)
    newer = lab.home / "newer.metadata.json"
    told = json.loads(catalog.load_table("db.table0").metadata.model_dump_json())
    newer.write_text(json.dumps({**told, "format-version": 3, "next-row-id": 0}))
    catalog.register_table("db.newer", f"file://{newer}")
    options = catalog_options(lab.home)
    for name, said, asked in (
        ("nowhere.x", "no such namespace", options),
        ("db.newer", "asks of its writers.*format version 3", options),
        ("db.x", "can't be read.*magic", {**options, "catalog.type": "magic"}),
        ("db.x", r"can't be read.*\.\.\.", {"catalog.py-catalog-impl": "secret.Words"}),
    ):
        with pytest.raises(DefinitionError, match=said) as refusal:
            totals(feed).writeStream.format("Iceberg").options(**asked).option(
                "checkpointLocation", str(lab.checkpoint)
            ).toTable(name)
        assert "secret" not in str(refusal.value)
    assert not lab.checkpoint.exists()


def test_merge_schema_adds_columns_and_those_of_others_are_null(lab: Lab, feed: Feed) -> None:
    other = NestedField(5, "other", LongType())
    catalog_at(lab.home).create_table("db.out", Schema(NestedField(1, "K", StringType()), C, other))
    run(lab, totals(feed), mergeSchema=True)
    assert table_of(lab).schema().column_names == ["K", "c", "other", "v", "seq"]
    assert rows_in(table_of(lab), "K", "c", "v", "seq") == sorted(TOTALS)
    assert {row[0] for row in rows_in(table_of(lab), "other")} == {None}


def test_a_table_that_changes_ends_the_query_before_the_commit_or_after_it(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(point: str, act: Callable[[], Any]) -> None:
        """Does something the second time that a batch comes to a point."""
        times, reach = iter(range(100)), failpoints.reach

        def reached(name: str) -> None:
            if name == point and next(times) == 1:
                act()
            reach(name)

        patch.setattr(failpoints, "reach", reached)

    def changed() -> None:
        with table_of(lab).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("seq")

    with monkeypatch.context() as patch:
        at("before-routing", changed)
        with pytest.raises(Exception, match=r"OutputSchemaError.*has no column 'seq'"):
            run(lab, totals(feed))
    assert max(manifests_of(lab.checkpoint)) == 0
    # One that is gone when its batch is to be published is waited for.
    lab.out, lab.checkpoint = lab.home / "other", lab.home / "again"
    with monkeypatch.context() as patch:
        at("publishing", lambda: catalog_at(lab.home).rename_table("db.other", "db.elsewhere"))
        with pytest.raises(Exception, match=r"PublishError.*batch 1 is committed.*gone"):
            run(lab, totals(feed))
    catalog_at(lab.home).rename_table("db.elsewhere", "db.other")
    run(lab, totals(feed))
    assert rows_in(table_of(lab)) == sorted(TOTALS)


def test_nulls_in_a_column_that_takes_none_end_the_query_before_the_commit(
    lab: Lab, feed: Feed
) -> None:
    must = NestedField(3, "v", LongType(), required=True)
    catalog_at(lab.home).create_table("db.out", Schema(K, C, must, SEQ))
    stream = totals(feed).selectExpr("k", "c", "CASE WHEN seq < 4 THEN v END AS v", "seq")
    with pytest.raises(Exception, match=r"OutputSchemaError.*'v' .*must not be null"):
        run(lab, stream)
    assert rows_in(table_of(lab)) == sorted(TOTALS[:4])
    assert max(manifests_of(lab.checkpoint)) == 0


# -- an object store -------------------------------------------------------------------------------


def test_a_table_in_an_object_store_is_written_by_the_sessions_settings(
    s3_lab: S3Lab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = s3_lab
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:])
    warehouse = {"catalog.warehouse": lab.address(lab.out).replace("s3a:", "s3:")}
    with cut_at(monkeypatch, "manifest-writing", 2), pytest.raises(Exception, match="power cut"):
        run(lab, totals(feed), "k", **warehouse)
    run(lab, totals(feed), **warehouse)
    settings = lab._server.spark_settings
    io = {
        "s3.endpoint": settings["spark.hadoop.fs.s3a.endpoint"],
        "s3.access-key-id": settings["spark.hadoop.fs.s3a.access.key"],
        "s3.secret-access-key": settings["spark.hadoop.fs.s3a.secret.key"],
        "s3.region": "us-east-1",
    }
    catalog = catalog_at(lab.home)
    catalog.properties.update(io)
    table = catalog.load_table(f"db.{lab.out.name}")
    assert rows_in(table) == sorted(TOTALS)
    named = {Path(task.file.file_path).name for task in table.scan().plan_files()}
    assert {file.name for file in lab.out.rglob("braided-*/**/*.parquet")} == named
    secret = io["s3.secret-access-key"]
    written = [file for file in lab.root.rglob("*") if file.is_file()]
    assert written and not [file for file in written if secret.encode() in file.read_bytes()]
    assert secret not in "".join(capfd.readouterr())

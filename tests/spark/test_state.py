"""The committed state as DataFrames: read, exported, compared, and given to an operator."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import braided
from braided.cli import show_state as inspect_state
from braided.errors import (
    CheckpointCorruptError,
    DefinitionError,
    OptionError,
    StateNotFoundError,
    StateValueError,
    UnsupportedError,
)
from braided.flow.key_schema import key_schema
from braided.inspect.frames import raised_by_task
from braided.store.durable.open_store import checkpoint_store
from braided.store.history.garbage import collect
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.runs import digest_of
from braided.testing import StreamTest
from support.state_operators import Forgetful, Sessions
from support.stream_harness import Lab, committed_view, manifests_of
from support.stream_operators import SCHEMA, LastThree, Totals

ROWS = [("abcdef"[i % 6], i % 2, i, i) for i in range(24)]


def totals(lab: Lab, feed: Any, **kwargs: Any) -> braided.Stream:
    stream = braided.stream(feed.frame()).groupBy("k", "c")
    return stream.apply(Totals, SCHEMA, **kwargs).name("totals")


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1, 0, 0, seconds)


def by_key(df: DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    rows = df.collect()
    found = {tuple(row["key"]): tuple(row["state"]) for row in rows}
    assert len(found) == len(rows)
    return found


def expected(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for k, c, v, _ in rows:
        count, total = found.get((k, c), (0, 0))
        found[k, c] = count + 1, total + v
    return found


def test_state_is_read_at_any_version_while_the_query_runs_and_after(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(lab, feed)
    with lab.running(flow, slots=16, channels=2) as query:
        for start in (0, 12):
            feed.add(ROWS[start : start + 12])
            query.processAllAvailable()
        now = braided.state(lab.checkpoint, lab.spark)
        assert now.schema.simpleString() == (
            "struct<operator:string,slot:int,key:struct<k:string,c:int>,"
            "state:struct<count:bigint,total:bigint>,timers:array<timestamp>,batch:bigint>"
        )
        assert by_key(now) == expected(ROWS)
        assert by_key(braided.state(lab.checkpoint, lab.spark, version=0)) == expected(ROWS[:12])
        query.rescale(4)
        feed.add(ROWS[:12])
        query.processAllAvailable()
        assert by_key(now) == expected(ROWS)  # the version is that of the call
    after = braided.state(str(lab.checkpoint), lab.spark, operator="totals").collect()
    assert {row.batch for row in after} == {committed_view(lab.checkpoint).batch}
    assert {row.operator for row in after} == {"totals"}
    place = F.expr("int(pmod(xxhash64(key.k, key.c), 16))")
    again = braided.state(lab.checkpoint, lab.spark)
    assert again.filter(F.col("slot") != place).count() == 0
    assert again.rdd.getNumPartitions() > 1


def test_fields_of_all_kinds_and_timers_are_sparks_own_and_survive_parquet(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Sessions, "k string, n int")
    feed.add([("a", 1, 5, 0), ("a", 2, 6, 1), ("b", 1, 7, 2)])
    lab.run(flow)
    written = str(lab.home / "exported")
    braided.state(lab.checkpoint, lab.spark).write.parquet(written)
    df = lab.spark.read.parquet(written)
    assert dict(df.dtypes)["state"] == (
        "struct<visits:array<struct<page:string,at:timestamp>>,pages:map<string,bigint>,"
        "longest:double>"
    )
    [a, b] = df.orderBy("key.k").collect()
    first, second = (dt.datetime(2024, 1, 1, 0, minute) for minute in (1, 2))
    century = dt.timedelta(days=36500)
    assert a.state == Row([Row("/5", first), Row("/6", second)], {"a": 2}, None)
    assert a.timers == [first + century, second + century]
    assert (b.key, b.timers) == (Row("b"), [first + century])


def test_several_operators_are_json_unless_one_is_named(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(lab, feed).groupBy("c").apply(LastThree, SCHEMA).name("last")
    feed.add(ROWS)
    lab.run(flow)
    both = braided.state(lab.checkpoint, lab.spark).collect()
    found = {(row.operator, *json.loads(row.key).values()): json.loads(row.state) for row in both}
    count, total = expected(ROWS)["a", 0]
    assert found["totals", "a", 0] == {"count": count, "total": total}
    assert {name for name, *_ in found} == {"totals", "last"}
    named = by_key(braided.state(lab.checkpoint, lab.spark, operator="last"))
    assert {key: {"recent": recent} for key, (recent,) in named.items()} == {
        tuple(key): state for (name, *key), state in found.items() if name == "last"
    }
    with pytest.raises(StateNotFoundError, match=r"no operator 'sum' .* 'totals', 'last'"):
        braided.state(lab.checkpoint, lab.spark, operator="sum")

    lab.spark.dataSource.register(braided.StateSource)
    reader = lab.spark.read.format("braided").option("path", str(lab.checkpoint))
    last = reader.option("operator", "last").load()
    assert last.schema == braided.state(lab.checkpoint, lab.spark, operator="last").schema
    assert by_key(last) == named
    with pytest.raises(PySparkException) as raised:
        lab.spark.read.format("braided").load(str(lab.checkpoint))
    error = raised_by_task(raised.value)
    assert isinstance(error, OptionError) and "'totals' (0), 'last' (1)" in str(error)


def test_what_is_not_there_is_said_with_what_is(lab: Lab) -> None:
    with pytest.raises(StateNotFoundError, match="holds no committed batch"):
        braided.state(lab.home / "nowhere", lab.spark)
    feed = lab.feed(SCHEMA)
    for start in range(0, 24, 6):
        feed.add(ROWS[start : start + 6])
    lab.run(
        braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA),
        retainedManifests=2,
        fullManifestEvery=2,
    )
    with pytest.raises(StateNotFoundError, match=r"batch 0 is not retained .* batches 2 to 3 are"):
        braided.state(lab.checkpoint, lab.spark, version=0)
    with pytest.raises(StateNotFoundError, match="batches 2 to 3 are"):
        braided.state(lab.checkpoint, lab.spark, version=4)
    with pytest.raises(DefinitionError, match="version is a batch id"):
        braided.state(lab.checkpoint, lab.spark, version="3")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="before=3 comes after batch 2"):
        braided.stateDiff(lab.checkpoint, lab.spark, 3, 2)


def test_a_version_that_is_removed_while_it_is_read_is_told_from_damage(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    for start in range(0, 24, 6):
        feed.add(ROWS[start : start + 6])
    flow = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)
    lab.run(flow, fullManifestEvery=1)
    old = braided.state(lab.checkpoint, lab.spark, version=1)
    new = braided.state(lab.checkpoint, lab.spark)
    files = checkpoint_store(lab.checkpoint)
    collect(files, ManifestLog(files), retain=1)
    with pytest.raises(PySparkException) as raised:
        old.collect()
    error = raised_by_task(raised.value)
    assert isinstance(error, StateNotFoundError)
    assert "the state of batch 1 is not retained" in str(error)
    assert new.count() == 6
    for path in (lab.checkpoint / "braided/state").rglob("*.run"):
        path.unlink()
    with pytest.raises(PySparkException) as raised:
        new.collect()
    assert isinstance(raised_by_task(raised.value), CheckpointCorruptError)


def test_two_versions_are_compared_key_by_key(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("kept", 0, 1, 0), ("grown", 0, 1, 0), ("gone", 0, 1, 0)])
    feed.add([("grown", 0, 4, 1), ("gone", 0, -1, 1), ("new", 0, 2, 1), ("kept", 0, 0, 0)][:3])
    flow = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k")
    lab.run(flow.apply(Forgetful, SCHEMA))
    diff = braided.stateDiff(lab.checkpoint, lab.spark, before=0, after=1)
    found = {row.key.k: (row.change, row.before, row.after) for row in diff.collect()}
    assert found == {
        "grown": ("changed", Row(1, {"1": 0}), Row(5, {"1": 0, "4": 0})),
        "gone": ("removed", Row(1, {"1": 0}), None),
        "new": ("added", None, Row(2, {"2": 0})),
    }
    assert braided.stateDiff(lab.checkpoint, lab.spark, 1).count() == 0


def test_aggregates_are_shown_by_key_and_window_and_compared(lab: Lab) -> None:
    feed = lab.feed("k string, ts timestamp, n int")
    rows = feed.frame(maxFilesPerTrigger=1).withWatermark("ts", "1 hour")
    means = (
        braided.stream(rows)
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.avg("n"), F.max("n").alias("most"), F.collect_set("n"))
        .name("means")
    )
    feed.add([("a", at(1), 1), ("a", at(2), 3), ("b", at(12), None)])
    feed.add([("a", at(3), 5)])
    lab.run(means)
    found = {
        (row.key.k, row.key.window.start): (*row.state[:3], sorted(row.state[3]))
        for row in braided.state(lab.checkpoint, lab.spark, "means").collect()
    }
    assert found == {
        ("a", at(0)): (9.0, 3, 5, [1, 3, 5]),
        ("b", at(10)): (None, 0, None, []),
    }
    frame = braided.state(lab.checkpoint, lab.spark, "means", version=0)
    names = frame.schema["state"].dataType.names
    assert names == ["avg(n) sum", "avg(n) count", "max(n)", "collect_set(n)"]
    assert frame.filter("key.k = 'a'").select("state.`avg(n) sum`").collect() == [Row(4.0)]
    [change] = braided.stateDiff(lab.checkpoint, lab.spark, 0, 1).collect()
    assert (change.key.k, change.change, change.before[0], change.after[0]) == (
        "a", "changed", 4.0, 9.0,
    )  # fmt: skip


def test_state_of_an_unknown_kind_is_refused(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    lab.run(totals(lab, feed))
    [manifest] = (lab.checkpoint / "braided/manifests").glob("0*.json")
    body = json.loads(manifest.read_text())["manifest"]
    text = json.dumps(body).replace("msgpack-1", "other-1")
    checksum = digest_of(b"\n" + text.encode())
    manifest.write_text(f'{{"checksum":"{checksum}","previous":"","manifest":{text}}}')
    with pytest.raises(UnsupportedError, match="'totals' keeps its state as other-1"):
        braided.state(lab.checkpoint, lab.spark)


def test_the_command_prints_writes_and_lists_state(
    lab: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    lab.run(totals(lab, feed), slots=8)
    given = argparse.Namespace(
        checkpoint=str(lab.checkpoint), operator=None, version=None, to=None, json=False
    )
    inspect_state.show(given, lab.spark)
    assert "|  totals|" in capfd.readouterr().out
    written = str(lab.home / "written")
    inspect_state.show(argparse.Namespace(**{**vars(given), "to": written}), lab.spark)
    assert by_key(lab.spark.read.parquet(written)) == expected(ROWS)
    command = [sys.executable, "-m", "braided.cli.main", "state", given.checkpoint, "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in printed.splitlines()]
    assert {tuple(row["key"].values()): tuple(row["state"].values()) for row in found} == expected(
        ROWS
    )


def test_the_command_reads_a_newer_version_when_one_is_removed_meanwhile(
    lab: Lab, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(lab, feed)
    feed.add(ROWS[:12])
    lab.run(flow, slots=8)
    given = argparse.Namespace(
        checkpoint=str(lab.checkpoint), operator=None, version=None, to=None, json=True
    )

    def overtaken(*args: Any) -> DataFrame:
        """Batches are committed, and the one before removed, right after the version is chosen."""
        monkeypatch.undo()
        df = braided.state(*args)
        for rows in (ROWS[12:], ROWS[:3]):
            feed.add(rows)
            lab.run(flow, retainedManifests=2, fullManifestEvery=1)
        return df

    monkeypatch.setattr(inspect_state, "state", overtaken)
    inspect_state.show(given, lab.spark)
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {row["batch"] for row in printed} == {2}


@pytest.mark.parametrize(
    "ddl",
    ["`a b` string, c bigint", "s struct<x: int, y: array<decimal(10,2)>>, `odd:name` date"],
)
def test_key_columns_are_understood_as_the_checkpoint_records_them(
    spark: SparkSession, ddl: str
) -> None:
    schema = spark.createDataFrame([], ddl).schema
    assert key_schema(schema.simpleString()).simpleString() == schema.simpleString()


# --- initial state ------------------------------------------------------------------------------


def test_state_goes_from_one_checkpoint_to_another(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1, 5, 0), ("a", 2, 6, 1), ("b", 1, 7, 2)])
    out = "k string, n int"
    lab.run(braided.stream(feed.frame()).groupBy("k").apply(Sessions, out))
    old = braided.state(lab.checkpoint, lab.spark)
    initial = old.select("key.*", "state.*", "timers")
    other = Lab(lab.spark, lab.home / "other")
    more = other.feed(SCHEMA)
    flow = braided.stream(more.frame()).groupBy("k").apply(Sessions, out, initialState=initial)
    with other.running(flow, slots=8) as query:
        query.processAllAvailable()  # a batch comes without rows, for the state alone
        shown = ["key", "state", "timers"]
        now = braided.state(other.checkpoint, lab.spark)
        assert sorted(now.select(shown).collect()) == sorted(old.select(shown).collect())
        more.add([("a", 3, 1, 3), ("c", 1, 1, 4)])
        query.processAllAvailable()
    assert sorted(other.rows()) == [("a", 3), ("c", 1)]
    found = other.state(flow)  # with totals, timers and their index checked
    assert sorted(found) == [("a",), ("b",), ("c",)]


def test_initial_state_counts_once_and_fills_in_defaults(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    initial = lab.spark.createDataFrame(
        [("a", 0, 10), ("z", 1, None), ("y", 1, 7)], "k string, c int, total int"
    )
    flow = totals(lab, feed, initialState=initial)
    feed.add([("a", 0, 5, 0)])
    lab.run(flow, slots=8)
    assert lab.rows() == [("a", 1, 15, 0)]
    assert lab.state(flow) == {
        ("a", 0): {"count": 1, "total": 15},
        ("y", 1): {"count": 0, "total": 7},  # z is as new: it has no state
    }
    feed.add([("y", 1, 1, 0)])
    lab.run(flow)
    assert lab.state(flow)["y", 1] == {"count": 1, "total": 8}
    names = [run.name for run in committed_view(lab.checkpoint).operators["totals"].live_runs()]
    assert any("/0-initial-" in name for name in names)


def test_an_operator_that_joins_a_flow_later_starts_with_its_own_state(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:6])
    lab.run(totals(lab, feed))
    initial = lab.spark.createDataFrame([(2, [100]), (9, [1])], "c int, recent array<bigint>")
    flow = totals(lab, feed).groupBy("c").apply(LastThree, SCHEMA, initialState=initial)
    feed.add([("a", 0, 1, 6)])
    lab.run(flow.name("last"))
    total = ROWS[0][2] + 1
    assert lab.state(flow.name("last"), "last") == {
        (2,): {"recent": [100, total]},
        (9,): {"recent": [1]},
    }
    assert ("a", 2, 100 + total, 6) in lab.rows()


def test_initial_state_of_an_unfinished_batch_is_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("a", 0, 5, 0)])

    def start(total: int) -> None:
        initial = lab.spark.createDataFrame([("a", 0, total)], "k string, c int, total int")
        lab.run(totals(lab, feed, initialState=initial), slots=8)

    with monkeypatch.context() as patch:
        patch.setattr(ManifestLog, "write", _die)
        with pytest.raises(PySparkException):
            start(10)
    assert manifests_of(lab.checkpoint) == {}
    start(20)
    assert lab.rows() == [("a", 1, 25, 0)]


@pytest.mark.parametrize("point", ["before-routing", "task-after-changelog", "after-manifest"])
def test_initial_state_counts_once_wherever_its_first_batch_crashes(
    spark: SparkSession, point: str
) -> None:
    initial = spark.createDataFrame([("a", 0, 10), ("y", 1, 7)], "k string, c int, total int")

    def alone(rows: braided.Stream) -> braided.Stream:
        return rows.groupBy("k", "c").apply(Totals, SCHEMA, initialState=initial).name("first")

    def chained(rows: braided.Stream) -> braided.Stream:
        first = rows.groupBy("k", "c").apply(Totals, SCHEMA).name("first")
        return first.groupBy("k", "c").apply(Totals, SCHEMA, initialState=initial).name("second")

    with StreamTest(spark, SCHEMA, alone, options={"braided.slots": 8}) as t:
        t.checkState({("a", 0): {"count": 0, "total": 10}, ("y", 1): {"count": 0, "total": 7}})
        t.crash(at=point)
        t.addData(("a", 0, 5, 0))
        t.restart()
        t.crash(at=point)
        t.restart(chained)
        assert t.query is None
        t.restart()
        t.checkState(
            {("a", 0): {"count": 1, "total": 15}, ("y", 1): {"count": 0, "total": 7}}, "first"
        )
        t.checkState(
            {("a", 0): {"count": 0, "total": 10}, ("y", 1): {"count": 0, "total": 7}}, "second"
        )
        t.checkAnswer(("a", 1, 15, 0))


def _die(*_: Any) -> None:
    raise RuntimeError("the power went")


def test_initial_state_that_does_not_fit_is_refused(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)

    def given(rows: list[tuple[Any, ...]], ddl: str) -> braided.Stream:
        return totals(lab, feed, initialState=lab.spark.createDataFrame(rows, ddl))

    for ddl, said in [
        ("k string, count int", "no column 'c', a grouping column"),
        ("k string, c bigint", "'c', a grouping column, is bigint and must be int: cast it"),
        ("k string, c int, total string", "'total', a field of Totals, is string and must be big"),
        ("k string, c int, total decimal(9,0)", "is decimal(9,0) and must be bigint"),
        ("k string, c int, sum int", "'sum', which is no field of Totals; it takes k, c, count, t"),
    ]:
        with pytest.raises(DefinitionError) as raised:
            given([], ddl)
        assert said in str(raised.value)
    with pytest.raises(DefinitionError, match="a DataFrame that is not streaming"):
        totals(lab, feed, initialState=feed.frame())
    feed.add(ROWS)
    twice = given([("a", 0, 1), ("b", 0, 1), ("a", 0, 2)], "k string, c int, total int")
    with pytest.raises(PySparkException) as failed:
        lab.run(twice)
    assert isinstance(failed.value.__cause__, StateValueError)
    assert "two rows of key Row(k='a', c=0)" in str(failed.value.__cause__)
    assert not Path(lab.checkpoint / "braided/manifests").exists()

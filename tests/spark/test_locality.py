"""Locality on Spark: which columns are keys of the next operator, what is counted, and plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import braided
from braided.cli import main as cli
from braided.cli import plan as plan_command
from braided.flow.graph import flow_of
from braided.flow.key_hashes import KeyHashes
from braided.query.pair_settings import pair_targets
from braided.sim.correlated import CorrelatedPairs
from braided.store.slots.key_codec import KeyCodec
from support.passing_operator import Passes
from support.stream_harness import Lab

ROWS = "location string, tag string, n long"


def _targets(spark: SparkSession, *streams: Any) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    found = pair_targets(flow_of([stream._node for stream in streams]), spark)
    return {
        name: sorted((target.operator, target.columns) for target in targets)
        for name, targets in found.items()
    }


def test_keys_are_found_in_output_as_far_as_columns_pass_unchanged(
    lab: Lab, spark: SparkSession
) -> None:
    source = braided.stream(lab.feed(ROWS).frame())
    first = source.groupBy("location").apply(Passes, ROWS).name("first")

    def then(stream: Any, *keys: Any) -> Any:
        return stream.groupBy(*keys).apply(Passes, stream.schema).name("next")

    next_tag = {"first": [("next", (1,))]}
    assert _targets(spark, then(first, "tag")) == next_tag
    assert _targets(spark, then(first.filter("n > 1"), "tag")) == next_tag
    assert _targets(spark, then(first.select("n", "tag"), "tag")) == next_tag
    assert _targets(spark, then(first.withColumn("m", F.col("n") + 1), "tag")) == next_tag
    assert _targets(spark, then(first, "tag", "location")) == {"first": [("next", (1, 0))]}
    # A key that is made on the way, or under another name, is none of the output's columns.
    assert _targets(spark, then(first.withColumn("tag", F.upper("tag")), "tag")) == {}
    assert _targets(spark, then(first.selectExpr("lower(tag) AS t", "n"), "t")) == {}
    assert _targets(spark, then(source, "tag")) == {}
    other = source.groupBy("tag").apply(Passes, ROWS).name("other")
    assert _targets(spark, then(first.union(other), "n")) == {
        "first": [("next", (2,))],
        "other": [("next", (2,))],
    }
    left = first.groupBy("tag").apply(Passes, ROWS).name("left")
    right = first.filter("n > 2").groupBy("n").apply(Passes, ROWS).name("right")
    assert _targets(spark, left, right) == {"first": [("left", (1,)), ("right", (2,))]}


def test_a_query_counts_pairs_and_gives_out_what_it_would_without(lab: Lab) -> None:
    here, there = CorrelatedPairs(locations=20, hashtags=200).period(0, 3000)
    rows = [(f"l{a}", f"t{b}", n) for n, (a, b) in enumerate(zip(here, there, strict=True))]
    feed = lab.feed(ROWS)
    for batch in range(3):
        feed.add(rows[batch * 1000 : (batch + 1) * 1000])
    stream = braided.stream(feed.frame(maxFilesPerTrigger=1))
    first = stream.groupBy("location").apply(Passes, ROWS).name("first")
    second = first.groupBy("tag").apply(Passes, ROWS).name("second")
    query = lab.start(
        second, channels=2, **{"locality": "on", "locality.every": 1, "locality.period": 100}
    )
    query.processAllAvailable()
    shown: Any = None
    for progress in query.recentProgress:
        shown = progress["braided"].get("control", {}).get("locality") or shown
    query.stop()
    assert sorted(lab.rows()) == sorted(rows)
    assert shown["pairs"] > 50
    assert shown["batches"] >= 2
    assert 0.7 * 2000 < shown["rowsCounted"] < 3000  # all but those that are held out


def test_many_keys_are_hashed_as_one_is(spark: SparkSession, lab: Lab) -> None:
    stream = braided.stream(lab.feed(ROWS).frame())
    flow = flow_of([stream.groupBy("tag", "n").apply(Passes, ROWS).name("o")._node])
    hashes = KeyHashes(spark, flow.steps)
    codec = KeyCodec(pa.schema([("tag", pa.string()), ("n", pa.int64())]))
    keys = codec.encode_batch([pa.array(["a", None, "c"]), pa.array([1, 2, None], pa.int64())])
    for asked in (keys, []):
        found = hashes.of_keys("o", asked)
        assert found is not None
        both = list(zip(*(each.tolist() for each in found), strict=True))
        assert both == [hashes.of_key("o", key) for key in asked]


def test_a_plan_by_rows_of_the_past_is_written_for_each_operator(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = CorrelatedPairs(locations=60, hashtags=600, affinity=0.9)
    here, there = rows.period(0, 20_000)
    data = {
        "location": pa.array([f"l{a}" for a in here.tolist()]),
        "day": pa.array([a % 3 for a in here.tolist()], pa.int32()),
        "tag": pa.array([f"t{b}" for b in there.tolist()]),
    }
    pq.write_table(pa.table(data), tmp_path / "rows.parquet")

    class Session:
        def __enter__(self) -> SparkSession:
            return spark

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(plan_command, "command_spark", lambda _: Session())
    out = tmp_path / "out"
    asked = ["plan", "--from", str(tmp_path / "rows.parquet"), "--hosts", "4", "--json"]
    assert (
        cli.main([*asked, "--keys", "location+day,tag", "--names", "a,b", "--out", str(out)]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["locality_expected"] > 2.2 * told["locality_hash"]
    assert told["locality_expected"] == pytest.approx(told["locality_fitted"], abs=0.15)
    assert told["imbalance"] < 1.2
    a, b = (pq.read_table(out / f"{name}.parquet") for name in "ab")
    assert a.column_names == ["location", "day", "__part"]
    assert a.schema.field("day").type == pa.int32() and b.schema.field("__part").type == pa.int32()
    assert a.schema.metadata[b"parts"] == b"4"
    assert set(b["__part"].to_pylist()) == {0, 1, 2, 3}
    assert a.num_rows == told["keys"]["a"] and len(set(b["tag"].to_pylist())) == b.num_rows
    for wrong, words in (
        (["--keys", "location"], "two operators"),
        (["--keys", "location,country"], "no column country"),
        (["--keys", "location,tag", "--names", "x"], "as many names"),
        (["--keys", "location,tag", "--out", "s3a://bucket/plan"], "--out is s3a://bucket/plan"),
        (["--keys", "location,tag", "--out", "dbfs:/plan"], "a local directory"),
    ):
        assert cli.main([*asked, *wrong]) == 1
        assert words in capsys.readouterr().err
    missing = ["plan", "--from", "nowhere.parquet", "--keys", "a,b", "--hosts", "2"]
    assert cli.main(missing) == 1
    assert "can't be read" in capsys.readouterr().err
    assert isinstance(spark.read.parquet(str(out / "a.parquet")).schema, StructType)

"""What a program that was written for Spark sees of a query: progress, listener, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

import braided
from braided import failpoints
from support.spark_processors import Bounded
from support.stream_harness import Feed, Lab, wait_until

SCHEMA = "k string, v int, t timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*minutes: int) -> list[tuple[str, int, datetime]]:
    return [(f"k{i % 3}", i, START + timedelta(minutes=m)) for i, m in enumerate(minutes)]


# The third batch has rows that are late. None is taken in and evicted by one batch, which Spark
# counts as updated and removed, and we as nothing.
BATCHES = [rows(0, 1, 2, 11), rows(30, 31, 32), rows(3, 4, 33, 34), rows(61)]


class Listener(StreamingQueryListener):
    """As it stands in programs for Spark: it knows nothing of Braided."""

    def __init__(self) -> None:
        self.seen: list[StreamingQueryProgress] = []
        self.began: dict[str, str] = {}
        self.ended: dict[str, str | None] = {}

    def onQueryStarted(self, event: Any) -> None:
        self.began[str(event.runId)] = event.name

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.seen.append(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.ended[str(event.runId)] = event.exception

    def of(self, query: Any) -> list[StreamingQueryProgress]:
        return [p for p in self.seen if str(p.runId) == str(query.runId) and p.numInputRows]


def feed_of(lab: Lab, name: str) -> Feed:
    feed = lab.feed(SCHEMA, name)
    for batch in BATCHES:
        feed.add(batch)
    return feed


def windows(rows: Any) -> Any:
    return rows.groupBy(F.window("t", "10 minutes"), "k").agg(F.sum("v").alias("total"))


def gauges_of(query: Any) -> dict[str, Any]:
    """What a query has for Spark's metrics system, and so for Prometheus and JMX: the system
    itself can't be asked from Python.
    """
    native = getattr(query, "_query", query)
    gauges = native._jsq.streamingQuery().streamMetrics().metricRegistry().getGauges()
    return {name: gauges.get(name).getValue() for name in gauges.keySet()}


def totals(rows: Any) -> Any:
    return rows.groupBy("k").transformWithState(
        statefulProcessor=Bounded(),
        outputStructType="k string, total bigint",
        outputMode="Append",
        timeMode="EventTime",
    )


PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.mark.parametrize(("flow", "operator"), [(windows, "agg"), (totals, "Bounded")])
def test_a_listener_sees_of_ours_what_it_sees_of_a_native_query(
    lab: Lab, flow: Callable[[Any], Any], operator: str
) -> None:
    listener, spark = Listener(), lab.spark
    spark.streams.addListener(listener)
    spark.conf.set("spark.sql.streaming.metricsEnabled", "true")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    try:
        progress, queries, gauges = {}, {}, {}
        for name in ("native", "ours"):
            frame = feed_of(lab, name).frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds")
            stream = frame if name == "native" else braided.stream(frame)
            writer = flow(stream).writeStream.outputMode("append").format("memory")
            writer = writer.queryName(name).option("checkpointLocation", str(lab.home / f"c{name}"))
            queries[name] = writer.start()
            queries[name].processAllAvailable()
            wait_until(lambda n=name: len(listener.of(queries[n])) == 4, "four batches")
            progress[name] = listener.of(queries[name])
            gauges[name] = gauges_of(queries[name])
    finally:
        for query in queries.values():
            query.stop()
        runs = {name: str(query.runId) for name, query in queries.items()}
        # Of a query that another test had, the end may be said now.
        wait_until(lambda: set(runs.values()) <= listener.ended.keys(), "the ends")
        spark.conf.unset("spark.sql.streaming.metricsEnabled")
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        spark.streams.removeListener(listener)
    assert {name: listener.began.get(run) for name, run in runs.items()} == {n: n for n in runs}
    assert {listener.ended[run] for run in runs.values()} == {None}
    for native, own in zip(progress["native"], progress["ours"], strict=True):
        _compare(native, own, operator)
    assert [p.stateOperators[0].numRowsDroppedByWatermark for p in progress["ours"]] == [0, 0, 2, 0]
    assert sum(p.sink.numOutputRows for p in progress["ours"]) > 0
    assert set(gauges["native"]) < set(gauges["ours"])
    for name in ("states-rowsTotal", "eventTime-watermark"):
        assert gauges["native"][name] == gauges["ours"][name] > 0
    assert gauges["ours"][f"{operator}-rowsTotal"] == gauges["ours"]["states-rowsTotal"]


def _compare(native: StreamingQueryProgress, own: StreamingQueryProgress, operator: str) -> None:
    """Field by field; times, sizes and names are each one's own."""
    # The section comes as an observed metric, which this native program has none of.
    section = json.loads(own.observedMetrics.pop("braided").json)
    assert section["batchId"] == own.batchId and section["operators"][operator]["channels"] == 2
    assert set(native) == set(own)
    assert set(native.durationMs) == set(own.durationMs)
    for field in ("batchId", "numInputRows", "eventTime", "observedMetrics"):
        assert native[field] == own[field], field
    [theirs], [ours] = native.sources, own.sources
    assert set(theirs) == set(ours)
    assert (theirs.endOffset, theirs.numInputRows) == (ours.endOffset, ours.numInputRows)
    [theirs], [ours] = native.stateOperators, own.stateOperators
    assert set(theirs) == set(ours)
    fields = (
        "numRowsTotal",
        "numRowsUpdated",
        "numRowsRemoved",
        "numRowsDroppedByWatermark",
        "numShufflePartitions",
    )
    different = {f: (theirs[f], ours[f]) for f in fields if theirs[f] != ours[f]}
    assert different == {}, own.batchId
    assert ours.memoryUsedBytes > 0 and ours.numStateStoreInstances == 256
    assert ours.customMetrics["braidedRows"] == section["operators"][operator]["rows"]
    assert set(native.sink) == set(own.sink)
    assert native.sink.numOutputRows == own.sink.numOutputRows


def test_a_batch_that_is_published_again_after_a_crash_shows_what_there_is(lab: Lab) -> None:
    frame = feed_of(lab, "in").frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds")
    flow, batches = windows(braided.stream(frame)), len(BATCHES)
    failpoints.arm("after-manifest")
    try:
        with pytest.raises(StreamingQueryException, match="crashed at after-manifest"):
            lab.run(flow)
    finally:
        failpoints.arm(None)
    listener = Listener()
    lab.spark.streams.addListener(listener)
    try:
        with lab.running(flow) as query:
            query.processAllAvailable()
            wait_until(lambda: len(listener.of(query)) == batches, "the batches")
    finally:
        lab.spark.streams.removeListener(listener)
    again, after, *_ = listener.of(query)
    assert (again.batchId, after.batchId) == (0, 1)
    section = json.loads(again.observedMetrics["braided"].json)
    assert section["redelivered"]
    assert section == query.recentProgress[0]["braided"]
    assert len(again.sources) == len(after.sources) == 1
    [shown], [later] = again.stateOperators, after.stateOperators
    assert set(shown) == set(later) and shown.operatorName == "agg"
    assert set(shown.customMetrics) == set(later.customMetrics)
    total = braided.state(lab.checkpoint, lab.spark, "agg", version=0).count()
    assert shown.numRowsTotal == total > 0
    assert shown.memoryUsedBytes > 0 and shown.numStateStoreInstances == 256
    assert (shown.numRowsUpdated, shown.allUpdatesTimeMs, shown.commitTimeMs) == (0, 0, 0)
    assert set(again.sink) == set(after.sink)
    assert (again.sink.description, again.sink.numOutputRows) == (after.sink.description, 0)


def test_late_rows_are_counted_by_operator_and_kept_if_asked(lab: Lab) -> None:
    class Sum(braided.Operator):
        total: int = 0

        def onRow(self, row: Any) -> Any:
            self.total += row.v
            yield row.k, self.total

    rows = braided.stream(
        feed_of(lab, "in").frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds")
    )
    sums = rows.groupBy("k").apply(Sum, "k string, total int", timeMode="EventTime").name("sums")
    sliding = rows.groupBy(F.window("t", "10 minutes", "5 minutes"), "k").agg(F.sum("v"))
    writers = [
        stream.writeStream.format("parquet").option("path", str(lab.home / f"out-{i}"))
        for i, stream in enumerate((sums, sliding.name("sliding")))
    ]
    writers[0].option("checkpointLocation", str(lab.checkpoint)).option("braided.late", "divert")
    query = braided.start(*writers)
    query.processAllAvailable()
    batches = [p for p in query.recentProgress if p["numInputRows"]]
    late = {
        name: [p["braided"]["operators"][name]["lateRows"] for p in batches]
        for name in ("sums", "sliding")
    }
    query.stop()
    assert late["sums"] == [0, 0, 2, 0]
    # A row is in two windows; rows of one window and key are one when they get there.
    assert late["sliding"] == [0, 0, 4, 0]
    found = braided.lateRows(lab.checkpoint, lab.spark).collect()
    kept = sorted((row.operator, json.loads(row.row)["v"]) for row in found)
    assert kept == [("sliding", 0)] * 2 + [("sliding", 1)] * 2 + [("sums", 0), ("sums", 1)]
    assert {row.batch for row in found} == {batches[2]["batchId"]}
    assert all(row.error.startswith("late: the watermark was at 2026-01-01T00:11") for row in found)
    assert {json.loads(row.key)["k"] for row in found} == {"k0", "k1"}
    ends = {json.loads(r.key)["window"]["end"] for r in found if r.operator == "sliding"}
    assert len(ends) == 2
    assert braided.deadLetters(lab.checkpoint, lab.spark).count() == 0
    assert not list(Path(lab.checkpoint).rglob("*.tmp"))

"""`ElasticQuery`: what it shares with Spark's, its commands, its progress."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import braided
from braided.errors import FencedError, QueryStoppedError, UnsupportedError
from braided.query import cutting, opening
from braided.sinks.base import NoopSink
from braided.spark import jvm as jvm_module
from braided.spark.jvm import RENAMED_LOGS, Jvm
from braided.spark.offset_log import SparkLog
from braided.spark.tick import Bell, with_tick
from braided.steering.input_size import input_size
from braided.store.durable.lease import acquire_lease
from braided.store.durable.local_store import LocalStore
from braided.store.durable.open_store import checkpoint_store
from support.stream_harness import Lab, committed_view, wait_until
from support.stream_operators import SCHEMA, BatchTotals, Totals

ROWS = [("abcdef"[i % 6], i % 2, i, i) for i in range(24)]


def test_it_has_every_public_attribute_of_sparks_query() -> None:
    public = {name for name in dir(StreamingQuery) if not name.startswith("_")}
    assert public <= set(dir(braided.ElasticQuery))


def test_py4j_knows_the_classes_that_pyspark_calls_by_simple_names(
    spark: SparkSession, lab: Lab
) -> None:
    braided.stream(lab.feed(SCHEMA).frame())
    jvm: Any = spark.sparkContext._jvm
    server: Any = spark.sparkContext._gateway
    known = server.java_gateway_server.getGateway().getDefaultJVMView().getSingleImportsMap()
    assert known["functions"] == "org.apache.spark.sql.functions" == jvm.functions._fqn
    for name in ("PythonSQLUtils", "PythonUtils", "SimplePythonFunction"):
        assert known[name] == getattr(jvm, name)._fqn


def test_it_answers_as_sparks_query_does(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    writer = flow.writeStream.format("noop").queryName("answers")
    query = writer.option("checkpointLocation", str(lab.checkpoint)).start()
    feed.add(ROWS)
    query.processAllAvailable()
    assert query.isActive
    assert query.name == "answers"
    assert query.awaitTermination(timeout=0.01) is False
    assert query.exception() is None
    assert set(query.status) == {"message", "isDataAvailable", "isTriggerActive"}
    first_id, first_run = query.id, query.runId
    query.explain()
    shown = capsys.readouterr().out
    assert "(2) operator 'Totals' by k: 2 channels, 256 slots, epoch 0 <- 1" in shown
    assert "sink noop[1] <- 2" in shown
    plan = shown.partition("plan of the newest batch")[2]
    assert "MapInArrow" in plan
    assert "element_at([channel of each slot], " in plan and ",0,1,0," not in plan
    query.stop()
    query.stop()  # again is no harm
    assert not query.isActive
    assert query.awaitTermination(timeout=5) is True
    again = lab.start(flow, "noop")
    assert again.id == first_id
    assert again.runId != first_run
    again.stop()


def managers(spark: SparkSession, query: StreamingQuery) -> set[str]:
    """How Spark writes the files of a query's logs: those of its batches and of its file source."""
    jvm = Jvm(spark)
    execution: Any = query._jsq.streamingQuery()
    source = jvm._field(jvm_module._FILE_SOURCE, "metadataLog")
    sources = [execution.sources().apply(i) for i in range(execution.sources().size())]
    files = [source.get(s) for s in sources if jvm._is(s, jvm_module._FILE_SOURCE)]
    assert len(files) == 1
    logs = [execution.offsetLog(), execution.commitLog(), *files]
    return {str(log.fileManager().getClass().getSimpleName()) for log in logs}


@pytest.mark.parametrize("own", [None, "FileContextBasedCheckpointFileManager"])
def test_sparks_logs_are_written_by_renaming_and_no_other_query_notices(
    lab: Lab, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, renaming = RENAMED_LOGS
    usual, ours = "FileContextBasedCheckpointFileManager", renaming.rpartition(".")[2]
    if own is not None:
        lab.spark.conf.set(name, f"{renaming.rpartition('.')[0]}.{own}")
    natives: list[StreamingQuery] = []
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    await_sources = Jvm.await_sources

    def start_native() -> None:
        at = str(lab.home / f"native-{len(natives)}")
        writer = feed.frame().writeStream.format("noop").option("checkpointLocation", at)
        natives.append(writer.start())

    def meanwhile(jvm: Jvm, query: StreamingQuery, timeout_ms: int) -> None:
        if own is None:
            start_native()
        await_sources(jvm, query, timeout_ms)

    monkeypatch.setattr(Jvm, "await_sources", meanwhile)
    try:
        flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
        with lab.running(flow, "noop") as query:
            start_native()
            query.processAllAvailable()
            assert managers(lab.spark, query._query) == {ours if own is None else own}
            for native in natives:
                native.processAllAvailable()
                assert managers(lab.spark, native) == {own or usual}
        assert {path.name for path in (lab.checkpoint / "commits").glob("[0-9]*")} == {"0"}
        assert not list(lab.checkpoint.glob("**/*.tmp"))
    finally:
        lab.spark.conf.unset(name)
        for native in natives:
            native.stop()


def test_a_start_that_is_interrupted_leaves_no_query_behind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    before = {query.runId for query in lab.spark.streams.active}  # of other tests, and ending
    with monkeypatch.context() as patch:
        patch.setattr(Jvm, "await_sources", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lab.start(flow)
    assert {query.runId for query in lab.spark.streams.active} <= before
    lab.run(flow)
    assert len(lab.rows()) == len(ROWS)


def test_an_offset_log_that_can_not_be_read_is_refused(lab: Lab) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Totals, SCHEMA)
    lab.spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    try:
        with pytest.raises(UnsupportedError, match=r"offsetLog\.formatVersion"):
            lab.start(flow)
    finally:
        lab.spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")


def test_the_size_of_files_is_known_also_in_a_batch_that_the_tick_asked_for(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    bell, log, sizes = Bell(), SparkLog(LocalStore(lab.checkpoint)), []
    rows = with_tick(feed.frame(), bell)
    bell.ring()
    query = (
        rows.writeStream.foreachBatch(lambda df, batch: sizes.append(input_size(df, log, batch)))
        .option("checkpointLocation", str(lab.checkpoint))
        .start()
    )
    try:
        query.processAllAvailable()
        feed.add(ROWS)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sizes[0] is not None
    assert sizes == [sizes[0]] * 2


def test_a_progress_without_a_batch_shows_what_is_there_and_nothing_done(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    for run in (1, 2):
        with lab.running(flow, "noop", channels=2) as query:
            wait_until(lambda: query.lastProgress is not None, "a progress")
            idle = query.recentProgress[0]["braided"]["operators"]["Totals"]
            assert (idle["channels"], idle["busyMs"], idle["rows"]) == (2, [0.0, 0.0], 0)
            assert idle["keys"] == (0 if run == 1 else 6)
            feed.add(ROWS)
            query.processAllAvailable()
            done = [p["braided"]["operators"]["Totals"]["rows"] for p in query.recentProgress]
            assert sum(done) == len(ROWS)


def test_progress_tells_what_each_batch_did(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).name("totals")
    flow = flow.groupBy("c").apply(BatchTotals, SCHEMA).name("batches")
    with lab.running(flow, channels=3, slots=32) as query:
        feed.add(ROWS)
        query.processAllAvailable()
        query.rescale(5, operator="totals")
        feed.add(ROWS)
        query.processAllAvailable()
        sections = [p["braided"] for p in query.recentProgress if "addBatch" in p["durationMs"]]
        last = query.lastProgress
    assert last is not None and "braided" in last
    json.dumps(sections)
    first = sections[0]
    assert first["batchId"] == 0
    assert first["carryRows"] == 0
    assert set(first["stepsMs"]) == {"admit", "route", "process", "commit", "publish", "control"}
    totals, batches = (first["operators"][name] for name in ("totals", "batches"))
    assert (totals["channels"], totals["slots"], totals["rows"], totals["keys"]) == (3, 32, 24, 6)
    assert (totals["rowsOut"], totals["keysTouched"], totals["moves"]) == (24, 6, 0)
    assert (batches["rows"], batches["keys"], batches["rowsOut"]) == (24, 4, 8)
    assert len(totals["busyMs"]) == 3 and all(ms >= 0 for ms in totals["busyMs"])
    assert totals["imbalance"] >= 1.0 and totals["slotImbalance"] >= 1.0
    assert totals["stateBytes"] > 0 and totals["changelogBytes"] > 0
    assert totals["bytesCaughtUp"] == 0 and totals["cacheErrors"] == 0
    moved = [s["operators"]["totals"]["moves"] for s in sections]
    assert sum(1 for n in moved if n) == 1
    # From 3 to 5 channels, two fifths of the slots move and no more.
    assert 32 * 2 // 5 <= max(moved) <= 32 * 2 // 5 + 2
    assert sections[-1]["operators"]["totals"]["channels"] == 5
    assert sections[-1]["operators"]["batches"]["channels"] == 3
    assert sections[-1]["operators"]["totals"]["rebuilt"] == 0
    assert sections[-1]["operators"]["totals"]["cacheHits"] > 0
    local = Path(str(lab.spark.conf.get("spark.local.dir")))
    assert len(list(local.glob(f"braided-cache-*/*/{committed_view(lab.checkpoint).flow}"))) == 1


def test_commands_take_effect_without_input_one_after_the_other(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    with lab.running(flow, "noop", channels=2) as query:
        query.processAllAvailable()
        query.rescale(7)
        query.processAllAvailable()
        assert query.routing()["Totals"].channels == 7
        query.rescale(3)
        query.rescale(4)
        query.rebalance()
        query.processAllAvailable()
        assert query.routing()["Totals"].channels == 4
    for change in (lambda: query.rescale(5), query.rebalance):
        with pytest.raises(QueryStoppedError, match="the query has stopped"):
            change()
    assert lab.state(flow) == {
        (k,): {"count": 4, "total": sum(v for key, _, v, _ in ROWS if key == k)} for k in "abcdef"
    }


def test_a_query_can_be_stopped_by_its_own_foreach_batch_function(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)
    taken: list[tuple[int, int]] = []
    started = threading.Event()

    def take(df: DataFrame, batch: int) -> None:
        started.wait()
        query.stop()
        query.stop()
        taken.append((batch, df.count()))  # the batch goes on to its end

    # Were it to wait for itself, it would wait this long and then be cut off.
    query = lab.start(flow, take, stopTimeout="1h")
    feed.add(ROWS)
    feed.add(ROWS[:5])
    started.set()
    assert query.awaitTermination(180) is True
    assert query.exception() is None and not query.isActive
    assert taken == [(0, 24)]
    assert sorted(p.name for p in (lab.checkpoint / "commits").glob("[0-9]*")) == ["0"]
    lab.run(flow, lambda df, batch: taken.append((batch, df.count())))
    assert taken == [(0, 24), (1, 5)]


def test_a_stop_that_waits_says_for_what_and_cuts_off_without_a_trace(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    began, go = lab.home / "began", lab.home / "go"

    class Waiting(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            began.touch()
            wait_until(go.exists, "a word to go on")
            self.rows += 1
            yield row

    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waiting, SCHEMA)
    query = lab.start(flow, channels=1, stopTimeout="500ms")
    feed.add(ROWS[:1])
    wait_until(began.exists, "the batch")
    with caplog.at_level("WARNING"):
        query.stop()
    assert caplog.messages == [
        "stop: waiting for batch 0, at most 0.5 s",
        "stop: batch 0 is cut off, and runs again at the next start",
    ]
    assert query.exception() is None and not query.isActive
    go.touch()
    lab.run(flow)
    assert lab.state(flow) == {("a",): {"rows": 1}}


def test_listings_of_killed_queries_go_at_the_next_start(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    out = lab.checkpoint / "braided" / "out"
    for leftover in (out / "7-abc-0.list/0", out / "7-abc-1/part-0"):
        leftover.parent.mkdir(parents=True, exist_ok=True)
        leftover.touch()
    (out / "7-abc-2.list").mkdir()
    (out / "7-abc-3").mkdir()
    with lab.running(flow) as query:
        query.processAllAvailable()
        assert [path.name for path in out.iterdir()] == ["7-abc-1"]  # not yet committed


def test_a_rescale_that_can_not_be_is_refused_at_once(lab: Lab) -> None:
    refused: list[Any] = [0, -1, True, 2.0, "3", None, 9]
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    with lab.running(flow, "noop", channels=2, slots=8) as query:
        for channels in refused:
            with pytest.raises(ValueError, match=r"at least 1|8 slots"):
                query.rescale(channels)
        with pytest.raises(ValueError, match=r"no operator 'Sums' .* it has Totals"):
            query.rescale(2, operator="Sums")
        with pytest.raises(ValueError, match="no operator 'Sums'"):
            query.rebalance("Sums")
        assert query.routing()["Totals"].channels == 2


def test_a_rebalance_moves_slots_from_the_busy_channel(lab: Lab) -> None:
    class Slow(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += sum(1 for _ in range(20_000))
            yield row

    feed = lab.feed("k int")
    probe = lab.spark.range(200).select((F.xxhash64(F.col("id").cast("int")) % 16).alias("h"), "id")
    # Slots of channel 0 in the first table, found by the rule of the design.
    keys = [row.id for row in probe.collect() if 0 <= row.h % 16 < 4][:8]
    flow = braided.stream(feed.frame()).groupBy("k").apply(Slow, "k int")
    with lab.running(flow, "noop", channels=2, slots=16) as query:
        before = query.routing()["Slow"]
        busy = Counter(int(before.slots[s]) for s in range(4))
        for _ in range(2):
            feed.add([(k,) for k in keys for _ in range(3)])
            query.processAllAvailable()
        query.rebalance()
        query.processAllAvailable()
        after = query.routing()["Slow"]
    if len(busy) == 1:  # all keys were on one channel
        assert after.epoch == before.epoch + 1
        assert {int(after.slots[s]) for s in range(4)} == {0, 1}
    assert {key[0] for key in lab.state(flow)} == set(keys)


def test_a_second_query_on_the_checkpoint_is_fenced_off_and_the_first_unharmed(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    with lab.running(flow) as query:
        with pytest.raises(FencedError, match="checkpoint"):
            lab.start(flow)
        feed.add(ROWS)
        query.processAllAvailable()
        assert query.isActive
    assert len(lab.rows()) == len(ROWS)


@pytest.mark.parametrize("how", ["out of input", "Spark's stop", "an error", "temporary"])
def test_a_query_lets_go_of_all_it_had_however_it_ends(lab: Lab, how: str) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    accumulators = set(_accumulatorRegistry)
    location = lab.checkpoint

    def start() -> weakref.ref[Any]:
        """Starts a query that ends without a call of ours."""
        nonlocal location
        writer = flow.writeStream.foreachBatch(lambda df, batch: how != "an error" or 1 / 0)
        if how != "temporary":
            writer = writer.option("checkpointLocation", str(location))
        if how == "out of input":
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        location = Path(query._opened.location)
        assert location.is_dir()
        if how in ("Spark's stop", "temporary"):
            query.processAllAvailable()
            next(q for q in lab.spark.streams.active if q.runId == query.runId).stop()
        return weakref.ref(query._engine)

    def is_free() -> bool:
        try:
            acquire_lease(checkpoint_store(location), "a test").release()
        except FencedError:
            return False
        return True

    engine = start()
    if how == "temporary":
        wait_until(lambda: not location.exists(), "the end of a temporary checkpoint")
    else:
        wait_until(is_free, "a checkpoint that another process could have")
    wait_until(lambda: gc.collect() >= 0 and engine() is None, "the end of the engine")
    assert set(_accumulatorRegistry) <= accumulators


@pytest.mark.parametrize("broken", ["the control path", "a sink"])
def test_a_query_that_can_not_be_opened_lets_go_of_all_it_had(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    class Placing:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    def fail(*_: Any) -> None:
        raise OSError("out of order")

    placing, accumulators = Placing(), set(_accumulatorRegistry)
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Totals, SCHEMA)
    with monkeypatch.context() as patch:
        if broken == "a sink":
            # What places channels there is on clusters only; it comes before the sinks.
            patch.setattr(opening, "open_transition", lambda *_: placing)
            patch.setattr(NoopSink, "open", fail)
        else:
            patch.setattr(cutting, "driver_hosts", fail)
        with pytest.raises(OSError, match="out of order"):
            lab.start(flow, "noop")
    assert placing.closed == (broken == "a sink")
    assert set(_accumulatorRegistry) <= accumulators
    acquire_lease(checkpoint_store(lab.checkpoint), "a test").release()


@pytest.mark.parametrize("channels", [1, 4])
def test_calls_of_on_batch_for_one_key_keep_their_order(lab: Lab, channels: int) -> None:
    class Calls(braided.Operator):
        calls: int = 0

        def onBatch(self, rows: pa.Table) -> Iterator[Any]:
            self.calls += 1
            yield {"k": self.key.k, "call": self.calls, "first": rows["seq"][0].as_py()}

    feed = lab.feed("k string, seq bigint")
    feed.add([("a" if i % 7 else "b", i) for i in range(30_000)])
    grouped = braided.stream(feed.frame()).groupBy("k")
    flow = grouped.apply(Calls, "k string, call int, first bigint")
    lab.run(flow, channels=channels, orderPreserving=True)
    found = lab.rows()
    assert [first for _, _, first in found] == sorted(first for _, _, first in found)
    assert [call for k, call, _ in found if k == "a"] == [1, 2, 3]
    assert [row for row in found if row[0] == "b"] == [("b", 1, 0)]


def test_rows_of_all_shapes_leave_an_operator(lab: Lab) -> None:
    class Shapes(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Any:
            self.rows += 1
            shapes = [row, tuple(row), list(row), row.asDict(), {"k": row.k}]
            return None if row.k == "none" else shapes

    feed = lab.feed("k string, seq bigint")
    feed.add([("a", 1), ("none", 2)])
    flow = braided.stream(feed.frame()).groupBy("k").apply(Shapes, "k string, seq bigint")
    lab.run(flow)
    assert Counter(lab.rows()) == Counter({("a", 1): 4, ("a", None): 1})

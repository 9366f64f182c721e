"""StatefulProcessors on Spark: state that moves and restarts, timers, initial state, chains."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

import braided
from braided.api.grouped import GroupedStream
from braided.cli import show_state
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
    OperatorDefinitionError,
    UnsupportedError,
)
from braided.import_state import import_state
from braided.steering import policy_settings as policies
from support.restless import RESTLESS_KEYS, RestlessBalance, RestlessScale
from support.spark_processors import Brief, PerKind, Ratio, Remembering, Sessions, Totals
from support.stream_harness import Lab, manifests_of, wait_until

SCHEMA = "k string, v int"
ROWS = [(k, v) for v in range(3) for k in "abcdefgh"]
OUT = "k string, n int, total double"


def totals(frame: Any, **more: Any) -> Any:
    return (
        braided.stream(frame)
        .groupBy("k")
        .transformWithState(
            statefulProcessor=Totals(),
            outputStructType=OUT,
            outputMode="Update",
            timeMode="None",
            **more,
        )
    )


def test_state_survives_rescales_rebalances_and_restarts(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(feed.frame())
    with lab.running(flow, channels=2) as query:
        for channels in (2, 5, 1):
            feed.add(ROWS)
            query.processAllAvailable()
            query.rescale(channels)
            query.rebalance()
    feed.add(ROWS)
    lab.run(totals(feed.frame()))
    last = sorted(lab.rows())[3::4]
    assert last == [(k, 12, 12.0) for k in "abcdefgh"]


def test_state_is_exact_with_policies_that_know_no_rest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels change, slots are dealt out anew, keys are pinned with all they have and let go."""
    monkeypatch.setattr(policies, "HOT_KEYS", RESTLESS_KEYS)
    feed = lab.feed(SCHEMA)
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    expected = []
    options = {"scale": RestlessScale(1), "balance": RestlessBalance(1), "channels.max": 4}
    chance = random.Random(1)
    # Another key is hot after the restart: who is pinned goes by rows, not by a few microseconds.
    for weights in ((8, 1, 1, 1, 1), (1, 8, 1, 1, 1)):
        with lab.running(totals(feed.frame()), slots=8, **options) as query:
            for _ in range(7):
                keys = chance.choices("abcde", weights=weights, k=20)
                counts.update(keys)
                rows = [(key, chance.randrange(50)) for key in keys]
                sums.update(dict(Counter(key for key, v in rows for _ in range(v))))
                expected += [(key, counts[key], float(sums[key])) for key in set(keys)]
                feed.add(rows)
                query.processAllAvailable()
                assert query._opened.control.settled(180)
    parts = [m.operators["Totals"] for m in manifests_of(lab.checkpoint).values()]
    pinned = [{pin.key for pin in part.pins} for part in parts if part.pins is not None]
    assert len(pinned) > 2 and len(set.union(*pinned)) > 1, "keys came and went"
    assert sorted(lab.rows()) == sorted(expected)
    shown = braided.state(lab.checkpoint, lab.spark).select("key.k", "state.sums.n").collect()
    assert dict(map(tuple, shown)) == counts


def test_initial_state_is_there_before_the_first_rows(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    initial = lab.spark.createDataFrame([(5, "a"), (6, "a"), (7, "z")], "v int, k string")
    feed.add([("a", 1), ("b", 2)])
    lab.run(totals(feed.frame(), initialState=initial.groupBy("k")), channels=2)
    feed.add([("a", 1), ("z", 1)])
    lab.run(totals(feed.frame(), initialState=initial.groupBy("k")))
    assert sorted(lab.rows()) == [
        *[("a", 3, 12.0), ("a", 4, 13.0)],
        ("b", 1, 2.0),
        ("z", 2, 8.0),
    ]


def test_what_a_processor_keeps_is_shown_as_rows(
    lab: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    feed = lab.feed(SCHEMA)

    def flow() -> Any:
        return (
            braided.stream(feed.frame())
            .groupBy("k")
            .transformWithState(Remembering(), "k string, said string", "Update", "ProcessingTime")
        )

    for rows in ([("a", 1), ("b", 3)], [("a", 2)]):
        feed.add(rows)
        lab.run(flow(), channels=2)
    shown = braided.state(lab.checkpoint, lab.spark)
    assert dict(shown.dtypes)["state"] == (
        "struct<last:struct<d:decimal(10,2),t:timestamp,b:binary>,seen:array<struct<v:int>>,"
        "fading:array<struct<v:int>>,by:map<struct<v:int,s:string>,struct<n:int>>>"
    )
    [a, b] = shown.orderBy("key.k").collect()
    assert (a.key, b.key) == (Row("a"), Row("b"))
    assert a.state == Row(
        Row(Decimal("2.00"), dt.datetime(2024, 1, 1, 12, 2), b"bb"),
        [Row(1), Row(2)],
        [Row(1), Row(2)],
        {Row(1, "s"): Row(1), Row(2, "s"): Row(2)},
    )
    assert [moment.timestamp() for moment in a.timers] == [4e9 + 0.001, 4e9 + 0.002]
    first = braided.state(lab.checkpoint, lab.spark, version=0).filter("key.k = 'a'")
    assert [row.state.seen for row in first.collect()] == [[Row(1)]]
    given = argparse.Namespace(
        checkpoint=str(lab.checkpoint), operator=None, version=None, to=None, json=True
    )
    show_state.show(given, lab.spark)
    [told] = [
        each
        for each in map(json.loads, capfd.readouterr().out.splitlines())
        if each["key"] == {"k": "a"}
    ]
    # A map by more than a name is its entries, which JSON has no objects for.
    assert told["state"]["by"] == [{"key": {"v": v, "s": "s"}, "value": {"n": v}} for v in (1, 2)]


def test_two_versions_of_what_a_processor_keeps_are_compared(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    for rows in (
        [("kept", 1), ("grown", 1), ("gone", 1), ("emptied", 0)],
        [("grown", 2), ("gone", -1), ("new", 3)],
    ):
        feed.add(rows)
        flow = braided.stream(feed.frame()).groupBy("k")
        lab.run(flow.transformWithState(Brief(), SCHEMA, "Update", "ProcessingTime"), channels=2)
    diff = braided.stateDiff(lab.checkpoint, lab.spark, before=0, after=1)
    found = {row.key.k: (row.change, row.before, row.after) for row in diff.collect()}
    assert found == {
        # Nobody touched it: a value has expired.
        "kept": ("changed", Row([Row(1)], Row(1)), Row([Row(1)], None)),
        "grown": ("changed", Row([Row(1)], Row(1)), Row([Row(1), Row(2)], Row(2))),
        "gone": ("removed", Row([Row(1)], Row(1)), None),
        "new": ("added", None, Row([Row(3)], Row(3))),
        # It had nothing but what has expired.
        "emptied": ("removed", Row([], Row(0)), None),
    }
    shown = braided.state(lab.checkpoint, lab.spark).select("key.k").collect()
    assert sorted(row.k for row in shown) == ["grown", "kept", "new"]
    assert braided.stateDiff(lab.checkpoint, lab.spark, 1).count() == 0


def test_a_nan_that_nobody_touched_is_no_change(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    for rows in ([("kept", 0), ("new", 1)], [("new", 2)]):
        feed.add(rows)
        flow = braided.stream(feed.frame()).groupBy("k")
        lab.run(flow.transformWithState(Ratio(), SCHEMA, "Update", "None"), slots=1)
    diff = braided.stateDiff(lab.checkpoint, lab.spark, before=0).collect()
    assert [(row.key.k, row.change) for row in diff] == [("new", "changed")]


def test_an_aggregate_goes_on_where_declared_time_was_a_column_like_any_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Times(Totals):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            return (Row(k=row.k, t=row.t) for row in rows)

    feed = lab.feed("k string, t timestamp")

    def run() -> None:
        feed.add([("a", at(1))])
        rows = braided.stream(feed.frame().withWatermark("t", "5 seconds")).groupBy("k")
        times = rows.transformWithState(
            Times(), "k string, t timestamp", "Append", "EventTime", eventTimeColumnName="t"
        )
        writer = times.groupBy("k", "t").count().writeStream.format("noop").outputMode("update")
        writer.option("checkpointLocation", str(lab.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    with monkeypatch.context() as patch:
        patch.setattr(GroupedStream, "_has_watermark", lambda _: False)  # as it was then
        run()
    run()
    (row,) = braided.state(lab.checkpoint, lab.spark, operator="agg").collect()
    assert tuple(row.key) == ("a", at(1)) and tuple(row.state) == (2,)


def test_a_start_with_nothing_to_do_commits_nothing(lab: Lab) -> None:
    feed = lab.feed("k string, t timestamp")
    feed.add([("a", at(1))])

    def run() -> int:
        rows = braided.stream(feed.frame().withWatermark("t", "5 seconds")).groupBy("k")
        schema = "k string, n int, t timestamp"
        lab.run(rows.transformWithStateInPandas(Sessions(), schema, "Append", "EventTime"))
        return len(manifests_of(lab.checkpoint))

    first = run()
    assert [run(), run()] == [first, first]


def test_initial_state_has_columns_by_any_name(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1)])
    initial = lab.spark.createDataFrame([(5, "a", 1)], "v int, K string, `a.b c` int")
    lab.run(totals(feed.frame(), initialState=initial.groupBy("k")))
    assert lab.rows() == [("a", 2, 6.0)]


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1) + dt.timedelta(seconds=seconds)


def test_event_time_timers_fire_and_feed_a_chained_processor(lab: Lab) -> None:
    feed = lab.feed("k string, t timestamp")
    sessions = (
        braided.stream(feed.frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds"))
        .groupBy("k")
        .transformWithStateInPandas(
            Sessions(),
            outputStructType="k string, n int, t timestamp",
            outputMode="Append",
            timeMode="EventTime",
            eventTimeColumnName="t",
        )
    )
    flow = (
        sessions.selectExpr("upper(k) AS kind", "n")
        .groupBy("kind")
        .transformWithState(PerKind(), "kind string, n int", "Update", "None")
    )
    with lab.running(flow, channels=2) as query:
        feed.add([("a", at(1)), ("a", at(2)), ("b", at(3))])
        query.processAllAvailable()
        feed.add([("c", at(20))])
        query.processAllAvailable()
        feed.add([("a", at(1)), ("A", at(21))])  # the first is late
        query.processAllAvailable()
        feed.add([("d", at(60))])
        query.processAllAvailable()
        wait_until(lambda: len(lab.rows()) >= 4, "all sessions")
    assert sorted(lab.rows()) == [("A", 2), ("A", 3), ("B", 1), ("C", 1)]


def test_a_processing_time_timer_fires_without_input(lab: Lab) -> None:
    class Reminder(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + sum(row.v for row in rows))
            return iter(())

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
            yield Row(k=key.k, n=int(late >= 0))

    feed = lab.feed(SCHEMA)
    flow = (
        braided.stream(feed.frame())
        .groupBy("k")
        .transformWithState(Reminder(), "k string, n int", "Update", "processingTime")
    )
    with lab.running(flow, channels=2) as query:
        feed.add([("soon", 300), ("later", 100_000_000)])
        query.processAllAvailable()
        wait_until(lambda: len(lab.rows()) > 0, "the timer")
    assert lab.rows() == [("soon", 1)]


def test_a_function_with_a_group_state(lab: Lab) -> None:
    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    feed = lab.feed(SCHEMA)

    def flow() -> Any:
        return (
            braided.stream(feed.frame())
            .groupBy("k")
            .applyInPandasWithState(
                count, "k string, n int", "n int", "Update", GroupStateTimeout.NoTimeout
            )
        )

    for _ in range(2):
        feed.add([("a", 1), ("a", 2), ("b", 3)])
        lab.run(flow())
    assert sorted(lab.rows()) == [("a", 2), ("a", 4), ("b", 1), ("b", 2)]


def test_a_dataframe_that_is_not_streaming_is_one_batch(lab: Lab) -> None:
    df = lab.spark.createDataFrame(ROWS, SCHEMA)
    assert sorted(map(tuple, totals(df).collect())) == [(k, 3, 3.0) for k in "abcdefgh"]


def test_what_can_not_run_is_refused_where_it_is_written(lab: Lab) -> None:
    class Twice(Totals):
        def init(self, handle: Any) -> None:
            handle.getValueState("n", "n int")
            handle.getListState("n", "n int")

    feed = lab.feed(SCHEMA)
    grouped = braided.stream(feed.frame()).groupBy("k")
    with pytest.raises(OperatorDefinitionError, match="DUPLICATE_STATE_VARIABLE"):
        grouped.transformWithState(Twice(), OUT, "Update", "None")
    with pytest.raises(DefinitionError, match="timeMode is 'Sometimes'"):
        grouped.transformWithState(Totals(), OUT, "Update", "Sometimes")
    with pytest.raises(UnsupportedError, match="Complete"):
        grouped.transformWithState(Totals(), OUT, "Complete", "None")
    with pytest.raises(DefinitionError, match="derived from StatefulProcessor"):
        grouped.transformWithState(Totals, OUT, "Update", "None")
    with pytest.raises(DefinitionError, match="no column of outputStructType"):
        grouped.transformWithState(Totals(), OUT, "Update", "EventTime", eventTimeColumnName="t")
    with pytest.raises(UnsupportedError, match="divert"):
        lab.start(totals(feed.frame()), onError="divert")


def _check_moved_over(lab: Lab, feed: Any, flow: Any, native: str) -> None:
    """With its offsets too: of the same files, only what the native query had not read comes."""
    moved = str(lab.home / "moved")
    for _ in range(2):  # again is fine, as for another operator, until the query has run
        import_state(lab.spark, native, moved, "Remembering", slots=16, with_offsets=True)
    feed.add([("a", 0), ("c", 0)])
    rows: list[Any] = []
    query = (
        flow(braided.stream(feed.frame()).groupBy("k"))
        .writeStream.foreachBatch(lambda df, _: rows.extend(map(tuple, df.collect())))
        .option("checkpointLocation", moved)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    [(_, of_a), of_c] = sorted(rows)
    assert of_a.startswith("(Decimal('2.00'), ") and of_c == ("c", "None; []; []; []; []")


def test_the_state_of_a_native_checkpoint_is_imported(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1), ("a", 2), ("b", 3)])
    native = f"file:{lab.home}/native"  # a path as Spark takes it

    def flow(grouped: Any) -> Any:
        return grouped.transformWithState(
            Remembering(), "k string, said string", "Update", "ProcessingTime"
        )

    provider = "spark.sql.streaming.stateStore.providerClass"
    package = "org.apache.spark.sql.execution.streaming.state"
    lab.spark.conf.set(provider, f"{package}.RocksDBStateStoreProvider")
    try:
        query = (
            flow(feed.frame().groupBy("k"))
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", native)
            .trigger(once=True)
            .start()
        )
        query.awaitTermination()
        found = import_state(lab.spark, native, str(lab.checkpoint), "Remembering", slots=16)
        _check_moved_over(lab, feed, flow, native)
    finally:
        lab.spark.conf.unset(provider)
    assert found.content.keys == 2
    again = lab.feed(SCHEMA, "more")
    again.add([("a", 0), ("b", 0), ("c", 0)])
    lab.run(flow(braided.stream(again.frame()).groupBy("k")), channels=2)
    assert sorted(lab.rows()) == [
        (
            "a",
            "(Decimal('2.00'), datetime.datetime(2024, 1, 1, 12, 2), b'bb'); [(1,), (2,)]; "
            "[(1,), (2,)]; [((1, 's'), (1,)), ((2, 's'), (2,))]; [4000000000001, 4000000000002]",
        ),
        (
            "b",
            "(Decimal('3.00'), datetime.datetime(2024, 1, 1, 12, 3), b'bbb'); [(3,)]; "
            "[(3,)]; [((3, 's'), (3,))]; [4000000000003]",
        ),
        ("c", "None; []; []; []; []"),
    ]
    with pytest.raises(CheckpointMismatchError, match="a query that has run"):
        import_state(lab.spark, native, str(lab.checkpoint), "Remembering")
    # What was brought is in the state by now: who is dropped and added again begins anew.
    assert lab.checkpoint.joinpath("braided/import/Remembering.json").exists()
    lab.run(flow(braided.stream(again.frame()).groupBy("k")), channels=2)
    assert not lab.checkpoint.joinpath("braided/import/Remembering.json").exists()

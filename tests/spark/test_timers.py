"""Timers in processing and event time, with and without input; late rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import braided
from braided.testing import StreamTest
from support.stream_harness import Lab, manifests_of, timers_of, wait_until

EPOCH = dt.datetime(1970, 1, 1)
FAR_AWAY_MS = 4_000_000_000_000
TIMED = "k string, ts timestamp, n int"


def at(seconds: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)


def test_a_processing_time_timer_fires_without_input_and_only_once(lab: Lab) -> None:
    class Reminder(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> None:
            self.rows += 1
            self.setTimer(self.batchTime + dt.timedelta(milliseconds=row.ms))

        def onTimer(self, fired: dt.datetime) -> Iterator[tuple[str, int, bool]]:
            yield self.key.k, self.rows, fired <= self.batchTime

    feed = lab.feed("k string, ms int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Reminder, "k string, n int, due boolean")
    with lab.running(flow, channels=2) as query:
        feed.add([("soon", 300), ("later", 10_000_000), ("soon", 300)])
        query.processAllAvailable()
        wait_until(lambda: len(lab.rows()) > 0, "the timer")
        query.processAllAvailable()
        # Nothing more is due, so nothing more runs.
        assert query.routing()["Reminder"].epoch == 0
        before = max(manifests_of(lab.checkpoint))
        query.processAllAvailable()
        assert max(manifests_of(lab.checkpoint)) == before
    assert lab.rows() == [("soon", 2, True)]
    assert list(timers_of(lab.checkpoint, flow)) == [("later",)]


def test_a_timer_set_in_the_past_fires_in_its_batch_and_one_set_by_a_timer_in_the_next(
    lab: Lab,
) -> None:
    class Chain(braided.Operator):
        fired: int = 0

        def onRow(self, row: Any) -> None:
            self.setTimer(1_000)

        def onTimer(self, fired: dt.datetime) -> Iterator[tuple[int, int]]:
            self.fired += 1
            if self.fired < 3:
                self.setTimer(1_000)
            yield self.fired, (fired - EPOCH) // dt.timedelta(milliseconds=1)

    feed = lab.feed("k string")
    feed.add([("a",)])
    flow = braided.stream(feed.frame()).groupBy("k").apply(Chain, "n int, ms bigint")
    lab.run(flow)  # availableNow goes on until nothing is due
    assert lab.output() == {0: [(1, 1_000)], 1: [(2, 1_000)], 2: [(3, 1_000)]}
    assert timers_of(lab.checkpoint, flow) == {}


def test_a_timer_taken_back_does_not_fire_even_by_another_timer_of_the_same_time(lab: Lab) -> None:
    class Duel(braided.Operator):
        log: list[str] = []  # noqa: RUF012

        def onRow(self, row: Any) -> None:
            for ms in (1, 2, 3):
                self.setTimer(ms)
            if row.how == "before":
                self.deleteTimer(2)
            self.log.append(row.how)

        def onTimer(self, fired: dt.datetime) -> Iterator[tuple[str, int]]:
            ms = (fired - EPOCH) // dt.timedelta(milliseconds=1)
            how = self.log[0] if self.log else "gone"
            if ms == 1 and how == "while firing":
                self.deleteTimer(2)
            if ms == 1 and how == "forget":
                self.forget()
            yield how, ms

    feed = lab.feed("how string")
    feed.add([("before",), ("while firing",), ("forget",)])
    flow = braided.stream(feed.frame()).groupBy("how").apply(Duel, "how string, ms int")
    lab.run(flow)
    assert sorted(lab.rows()) == [
        ("before", 1),
        ("before", 3),
        ("forget", 1),
        ("while firing", 1),
        ("while firing", 3),
    ]
    assert set(lab.state(flow)) == {("before",), ("while firing",)}


def test_timers_survive_a_restart_and_fire_on_their_new_channel(lab: Lab) -> None:
    class Later(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> None:
            self.rows += 1
            self.setTimer(self.batchTime + dt.timedelta(milliseconds=2_500))

        def onTimer(self, fired: dt.datetime) -> Iterator[Any]:
            yield (self.key.k,)
            self.forget()

    feed = lab.feed("k int")
    feed.add([(k,) for k in range(20)])
    flow = braided.stream(feed.frame()).groupBy("k").apply(Later, "k int")
    with lab.running(flow, channels=2) as query:
        query.processAllAvailable()
        query.rescale(7)
        query.processAllAvailable()
        assert query.routing()["Later"].channels == 7
    with lab.running(flow):
        wait_until(lambda: len(lab.rows()) == 20, "the timers")
    assert sorted(lab.rows()) == [(k,) for k in range(20)]
    assert lab.state(flow) == {}


class TestEventTime:
    def flow(self, rows: braided.Stream) -> braided.Stream:
        class Session(braided.Operator):
            rows: list[int] = []  # noqa: RUF012

            def onRow(self, row: Any) -> None:
                self.rows.append(row.n)
                self.setTimer(row.ts + dt.timedelta(seconds=5))

            def onTimer(self, fired: dt.datetime) -> Iterator[Any]:
                if not self.timers():
                    assert self.watermark is not None and fired <= self.watermark
                    yield self.key.k, len(self.rows), fired.second + 60 * fired.minute
                    self.forget()

        schema = "k string, n int, second int"
        return rows.groupBy("k").apply(Session, schema, timeMode="EventTime")

    @pytest.mark.parametrize("trigger", [None, {"availableNow": True}])
    def test_a_timer_fires_when_the_watermark_passes_it_without_more_input(
        self, lab: Lab, trigger: Any
    ) -> None:
        feed = lab.feed(TIMED)
        feed.add([("a", at(100), 1), ("a", at(103), 2), ("b", at(130), 3)])
        flow = self.flow(braided.stream(feed.frame().withWatermark("ts", "10 seconds")))
        query = lab.start(flow, trigger=trigger, channels=2)
        if trigger is None:
            wait_until(lambda: len(lab.rows()) > 0, "the watermark")
            query.stop()
        else:
            query.awaitTermination()
        # Watermark 120: past 108, the last timer of a, not past 135.
        assert lab.rows() == [("a", 2, 108)]
        assert timers_of(lab.checkpoint, flow) == {("b",): (135_000,)}
        assert lab.state(flow) == {("b",): {"rows": [3]}}

    def test_rows_that_a_filter_drops_move_the_watermark_and_timers_fire(self, lab: Lab) -> None:
        feed = lab.feed(TIMED)
        # A condition on the time itself: others Spark evaluates before it looks at the time.
        rows = feed.frame().withWatermark("ts", "10 seconds").filter("n > 0 OR ts IS NULL")
        flow = self.flow(braided.stream(rows))
        with lab.running(flow, channels=2) as query:
            feed.add([("a", at(100), 1)])
            query.processAllAvailable()
            feed.add([("dropped", at(130), 0)])
            query.processAllAvailable()
            wait_until(lambda: len(lab.rows()) > 0, "the watermark")
        assert lab.rows() == [("a", 1, 105)]

    def test_rows_behind_the_watermark_of_the_batch_before_are_dropped(
        self, spark: SparkSession
    ) -> None:
        class Seen(braided.Operator):
            rows: list[int] = []  # noqa: RUF012

            def onRow(self, row: Any) -> Iterator[Any]:
                self.rows.append(row.n)
                yield (row.n,)

        def flow(rows: braided.Stream) -> braided.Stream:
            return rows.groupBy("k").apply(Seen, "n int", timeMode="EventTime")

        with StreamTest(spark, TIMED, flow, watermark=("ts", "10 seconds")) as t:
            t.addData(("a", at(100), 1), ("a", at(50), 2))  # there is no watermark yet
            t.addData(("a", at(90), 3), ("a", at(90.001), 4), ("a", None, 5), ("a", at(10), 6))
            t.addData(("a", at(95), 7))
            watermarks = [m.watermark_ms for m in manifests_of(t.checkpoint).values()]
            # After rows there is one more batch, whose watermark they have moved.
            assert watermarks == [0, *[90_000] * 5]
            t.checkAnswer((1,), (2,), (4,), (5,), (7,))

    def test_processing_time_operators_take_late_rows(self, spark: SparkSession) -> None:
        class Seen(braided.Operator):
            rows: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                self.rows += 1
                yield row.n, self.watermark

        def flow(rows: braided.Stream) -> braided.Stream:
            return rows.groupBy("k").apply(Seen, "n int, w timestamp_ntz")

        with StreamTest(spark, TIMED, flow, watermark=("ts", "10 seconds")) as t:
            for n, second in enumerate((100, 50, 10)):
                t.addData(("a", at(second), n))
            t.checkAnswer((0, None), (1, at(90)), (2, at(90)))

    def test_the_watermark_continues_after_a_restart(self, spark: SparkSession) -> None:
        with StreamTest(spark, TIMED, self.flow, watermark=("ts", "10 seconds")) as t:
            t.addData(("a", at(100), 1))
            t.restart()
            t.checkAnswer()
            t.addData(("b", at(150), 2))
            t.restart()
            t.addData(("a", at(20), 3))  # late by now
            t.checkAnswer(("a", 1, 105))
            t.checkState({"b": {"rows": [2]}})

"""`braided.testing.StreamTest`: what it does is real, and what it checks fails when it should."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import braided
from braided import failpoints
from braided.errors import DefinitionError, OperatorError
from braided.testing import StreamTest

READINGS = "id string, value double"


class Mean(braided.Operator):
    """In this file, which workers can't import: it travels with the flow."""

    count: int = 0
    total: float = 0.0

    def onRow(self, row: Any) -> Iterator[tuple[str, float]]:
        self.count += 1
        self.total += row.value
        yield row.id, self.total / self.count


class Silence(braided.Operator):
    """Says when a key was last heard of, ten seconds after."""

    last: datetime | None = None

    def onRow(self, row: Any) -> None:
        for when in self.timers():
            self.deleteTimer(when)
        self.last = max(row.at, self.last or row.at)
        self.setTimer(self.last + timedelta(seconds=10))

    def onTimer(self, when: datetime) -> Iterator[tuple[str, datetime | None]]:
        yield self.key.id, self.last
        self.forget()


def mean(rows: braided.Stream) -> braided.Stream:
    return rows.groupBy("id").apply(Mean, READINGS).name("mean")


def test_a_flow_is_followed_through_stops_and_rescales(spark: SparkSession) -> None:
    with StreamTest(spark, READINGS, mean, options={"braided.channels": 1}) as t:
        t.checkAnswer()
        t.addData(("a", 1.0), ("b", 2.0), ("a", 3.0))
        t.checkAnswer(("b", 2.0), ("a", 1.0), ("a", 2.0))
        t.checkState({"a": {"count": 2, "total": 4.0}, "b": {"count": 1, "total": 2.0}})
        t.rescale(3)
        assert t.query is not None
        assert t.query.routing()["mean"].channels == 3
        t.addData(("a", 5.0))
        t.checkNewAnswer(("a", 3.0))
        t.stop()
        t.addData(("b", 4.0))
        t.addData(("b", 6.0))
        t.checkNewAnswer()
        t.restart()
        t.checkNewAnswer(("b", 3.0), ("b", 4.0))
        assert t.query.routing()["mean"].channels == 3
        assert braided.state(t.checkpoint, spark).count() == 2


def test_a_crash_anywhere_leaves_each_answer_once(spark: SparkSession) -> None:
    with StreamTest(spark, READINGS, mean, options={"braided.slots": 8}) as t:
        for number, point in enumerate(failpoints.POINTS, 1):
            t.crash(at=point)
            t.addData(("a", 1.0))
            assert t.query is None
            t.addData((point, 2.0))  # arrives while the query is down
            t.restart()
            t.checkNewAnswer(("a", 1.0), (point, 2.0))
            others = {name: {"count": 1, "total": 2.0} for name in failpoints.POINTS[:number]}
            t.checkState({"a": {"count": number, "total": float(number)}, **others})


def test_a_crash_that_does_not_come_fails_the_test(spark: SparkSession) -> None:
    with StreamTest(spark, READINGS, mean, options={"braided.channels": 1}) as t:
        t.crash(at="task-rows")
        with pytest.raises(AssertionError, match="the batch ended without coming there"):
            t.rescale(2)  # a batch, but no row, so no task that reads one


def test_the_watermark_fires_timers_and_makes_rows_late(spark: SparkSession) -> None:
    def flow(rows: braided.Stream) -> braided.Stream:
        return rows.groupBy("id").apply(Silence, "id string, last timestamp", "EventTime")

    def at(second: int) -> datetime:
        return datetime(2024, 1, 1, 0, 0, second)

    schema = "id string, at timestamp"
    with StreamTest(spark, schema, flow, watermark=("at", "5 seconds")) as t:
        t.addData(("a", at(1)), ("b", at(20)))
        t.advanceWatermark(at(15))
        t.checkAnswer(("a", at(1)))
        t.addData(("late", at(14)), ("b", at(21)))
        t.checkState({"b": {"last": at(21)}})
        t.advanceWatermark("2024-01-01 00:00:31")
        t.checkNewAnswer(("b", at(21)))
        t.checkState({})


def test_another_flow_can_take_over(spark: SparkSession) -> None:
    class Fixed(Mean):
        def onRow(self, row: Any) -> Iterator[tuple[str, float]]:
            yield from super().onRow(row) if row.value is not None else ()

    with StreamTest(spark, READINGS, mean) as t:
        t.addData(("a", 1.0))
        with pytest.raises(StreamingQueryException) as raised:
            t.addData(("a", None))
        assert isinstance(raised.value.__cause__, OperatorError)
        t.restart(lambda rows: rows.groupBy("id").apply(Fixed, READINGS).name("mean"))
        t.addData(("a", 2.0))
        t.checkAnswer(("a", 1.0), ("a", 1.5))


def test_checks_say_what_is_wrong(spark: SparkSession) -> None:
    with StreamTest(spark, READINGS, mean) as t:
        t.addData(("a", 1.0), ("a", 3.0))
        with pytest.raises(AssertionError, match=r"missing \[\('b', 1.0\)\]; not expected \[\('a'"):
            t.checkAnswer(("a", 1.0), ("b", 1.0))
        with pytest.raises(AssertionError, match=r"'a': .*'count': 2.* expected None"):
            t.checkState({})
        with pytest.raises(DefinitionError, match=r"crash\(at='lunch'\): there are before-routing"):
            t.crash(at="lunch")
        with pytest.raises(DefinitionError, match="advanceWatermark needs"):
            t.advanceWatermark("2024-01-01")
        t.stop()
        with pytest.raises(DefinitionError, match=r"crash: the query is down; restart\(\) first"):
            t.crash(at="publishing")

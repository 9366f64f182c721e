"""The carry: rows that a batch took in and left are processed first by the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided
from braided.api.query import ElasticQuery
from braided.flow.graph import flow_of
from support.stream_harness import Feed, Lab, committed_view


class Capture:
    """A sink that asks for things between two batches, where nothing can come in between."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.query: ElasticQuery | None = None
        self.after: dict[int, Any] = {}

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = [tuple(row) for row in df.collect()]
        action = self.after.pop(batch, None)
        if action is not None:
            action()

    def cut(self, rows: int) -> None:
        assert self.query is not None
        self.query._opened.commands.cut_next(rows)

    def hold(self) -> None:
        assert self.query is not None
        self.query._opened.commands.hold_input_next()

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def appending() -> type[braided.Operator]:
    class Log(braided.Operator):
        seen: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            self.seen.append(row.seq)
            yield row

    return Log


SCHEMA = "k string, seq bigint"


def one(feed: Feed) -> braided.Stream:
    return braided.stream(feed.frame()).groupBy("k").apply(appending(), SCHEMA).name("one")


def two(feed: Feed) -> braided.Stream:
    # All rows meet in one key, so that the second operator has more than it may process.
    between = one(feed).filter("seq >= 0")
    return between.groupBy(F.lit(1)).apply(appending(), SCHEMA).name("two")


def mapped(feed: Feed) -> braided.Stream:
    def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from frames

    between = one(feed).mapInPandas(same, SCHEMA)
    return between.groupBy(F.lit(1)).apply(appending(), SCHEMA).name("two")


def rows(start: int, count: int, keys: str = "a") -> list[tuple[str, int]]:
    return [(keys[i % len(keys)], i) for i in range(start, start + count)]


def started(lab: Lab, flow: braided.Stream, feed: Feed, capture: Capture, **more: Any) -> None:
    """A query that has run batch 0 (one row), with an action set for the end of it."""
    capture.query = lab.start(flow, capture, **more)
    feed.add(rows(0, 1))
    capture.query.processAllAvailable()
    capture.query.processAllAvailable()


def test_the_rest_of_a_cut_batch_is_processed_by_the_next_one_without_input(lab: Lab) -> None:
    feed, capture = lab.feed(SCHEMA), Capture()
    flow = one(feed)

    def then() -> None:
        feed.add(rows(1, 9))
        capture.cut(4)

    capture.after[0] = then
    started(lab, flow, feed, capture, channels=1)
    assert capture.query is not None
    sections = {p["batchId"]: p["braided"] for p in capture.query.recentProgress if "braided" in p}
    capture.query.stop()
    assert capture.batches == {0: rows(0, 1), 1: rows(1, 4), 2: rows(5, 5)}
    assert sections[1]["carryRows"] == 5
    assert sections[2]["carryRows"] == 0
    assert lab.state(flow) == {("a",): {"seen": list(range(10))}}


@pytest.mark.parametrize(
    ("make", "ordered"), [(one, False), (one, True), (two, False), (two, True), (mapped, False)]
)
def test_carried_rows_come_before_newer_ones_also_when_cut_again(
    lab: Lab, make: Any, ordered: bool
) -> None:
    feed, capture = lab.feed(SCHEMA), Capture()
    flow = make(feed)

    def then(start: int, limit: int) -> Any:
        def act() -> None:
            feed.add(rows(start, 10, "ab"))
            capture.cut(limit)

        return act

    capture.after = {0: then(1, 3), 1: then(11, 3), 2: then(21, 4)}
    started(lab, flow, feed, capture, channels=2, slots=8, orderPreserving=ordered)
    assert capture.query is not None
    capture.query.stop()
    every = rows(0, 1) + rows(1, 30, "ab")
    assert sorted(capture.rows()) == sorted(every)
    by_key = {k: [seq for key, seq in every if key == k] for k in "ab"}
    assert lab.state(flow, "one") == {(k,): {"seen": seqs} for k, seqs in by_key.items()}
    if make is not one:
        [(_, fields)] = lab.state(flow, "two").items()
        for seqs in by_key.values():
            assert [seq for seq in fields["seen"] if seq in seqs] == seqs
    assert committed_view(lab.checkpoint).carry == ()


@pytest.mark.parametrize(
    ("make", "limit", "ordered"), [(one, 2, True), (two, 5, False), (mapped, 5, False)]
)
def test_a_batch_that_holds_its_input_does_what_is_carried_and_nothing_else(
    lab: Lab, make: Any, limit: int, ordered: bool
) -> None:
    """In `two` and `mapped` it is the second operator that has rows carried."""
    feed, capture = lab.feed(SCHEMA), Capture()
    flow = make(feed)

    def cut() -> None:
        feed.add(rows(1, 9, "ab"))
        capture.cut(limit)

    def hold() -> None:
        feed.add(rows(10, 10, "ab"))
        capture.hold()

    def hold_with_nothing_carried() -> None:
        feed.add(rows(20, 4, "ab"))
        capture.hold()

    capture.after = {0: cut, 1: hold, 3: hold_with_nothing_carried}
    started(lab, flow, feed, capture, channels=2, slots=8, orderPreserving=ordered)
    query = capture.query
    assert query is not None
    query.processAllAvailable()
    sections = {p["batchId"]: p["braided"] for p in query.recentProgress if "braided" in p}
    query.stop()
    batches = [sorted(seq for _, seq in capture.batches[batch]) for batch in range(5)]
    assert batches[0] == [0] and batches[1] and batches[2]
    assert sorted(batches[1] + batches[2]) == list(range(1, 10))
    assert batches[3:] == [list(range(10, 20)), list(range(20, 24))]
    carried = [sections[batch]["carryRows"] for batch in range(5)]
    assert carried == [0, len(batches[2]), 10, 0, 0]
    every = rows(0, 1) + rows(1, 9, "ab") + rows(10, 10, "ab") + rows(20, 4, "ab")
    by_key = {k: [seq for key, seq in every if key == k] for k in "ab"}
    assert lab.state(flow, "one") == {(k,): {"seen": seqs} for k, seqs in by_key.items()}
    assert committed_view(lab.checkpoint).carry == ()


def last_of_minute() -> type[braided.Operator]:
    class LastOfMinute(braided.Operator):
        """Gives out the newest row of each minute, when the watermark has passed it."""

        newest: dict[int, int] = {}  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            minute = row.at.replace(second=0)
            second = int(minute.timestamp())
            self.newest[second] = max(row.seq, self.newest.get(second, -1))
            self.setTimer(minute + timedelta(minutes=1))
            yield from ()

        def onTimer(self, fired: Any) -> Iterator[Any]:
            minute = int(fired.timestamp()) - 60
            yield {"k": self.key.k, "seq": self.newest.pop(minute)}

    return LastOfMinute


def test_timers_wait_for_rows_that_are_held_and_nothing_is_late_because_of_it(lab: Lab) -> None:
    feed, capture = lab.feed("k string, seq bigint, at timestamp"), Capture()
    timed = feed.frame().withWatermark("at", "0 seconds")
    logged = braided.stream(timed).groupBy("k").apply(appending(), feed.schema).name("one")
    last = logged.groupBy("k").apply(last_of_minute(), SCHEMA, timeMode="EventTime").name("last")

    def minutes(start: int, count: int) -> list[tuple[str, int, datetime]]:
        """Three rows a minute of each of two keys."""
        return [
            (k, i, datetime(2026, 1, 1) + timedelta(seconds=20 * i))
            for i in range(start, start + count)
            for k in "ab"
        ]

    def then(start: int, *more: Any) -> Any:
        def act() -> None:
            feed.add(minutes(start, 9))
            for each in more:
                each()

        return act

    def cut() -> None:
        capture.cut(3)

    capture.after = {
        0: then(3, cut),
        1: then(12, capture.hold),
        2: then(21, capture.hold),
        3: then(30, cut, capture.hold),
        4: then(39, cut),
        5: then(48, capture.hold),
    }
    capture.query = lab.start(last, capture, channels=2, slots=8)
    feed.add(minutes(0, 3))
    for _ in range(3):
        capture.query.processAllAvailable()
    feed.add([("a", 57, datetime(2026, 1, 1, 1))])
    capture.query.processAllAvailable()
    sections = [p["braided"] for p in capture.query.recentProgress if "braided" in p]
    capture.query.stop()
    assert {each["lateRows"] for s in sections for each in s["operators"].values()} == {0}
    held = [section["batchId"] for section in sections if section["carryRows"] >= 18]
    assert len(held) >= 3, "input was not held"
    whole = [(k, 3 * minute + 2) for minute in range(19) for k in "ab"]
    assert sorted(capture.rows()) == sorted(whole)


def test_results_that_waited_for_a_cut_elsewhere_are_not_late_for_those_after_them(
    lab: Lab,
) -> None:
    """Aggregations take no part in a cut, but keep the watermark with all others."""
    feed, capture = lab.feed("k string, seq bigint, at timestamp"), Capture()
    timed = braided.stream(feed.frame().withWatermark("at", "0 seconds"))
    logged = timed.groupBy("k").apply(appending(), feed.schema).name("one")
    window = F.window("at", "10 seconds")
    counts = timed.groupBy("k", window).agg(F.count("*").alias("n")).name("counts")
    sums = counts.groupBy("window").agg(F.sum("n").alias("n")).name("sums")
    both = sums.selectExpr("unix_seconds(window.start) AS start", "n").union(
        logged.selectExpr("-1L AS start", "seq AS n")
    )

    def seconds(start: int, count: int = 12) -> list[tuple[str, int, datetime]]:
        """A row every five seconds, of two keys in turn."""
        return [
            ("ab"[i % 2], i, datetime(2026, 1, 1) + timedelta(seconds=5 * i))
            for i in range(start, start + count)
        ]

    def then(start: int, *more: Any) -> Any:
        def act() -> None:
            feed.add(seconds(start))
            for each in more:
                each()

        return act

    def cut() -> None:
        capture.cut(3)

    # Input is held once beside more of it, and once when there is none.
    capture.after = {
        0: then(12, cut),
        1: then(24, capture.hold),
        2: then(36, cut),
        3: capture.hold,
        4: then(48),
        5: then(60, cut),
    }
    capture.query = lab.start(both, capture, channels=2, slots=8)
    feed.add(seconds(0))
    for _ in range(3):
        capture.query.processAllAvailable()
    feed.add([("a", 72, datetime(2026, 1, 1, 1))])
    capture.query.processAllAvailable()
    sections = [p["braided"] for p in capture.query.recentProgress if "braided" in p]
    capture.query.stop()
    assert {each["lateRows"] for s in sections for each in s["operators"].values()} == {0}
    assert not capture.after and sum(section["carryRows"] > 0 for section in sections) >= 3
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    whole = [(start + 10 * i, 2) for i in range(36)] + [(-1, seq) for seq in range(73)]
    assert sorted(capture.rows()) == sorted(whole)


def test_rows_that_were_sent_back_come_before_rows_that_were_held_and_never_beside_them(
    lab: Lab,
) -> None:
    class Again(braided.Operator):
        seen: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            self.seen.append(row.seq)
            yield row.k, row.seq, False
            if row.seq < 200:
                yield row.k, row.seq + 100, True

    feed, capture = lab.feed(SCHEMA), Capture()
    again = braided.stream(feed.frame()).groupBy("k").apply(Again, f"{SCHEMA}, again boolean")
    flow = again.name("again").feedback("again")
    places: list[tuple[int, ...]] = []

    def then() -> None:
        feed.add(rows(1, 5))
        capture.hold()

    def look() -> None:
        for file in committed_view(lab.checkpoint).carry:
            with pa.ipc.open_stream(lab.checkpoint / "braided" / file.name) as stream:
                carried = stream.read_all()
            names = [name for name in carried.column_names if name.startswith("__braided_o")]
            places.extend(zip(*(carried[name].to_pylist() for name in names), strict=True))

    capture.after = {0: then, 1: look}
    started(lab, flow, feed, capture, channels=1)
    assert capture.query is not None
    capture.query.stop()
    assert len(places) == 6 and len(set(places)) == 6
    [(_, fields)] = lab.state(flow, "again").items()
    assert fields["seen"][:8] == [0, 100, 200, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("make", [one, two])
def test_a_query_stopped_with_a_carry_processes_it_first_when_it_starts_again(
    lab: Lab, make: Any
) -> None:
    feed, capture = lab.feed(SCHEMA), Capture()
    flow = make(feed)
    reached, stopping = threading.Event(), threading.Event()

    def then() -> None:
        feed.add(rows(1, 9))
        capture.cut(3)

    def hold() -> None:
        reached.set()
        stopping.wait(180)

    capture.after = {0: then, 1: hold}
    query = capture.query = lab.start(flow, capture, channels=1)
    feed.add(rows(0, 1))
    assert reached.wait(180)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    while not query._engine.gate.stopping:
        stopper.join(0.01)
    stopping.set()
    stopper.join()
    carried = sum(file.rows for file in committed_view(lab.checkpoint).carry)
    assert carried == 6
    feed.add(rows(10, 3))
    again = lab.run(flow, capture)
    assert again.exception() is None
    assert capture.rows() == rows(0, 13)
    for operator in [step.name for step in flow_of([flow._node]).steps]:
        [(_, fields)] = lab.state(flow, operator).items()
        assert fields["seen"] == list(range(13))
    assert committed_view(lab.checkpoint).carry == ()


def test_a_rescale_moves_carried_rows_with_their_slots(lab: Lab) -> None:
    feed, capture = lab.feed(SCHEMA), Capture()
    flow = one(feed)
    keys = "abcdefgh"

    def cut() -> None:
        feed.add(rows(1, 39, keys))
        capture.cut(2)

    def rescale() -> None:
        assert capture.query is not None
        capture.query.rescale(5)
        feed.add(rows(40, 40, keys))

    capture.after = {0: cut, 1: rescale}
    started(lab, flow, feed, capture, channels=2)
    assert capture.query is not None
    capture.query.stop()
    every = rows(0, 1) + rows(1, 79, keys)
    assert lab.state(flow) == {
        (k,): {"seen": [seq for key, seq in every if key == k]} for k in keys
    }
    assert len(capture.rows()) == len(every)

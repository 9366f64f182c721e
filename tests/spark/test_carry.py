"""The carry: rows that a batch took in and left are processed first by the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
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
        self.query._engine.commands.cut_next(rows)

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
        stopping.wait(60)

    capture.after = {0: then, 1: hold}
    query = capture.query = lab.start(flow, capture, channels=1)
    feed.add(rows(0, 1))
    assert reached.wait(60)
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

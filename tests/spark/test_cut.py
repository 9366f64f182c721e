"""Batches that end early: what is committed and what is left add up, whenever they are cut."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import braided
from braided.api.query import ElasticQuery
from braided.errors import OptionError, QueryStoppedError
from support.held_row import HeldRow
from support.stream_harness import Feed, Lab, wait_until

SCHEMA = "k string, seq bigint"
ROW_S = 0.004


def slow(held: HeldRow | None = None) -> type[braided.Operator]:
    """Keeps what it sees in order, a row at a time; its first row may be held."""

    class Log(braided.Operator):
        seen: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            if held is not None:
                held.hold()
            time.sleep(ROW_S)
            self.seen.append(row.seq)
            yield row

    return Log


def cut_when_begun(query: ElasticQuery, held: HeldRow) -> None:
    """Cuts the running batch while a row of it is being processed."""
    wait_until(held.is_there, "a row is processed")
    assert query.cut()
    held.let_go()


def rows(start: int, count: int, keys: int = 10) -> list[tuple[str, int]]:
    return [(f"k{i % keys}", i) for i in range(start, start + count)]


def sections(query: ElasticQuery) -> dict[int, dict[str, Any]]:
    return {p["batchId"]: p["braided"] for p in query.recentProgress if "braided" in p}


def test_the_rest_of_a_batch_that_is_cut_comes_next(lab: Lab, tmp_path: Path) -> None:
    feed, held = lab.feed(SCHEMA), HeldRow(tmp_path)
    flow = braided.stream(feed.frame()).groupBy("k").apply(slow(held), SCHEMA).name("one")
    feed.add(rows(0, 1000))
    query = lab.start(flow, channels=2, slots=8)
    cut_when_begun(query, held)
    query.processAllAvailable()
    shown = sections(query)
    query.stop()
    assert shown[0]["cut"]["why"] == "query.cut() was called"
    assert shown[0]["cut"]["rowsLeft"] == shown[0]["carryRows"] > 0
    assert shown[0]["cut"]["drain_s"] > 0
    assert shown[1]["afterCut"]["restore_s"] == shown[1]["afterCut"]["catch_up_s"] > 0
    assert shown[0]["operators"]["one"]["rows"] + shown[0]["carryRows"] == 1000
    assert shown[max(shown)]["carryRows"] == 0
    assert sorted(lab.rows()) == sorted(rows(0, 1000))
    assert lab.state(flow) == {(f"k{n}",): {"seen": list(range(n, 1000, 10))} for n in range(10)}
    with pytest.raises(QueryStoppedError, match="cut"):
        query.cut()


EPOCH = datetime(2024, 1, 1)
SPAN_S = 10


def timed(feed: Feed, held: HeldRow, where: str) -> braided.Stream:
    """Rows pass an operator to another, which counts them and says the count when a span is over.

    Both take their time, and a row of the second batch is held at `where`.
    """

    class Passes(braided.Operator):
        n: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            if where == "passes" and row.seq >= 100:
                held.hold()
            time.sleep(ROW_S)
            self.n += 1
            yield (row.k, row.t, row.seq)

    class Counts(braided.Operator):
        by_span: dict[int, int] = {}  # noqa: RUF012

        def onRow(self, row: Any) -> None:
            if where == "counts" and row.seq >= 100:
                held.hold()
            time.sleep(ROW_S)
            over_ms = int(row.t.timestamp() // SPAN_S + 1) * SPAN_S * 1000
            self.by_span[over_ms] = self.by_span.get(over_ms, 0) + 1
            self.setTimer(over_ms)

        def onTimer(self, fired: Any) -> Iterator[Any]:
            yield (self.key.g, fired, self.by_span[int(fired.timestamp() * 1000)])

    stream = braided.stream(feed.frame(maxFilesPerTrigger=1).withWatermark("t", "0 seconds"))
    passed = stream.groupBy("k").apply(Passes, "k string, t timestamp, seq bigint").name("passes")
    grouped = passed.groupBy(F.expr("bigint(substring(k, 2)) % 3").alias("g"))
    counted = grouped.apply(Counts, "g bigint, fired timestamp, n bigint", timeMode="EventTime")
    return counted.name("counts")


@pytest.mark.parametrize("where", ["passes", "counts"])
def test_timers_and_the_watermark_wait_for_rows_that_are_left(
    lab: Lab, tmp_path: Path, where: str
) -> None:
    feed, held = lab.feed("k string, t timestamp, seq bigint"), HeldRow(tmp_path)
    spans = [
        [
            (f"k{i % 10}", EPOCH + timedelta(seconds=span * SPAN_S + 1 + i / 100), span * 100 + i)
            for i in range(100 if span != 1 else 500)
        ]
        for span in range(4)
    ]
    for span in spans:
        feed.add(span)
    query = lab.start(timed(feed, held, where), channels=2, slots=8)
    cut_when_begun(query, held)
    query.processAllAvailable()
    shown = sections(query)
    query.stop()
    cut = next(section for section in shown.values() if "cut" in section)
    assert cut["cut"]["rowsLeft"] > 0
    # What a key had counted when a span was over: all of it.
    expected = []
    for number, span in enumerate(spans[:-1]):
        counts = Counter(int(k[1:]) % 3 for k, _, _ in span)
        over = EPOCH + timedelta(seconds=(number + 1) * SPAN_S)
        expected += [(g, over, n) for g, n in counts.items()]
    assert sorted(lab.rows()) == sorted(expected)


def test_a_batch_ends_by_itself_where_one_channel_would_hold_up_the_others(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(slow(), SCHEMA).name("one")
    few = [(f"k{i}", i) for i in range(40)]
    hot = [("hot", i) for i in range(40, 2540)]  # ten seconds of one channel
    feed.add(few + hot)
    query = lab.start(flow, channels=4, slots=16, cut=True)
    query.processAllAvailable()
    shown = sections(query)
    events = (lab.checkpoint / "braided" / "events.jsonl").read_text()
    query.stop()
    assert re.search(r"rows of one were left on \d of 4 channels", shown[0]["cut"]["why"])
    assert '"type":"cut"' in events
    assert sorted(lab.rows()) == sorted(few + hot)
    assert lab.state(flow)[("hot",)] == {"seen": list(range(40, 2540))}


def test_a_chain_that_is_cut_again_and_again_keeps_the_order_of_keys(
    lab: Lab, tmp_path: Path
) -> None:
    feed, held = lab.feed(SCHEMA), HeldRow(tmp_path)
    first = braided.stream(feed.frame()).groupBy("k").apply(slow(held), SCHEMA).name("first")
    flow = first.groupBy(F.expr("substring(k, 1, 1)")).apply(slow(), SCHEMA).name("second")
    feed.add(rows(0, 600, keys=3))
    query = lab.start(flow, channels=2, slots=8)

    def cuts() -> int:
        return sum("cut" in section for section in sections(query).values())

    for number in range(1, 4):
        held.forget()
        cut_when_begun(query, held)
        wait_until(lambda number=number: cuts() == number, "the batch has ended")
    query.processAllAvailable()
    query.stop()
    [(_, second)] = lab.state(flow, "second").items()
    for n in range(3):  # by the key that they had in the first
        assert [seq for seq in second["seen"] if seq % 3 == n] == list(range(n, 600, 3))
    assert sorted(lab.rows()) == sorted(rows(0, 600, keys=3))


def test_where_nothing_can_be_left_nothing_is_cut(lab: Lab, tmp_path: Path) -> None:
    feed, held = lab.feed(SCHEMA), HeldRow(tmp_path)
    flow = braided.stream(feed.frame()).groupBy("k").apply(slow(held), SCHEMA).name("one")
    feed.add(rows(0, 200))
    query = lab.start(flow, channels=2, slots=8, orderPreserving=True)
    wait_until(held.is_there, "a row is processed")
    assert not query.cut()
    held.let_go()
    query.processAllAvailable()
    query.stop()
    assert lab.rows() == rows(0, 200)
    with pytest.raises(OptionError, match="contradict each other"):
        lab.start(flow, channels=2, slots=8, orderPreserving=True, cut=True)

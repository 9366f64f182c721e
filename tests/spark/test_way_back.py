"""Dry runs, the history of tables and the way back along it, on a running query."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame

import braided
from braided.api.query import ElasticQuery
from braided.errors import NoEarlierTableError, QueryStoppedError
from support.stream_harness import Feed, Lab, manifests_of, wait_until
from support.stream_operators import SCHEMA, LastThree, Totals

KEYS = [f"k{n}" for n in range(40)]


def rows(batch: int) -> list[tuple[Any, ...]]:
    return [(k, n % 3, batch * 100 + n, batch * 1000 + n) for n, k in enumerate(KEYS)]


def flow_of(feed: Feed) -> braided.Stream:
    sums = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).name("sums")
    return sums.groupBy("k").apply(LastThree, SCHEMA).name("last")


def run(query: ElasticQuery, feed: Feed, batch: int) -> None:
    feed.add(rows(batch))
    query.processAllAvailable()


def sums_after(batches: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The state of the first operator, by one loop."""
    return {
        (k,): {"count": batches, "total": sum(b * 100 + n for b in range(batches))}
        for n, k in enumerate(KEYS)
    }


def output_after(batches: int) -> list[tuple[Any, ...]]:
    """What both operators give out, by one loop."""
    out = []
    for n, k in enumerate(KEYS):
        totals = [sum(b * 100 + n for b in range(last + 1)) for last in range(batches)]
        for batch in range(batches):
            recent = totals[max(0, batch - 2) : batch + 1]
            out.append((k, batch + 1, sum(recent), batch * 1000 + n))
    return sorted(out)


def test_what_a_dry_run_says_comes_true_and_can_be_taken_back_also_after_a_restart(
    lab: Lab,
) -> None:
    feed = lab.feed(SCHEMA)
    flow = flow_of(feed)
    options = {"channels": 2, "slots": 16, "balance": "static"}
    with lab.running(flow, **options) as query:
        run(query, feed, 0)
        first = query.routing()
        assert [entry.batch for entry in first.history] == [0]
        with pytest.raises(NoEarlierTableError, match="has 0 steps"):
            query.revert()

        # What would be changes nothing, not even that a batch comes.
        plan = query.rescale(5, "sums", dry_run=True)
        query.rebalance(dry_run=True)
        with pytest.raises(ValueError, match="16 slots"):
            query.rescale(17, dry_run=True)
        query.processAllAvailable()
        assert query.routing() == first
        assert list(manifests_of(lab.checkpoint)) == [0]

        # And it is what comes of the command.
        assert query.rescale(5, "sums") is None
        query.processAllAvailable()
        rescaled = query.routing()
        assert rescaled["sums"] == plan.operators["sums"].after
        assert rescaled["last"] == first["last"] and not plan.operators["last"].is_change
        moved = [move.slot for move in plan.operators["sums"].moves]
        assert (rescaled["sums"].slots != first["sums"].slots).nonzero()[0].tolist() == moved
        said = f"sums: 2 -> 5 channels, {len(moved)} of 16 slots change channels, imbalance "
        assert str(plan).startswith(said)
        assert (plan.pause_s, plan.slots_to_other_hosts) == (0, 0)
        assert [entry.change for entry in rescaled.history[1:]] == [
            f"operator sums: 2 -> 5 channels, {len(moved)} slots moved"
        ]
        run(query, feed, 1)
        query.rescale(3)
        run(query, feed, 2)
        before_restart = query.routing()
        assert len(before_restart.history) == 3
    for ended in (query.revert, lambda: query.rescale(2, dry_run=True)):
        with pytest.raises(QueryStoppedError):
            ended()

    with lab.running(flow, **options) as query:
        # Before any batch: the manifests tell it.
        assert query.routing() == before_restart
        assert query.routing().history == before_restart.history
        back = query.revert(2, dry_run=True)
        assert query.revert(2) is None
        query.processAllAvailable()
        now = query.routing()
        for name, table in first.items():
            assert (now[name].channels, now[name].slots.tolist()) == (2, table.slots.tolist())
            assert now[name] == back.operators[name].after
            assert now[name].epoch == before_restart[name].epoch + 1
        run(query, feed, 3)

        # A revert is a step too: the next one takes it back.
        query.revert()
        run(query, feed, 4)
        again = query.routing()
        assert {name: table.channels for name, table in again.items()} == {"sums": 3, "last": 3}
        assert again["sums"].slots.tolist() == before_restart["sums"].slots.tolist()
        batches = [entry.batch for entry in again.history]
        assert len(batches) == 5 and batches == sorted(batches)
        assert again.history[-1].tables == again
    assert lab.state(flow, "sums") == sums_after(5)
    assert sorted(lab.rows()) == output_after(5)


def test_what_was_asked_for_and_waits_is_told_and_so_is_what_stop_waits_for(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    feed = lab.feed(SCHEMA)
    is_started, runs, goes_on = threading.Event(), threading.Event(), threading.Event()
    asked: list[tuple[bool, str]] = []

    def take(df: DataFrame, batch: int) -> None:
        assert is_started.wait(180)
        df.count()
        if batch == 0:
            asked.append((query.pending().is_change, str(query.pending())))
            query.rescale(5, "sums")
            asked.append((query.pending().is_change, str(query.pending())))
        if batch == 2:
            runs.set()
            assert goes_on.wait(180)

    query = lab.start(flow_of(feed), take, channels=2, slots=16, balance="static")
    is_started.set()
    try:
        run(query, feed, 0)
        query.processAllAvailable()
        (nothing, words), (something, change) = asked
        assert (nothing, words) == (False, "nothing would change")
        assert something and change.startswith("sums: 2 -> 5 channels")
        assert not query.pending().is_change and query.routing()["sums"].channels == 5
        progress = query.lastProgress
        assert progress is not None and "pending" not in progress["braided"]
        feed.add(rows(1))
        assert runs.wait(180)
        with caplog.at_level("WARNING", logger="braided"):
            stopping = threading.Thread(target=query.stop)
            stopping.start()
            wait_until(lambda: "waiting for batch" in caplog.text, "what stop waits for")
            goes_on.set()
            stopping.join()
        assert re.search(r"stop: waiting for batch 2, at most \d+ s", caplog.text)
    finally:
        goes_on.set()
        query.stop()

"""Rows that an operator cannot process, diverted on Spark: restarts, rescales, collection."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import braided
from braided.errors import CheckpointMismatchError, OptionError
from braided.store.durable.local_store import LocalStore
from braided.store.history import dead_lists
from braided.store.history.manifest_log import ManifestLog
from support.stream_harness import Feed, Lab, committed_view, manifests_of

SCHEMA = "k string, v int"
KEYS = "abcdefgh"


def flow(feed: Feed) -> braided.Stream:
    class Fragile(braided.Operator):
        total: int = 0
        fired: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.total += row.v
            yield row.k, self.total
            if row.v % 3 == 0:
                self.setTimer(1_000)
                raise ValueError(f"{row.v} is a multiple of three")
            if row.v == 50:
                self.setTimer(2_000)

        def onTimer(self, fired: Any) -> None:
            self.fired += 1
            raise RuntimeError("no timers please")

    return braided.stream(feed.frame()).groupBy("k").apply(Fragile, SCHEMA)


def expected(batches: list[list[tuple[str, int]]]) -> tuple[dict[Any, Any], list[Any], list[Any]]:
    state: dict[Any, Any] = {}
    given, dead = [], []
    for number, batch in enumerate(batches):
        for k, v in batch:
            if v % 3 == 0:
                dead.append(({"k": k}, {"k": k, "v": v}, number))
                continue
            total = state.setdefault((k,), {"total": 0, "fired": 0})
            total["total"] += v
            given.append((k, total["total"]))
            if v == 50:
                dead.append(({"k": k}, None, number))
    return state, given, dead


def dead_letters(lab: Lab) -> list[Any]:
    found = braided.deadLetters(lab.checkpoint, lab.spark).collect()
    assert {row.operator for row in found} <= {"Fragile"}
    assert all(row.error.startswith(("ValueError: ", "RuntimeError: ")) for row in found)
    return [
        (json.loads(row.key), None if row.row is None else json.loads(row.row), row.batch)
        for row in found
    ]


def some(found: list[Any]) -> list[str]:
    return sorted(map(str, found))


def test_diverted_rows_are_there_once_and_the_rest_as_if_they_had_not_come(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_lists, "LISTED_FROM", 2)
    draw = random.Random(5)
    batches = [[(draw.choice(KEYS), draw.randrange(1, 60)) for _ in range(30)] for _ in range(5)]
    batches[1].append(("a", 50))
    feed = lab.feed(SCHEMA)
    # Manifests go as soon as they may: dead letters must not depend on them.
    options = {"onError": "divert", "retainedManifests": 2, "fullManifestEvery": 2, "slots": 8}
    with lab.running(flow(feed), channels=2, **options) as query:
        with pytest.raises(OptionError, match="fail or divert"):
            lab.start(flow(feed), onError="ignore")
        feed.add(batches[0])
        query.processAllAvailable()
        query.rescale(3)
        feed.add(batches[1])
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None
        numbers = [
            p["braided"]["operators"]["Fragile"]["deadLetters"] for p in query.recentProgress
        ]
        state, given, dead = expected(batches[:2])
        assert sum(numbers) == len(dead)
    # A batch that is delivered again, and the file of a try that nobody reported.
    newest = max(manifests_of(lab.checkpoint))
    for left in (lab.checkpoint / "commits").glob(f"*{newest}*"):
        left.unlink()
    files = ManifestLog(LocalStore(lab.checkpoint / "braided"))
    first, *_ = files.dead_files(files.view_at(newest))
    named = lab.checkpoint / "braided" / first.name
    orphan = named.with_name("0-0-lost.parquet")
    orphan.write_bytes(named.read_bytes())
    for batch in batches[2:]:
        feed.add(batch)
        lab.run(flow(feed), **options)
    state, given, dead = expected(batches)
    assert lab.state(flow(feed)) == state
    assert some(lab.rows()) == some(given)
    assert some((k, r) for k, r, _ in dead_letters(lab)) == some((k, r) for k, r, _ in dead)
    assert min(manifests_of(lab.checkpoint)) > 0
    assert committed_view(lab.checkpoint).dead_lists
    assert named.exists()
    assert not orphan.exists()
    # A query that fails instead still has what was diverted before.
    feed.add([("a", 3)])
    with pytest.raises(StreamingQueryException, match="multiple of three"):
        lab.run(flow(feed))
    assert len(dead_letters(lab)) == len(dead)


def test_a_query_without_dead_letters_has_none(lab: Lab) -> None:
    with pytest.raises(CheckpointMismatchError, match="is not the checkpoint"):
        braided.deadLetters(lab.checkpoint, lab.spark)
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1)])
    lab.run(flow(feed), "noop", onError="divert")
    assert dead_letters(lab) == []
    assert not (lab.checkpoint / "braided" / "dead").exists()

"""Keys that are split, made whole, pinned and moved while batches are cut, fail and run again, and
the query is rescaled and restarted: state and output are those of a plain Python model.
"""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

import braided
from braided import failpoints
from braided.control.routing.table import Pin
from support.split_keys import (
    KEYS,
    SCHEMA,
    SLOTS,
    Ledger,
    LedgerOfBatches,
    LedgerOfRows,
    Running,
    ask,
    encoded,
    expected,
)
from support.stream_harness import Lab, committed_view, manifests_of


@pytest.mark.parametrize("operator", [LedgerOfRows, LedgerOfBatches])
def test_state_and_output_are_those_of_whole_keys(lab: Lab, operator: type[Ledger]) -> None:
    chance = random.Random(len(operator.__name__))
    feed = lab.feed(SCHEMA)
    ledger = braided.stream(feed.frame()).groupBy("k").apply(operator, SCHEMA).name("ledger")
    flow = ledger.groupBy("k").apply(Running, SCHEMA).name("running")
    options: dict[str, Any] = {"slots": SLOTS, "balance": "static", "snapshot.minBytes": 0}
    query = lab.start(flow, channels=3, **options)
    rows: list[tuple[Any, ...]] = []

    def add(count: int = 30) -> None:
        new = [
            (chance.choice([*KEYS, "a", "a", None]), chance.randrange(50), len(rows) + number)
            for number in range(count)
        ]
        rows.extend(new)
        feed.add(new)

    points = ["merged", "task-after-changelog", "manifest-linked"]
    was_split = was_cut = 0
    for turn in range(18):
        key = chance.choice(KEYS[:2] if turn % 3 else KEYS)
        shares = tuple(chance.sample(range(SLOTS), chance.randint(2, 7)))
        pinned = chance.choice([None, chance.randrange(SLOTS)])
        match ["split", "split", "cut", "crash", "split", "rescale", "whole", "unpin"][turn % 8]:
            case "split":
                ask(query, key, shares, pinned)
            case "whole":
                for pin in query.routing()["ledger"].pins[:1]:
                    query._opened.commands.propose_pin(
                        "ledger", Pin(pin.key, pin.hash, pin.check, pin.slot)
                    )
            case "unpin":
                query._opened.commands.propose_pin("ledger", encoded(key))
            case "rescale":
                query.rescale(chance.randint(1, 4), "ledger")
            case "cut":
                query._opened.commands.cut_next(2)
            case "crash":
                failpoints.arm(points.pop())
                add()
                with suppress(Exception):
                    query.processAllAvailable()
                    query.awaitTermination()
                failpoints.arm(None)
                query = lab.start(flow, **options)
        add()
        query.processAllAvailable()
        was_split += any(pin.shares for pin in query.routing()["ledger"].pins)
        was_cut += bool(committed_view(lab.checkpoint).carry)
    query.processAllAvailable()
    assert was_split > 8 and len(points) == 1
    query.stop()

    fields, output = expected(rows)
    assert lab.state(flow, "ledger") == fields
    by_key: dict[Any, list[Any]] = defaultdict(list)
    for row in lab.rows():
        by_key[row[0]].append(row)
    assert dict(by_key) == output
    # Whoever looks at it finds one row for each key, and as many as the manifest counts.
    shown = braided.state(lab.checkpoint, lab.spark, "ledger").collect()
    assert sorted(row.state["count"] for row in shown) == sorted(
        each["count"] for each in fields.values()
    )
    view = committed_view(lab.checkpoint).operators["ledger"]
    assert view.keys == len(fields)
    merges = [
        run.name
        for manifest in manifests_of(lab.checkpoint).values()
        for run in manifest.operators["ledger"].runs
        if "-merge-" in run.name
    ]
    assert merges

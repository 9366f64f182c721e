"""Keys that are split, made whole, pinned and, in every batch, assigned to other slots, while
batches are cut, fail and run again, and the query is rescaled and restarted: state and output are
those of a plain Python model.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

import braided
from braided import failpoints
from braided.api.query import ElasticQuery
from braided.control.routing.table import Pin
from braided.flow.graph import flow_of
from braided.steering import sampling
from support.iceberg import catalog_at, catalog_options
from support.reassigning import Reassigner
from support.split_keys import (
    KEYS,
    SCHEMA,
    SLOTS,
    Ledger,
    LedgerOfBatches,
    LedgerOfRows,
    Running,
    WaitingLedger,
    WholeLedger,
    ask,
    encoded,
    expected,
)
from support.stream_harness import Lab, committed_view, manifests_of


@pytest.mark.parametrize("operator, is_cut", [(LedgerOfRows, False), (LedgerOfBatches, True)])
def test_state_and_output_are_those_of_whole_keys(
    lab: Lab, operator: type[Ledger], is_cut: bool
) -> None:
    """Without cuts an operator that comes after sees the rows in their order, too. What a cut
    leaves over of one share comes after younger rows of another.
    """
    chance = random.Random(len(operator.__name__))
    feed = lab.feed(SCHEMA)
    ledger = braided.stream(feed.frame()).groupBy("k").apply(operator, SCHEMA).name("ledger")
    running = ledger.groupBy("k").apply(Running, SCHEMA).name("running")
    flow = ledger if is_cut else running
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

    points = ["manifest-linked", "merged"]
    was_split, reassigner, assigned = 0, Reassigner(7), 0
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
            case "cut" if is_cut:
                query._opened.commands.cut_next(2)
            case "crash":
                failpoints.arm(points.pop())
                add()
                with suppress(Exception):
                    query.processAllAvailable()
                    query.awaitTermination()
                failpoints.arm(None)
                query = lab.start(flow, **options)
        assigned += reassigner.propose(query)
        add()
        query.processAllAvailable()
        was_split += any(pin.shares for pin in query.routing()["ledger"].pins)
    query.processAllAvailable()
    assert was_split > 8 and not points and assigned > 20
    query.stop()

    fields, output = expected(rows)
    assert lab.state(flow, "ledger") == fields
    if is_cut:
        assert sorted(lab.rows(), key=str) == sorted((r for r in rows if r[1] % 3), key=str)
    else:
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
    manifests = manifests_of(lab.checkpoint).values()
    assert any(manifest.operators["ledger"].merged for manifest in manifests)
    assert any(manifest.carry for manifest in manifests) == is_cut


def test_a_key_is_split_while_it_is_too_hot_for_a_channel(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = lab.feed(SCHEMA)
    rows: list[tuple[Any, ...]] = []

    def flow(operator: type[Ledger]) -> braided.Stream:
        return braided.stream(feed.frame()).groupBy("k").apply(operator, SCHEMA).name("ledger")

    def batch(hot: int, others: int = 160) -> None:
        names = ["hot"] * hot + [f"key {number % 40}" for number in range(others)]
        new = [(name, number, len(rows) + number) for number, name in enumerate(names)]
        rows.extend(new)
        feed.add(new)
        query.processAllAvailable()
        assert query._opened.control.settled(180)

    def shares() -> int:
        return max([len(pin.shares) for pin in query.routing()["ledger"].pins], default=0)

    def batches(least: int, is_so: Callable[[], bool], **sizes: int) -> None:
        """So many, or more where a busy machine hides from the controller what they are like."""
        done = 0
        while done < least or (not is_so() and done < 40):
            batch(**sizes)
            done += 1

    query = lab.start(flow(WaitingLedger), channels=4, slots=64)
    seen: list[int] = []
    while len(seen) < 9 or (min(seen[-4:]) < 4 and len(seen) < 40):
        batch(hot=400)
        seen.append(shares())
    assert 4 <= shares() <= 8
    # Of three batches together: for a moment one channel may stand still on a busy machine.
    with_rows = [p["braided"] for p in query.recentProgress if p["numInputRows"]]
    busy_ms = [each["operators"]["ledger"]["busyMs"] for each in with_rows[-3:]]
    busy = [sum(channel) for channel in zip(*busy_ms, strict=True)]
    assert len(busy) == 4
    assert max(busy) < 0.5 * sum(busy), "no channel has all of a key with 0.7 of the rows"
    decided = with_rows[-1]["control"]["operators"]["ledger"]
    assert decided["boundShare"] < 0.4 < decided["hottestKeyShare"]
    # Who can merge no longer goes on with whole keys, and the other way round.
    query.stop()
    query = lab.start(flow(WholeLedger))
    batch(hot=40)
    assert shares() == 0
    query.stop()
    query = lab.start(flow(WaitingLedger))
    batches(8, lambda: shares() > 0, hot=400)
    assert shares() > 0
    batches(12, lambda: shares() == 0, hot=5, others=120)
    assert shares() == 0
    # What is too large to be merged all the time is left alone.
    batches(4, lambda: shares() > 0, hot=400)
    assert shares() > 0
    monkeypatch.setattr(sampling, "MERGED_MAX", 10)
    batches(3, lambda: shares() == 0, hot=400)
    assert shares() == 0
    query.stop()
    fields, _ = expected(rows)
    assert lab.state(flow(WaitingLedger)) == fields
    assert sorted(lab.rows()) == sorted(row for row in rows if row[1] % 3)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_no_key_is_split_of_which_a_table_keeps_the_newest_row(lab: Lab, format: str) -> None:
    """It would be that of one share. What was split for another sink is whole at once."""
    feed = lab.feed(SCHEMA)
    ledger = braided.stream(feed.frame()).groupBy("k").apply(LedgerOfRows, SCHEMA).name("ledger")
    query = lab.start(ledger, channels=3, slots=SLOTS, balance="static", hotKeys="split")
    rows = [("a", n, n) for n in range(40)]
    feed.add(rows[:20])
    query.processAllAvailable()
    ask(query, "a", (1, 2, 3), None)
    feed.add(rows[20:25])
    query.processAllAvailable()
    assert [pin.shares for pin in query.routing()["ledger"].pins] == [(1, 2, 3)]
    assert can_be_split(query)
    query.stop()

    catalog_at(lab.home)
    newest = ledger.filter("v >= 0").union(ledger.filter("v < 0"))
    options = {"mergeKeys": "k"} | (catalog_options(lab.home) if format == "iceberg" else {})
    writer = newest.writeStream.format(format).outputMode("update").options(**options)
    writer.option("checkpointLocation", str(lab.checkpoint)).option("braided.hotKeys", "split")
    query = writer.start(str(lab.home / "table") if format == "delta" else "db.t")
    feed.add(rows[25:])
    query.processAllAvailable()
    assert not any(pin.shares for pin in query.routing()["ledger"].pins)
    assert not can_be_split(query)
    query.stop()
    fields, _ = expected(rows)
    assert lab.state(newest, "ledger") == fields
    if format == "delta":
        found = DeltaTable(str(lab.home / "table")).to_pyarrow_table().to_pylist()
    else:
        found = catalog_at(lab.home).load_table("db.t").scan().to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == [("a", 38, 38)]


def can_be_split(query: ElasticQuery) -> bool:
    """Whether the controller believes so."""
    return "ledger" in query._opened.control._sampler._mergers


def test_an_operator_between_makes_whole_what_the_shares_of_a_key_give_out(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    ledger = braided.stream(feed.frame()).groupBy("k").apply(LedgerOfRows, SCHEMA).name("ledger")
    running = ledger.groupBy("k").apply(Running, SCHEMA).name("running")

    def can_split(*ends: braided.Stream, newest_only: tuple[bool, ...]) -> set[str]:
        flow = flow_of([end._node for end in ends])
        return set(replace(flow, newest_only=newest_only).can_split)

    assert can_split(running, newest_only=(True,)) == {"ledger"}
    assert can_split(ledger, newest_only=(False,)) == {"ledger"}
    assert can_split(ledger.filter("v > 1"), newest_only=(True,)) == set()
    assert can_split(running, ledger, newest_only=(False, True)) == set()

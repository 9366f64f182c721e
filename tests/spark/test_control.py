"""The controller on a running query: what it sees, what it decides, and that it harms nobody.

Work is waiting, so that how long it takes does not depend on the machine.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

import braided
from braided.cli.main import main
from braided.control.events import Decided, Event, Failed, Judged, Measured, Planned, read
from braided.control.routing.table import RoutingTable
from braided.flow.key_hashes import key_hashes
from braided.flow.route import can_be_pinned, pin_hashes
from braided.spark.arrow_types import to_arrow_schema
from braided.steering import policy_settings
from braided.store.slots.key_codec import KeyCodec
from support.stream_harness import Feed, Lab, last_batch, manifests_of
from support.stream_operators import Waits

ROWS_PER_KEY = 12
SETTLED_S = 120.0


def keys_of_slots(lab: Lab, slots: set[int], count: int) -> list[int]:
    """Keys that hash to some of 16 slots, by the rule of the design."""
    slot = F.expr("pmod(xxhash64(int(id)), 16)")
    rows = lab.spark.range(1000).select("id", slot.alias("slot")).collect()
    found = [row.id for row in rows if row.slot in slots]
    assert len(found) >= count
    return found[:count]


def step(
    lab: Lab, feed: Feed, query: braided.ElasticQuery, keys: list[int], rows: int = ROWS_PER_KEY
) -> None:
    """One batch of so many rows of each key, and the controller's thoughts about it."""
    feed.add([(key,) for key in keys for _ in range(rows)])
    query.processAllAvailable()
    assert query._opened.control.settled(SETTLED_S)


def events_of(lab: Lab) -> list[Event]:
    with open(lab.checkpoint / "braided/events.jsonl", "rb") as lines:
        return list(read(lines))


def is_exact(
    lab: Lab, flow: braided.Stream, keys: list[int], batches: int, rows: int = ROWS_PER_KEY
) -> None:
    rows *= batches
    assert lab.state(flow) == {(key,): {"rows": rows} for key in keys}
    expected = sorted((key, n) for key in keys for n in range(1, rows + 1))
    assert sorted(lab.rows()) == expected


def test_slots_leave_the_busy_channel_and_channels_stay_as_asked(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    keys = keys_of_slots(lab, {0, 2, 4, 6}, 8)  # all on channel 0 of 2
    rows = 3 * ROWS_PER_KEY  # so much work that it shows beside a busy machine's own
    with lab.running(flow, channels=2, slots=16) as query:
        for _ in range(5):
            step(lab, feed, query, keys, rows)
        table = query.routing()["Waits"]
        last = query.lastProgress
    assert (table.channels, table.epoch) == (2, 1)
    assert {int(table.slots[slot]) for slot in (0, 2, 4, 6)} == {0, 1}
    is_exact(lab, flow, keys, 5, rows)

    assert last is not None
    section = last["braided"]["control"]
    json.dumps(section)
    assert (section["scale"], section["balance"]) == ("off", "elasticutor")
    decision = section["lastDecision"]
    assert (decision["kind"], decision["operator"], decision["channels"]) == ("balance", "Waits", 2)
    assert "times the average" in decision["reason"]
    assert section["operators"]["Waits"]["boundShare"] == 0.5

    events = events_of(lab)
    measured = [event for event in events if isinstance(event, Measured)]
    # The first batch of a process says nothing: nobody knows how long its input was collected.
    assert [event.batch for event in measured] == [1, 2, 3, 4]
    assert all(event.rows == len(keys) * rows for event in measured)
    assert all(0 < event.true_rate < 200 for event in measured)
    (decided,) = [event for event in events if isinstance(event, Decided)]
    (planned,) = [event for event in events if isinstance(event, Planned)]
    assert planned.decisions == (decided.decision,) and not planned.dropped
    assert decided.expected is not None and decided.before is not None
    assert decided.expected < decided.before
    (judged,) = [event for event in events if isinstance(event, Judged)]
    assert (judged.decision, judged.verdict) == (decided.decision, "effective")

    log = str(lab.checkpoint / "braided/events.jsonl")
    capsys.readouterr()
    assert main(["replay", log, "--policy", "saso", "--policy", "autoflow", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["recorded"]["batches"] == 4
    assert replayed["recorded"]["moved_slots"] == planned.moved_slots


def test_channels_follow_the_work_within_their_bounds_and_a_restart_remembers(lab: Lab) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    keys = keys_of_slots(lab, set(range(16)), 24)  # more than a second of work
    options: dict[str, Any] = {"slots": 16, "channels.max": 3}
    steps = 0
    with lab.running(flow, channels=1, **options) as query:
        # A machine so busy that a batch's own second is little of it has no need of channels.
        while query.routing()["Waits"].channels == 1 and steps < 25:
            step(lab, feed, query, keys)
            steps += 1
        # What was decided right before a batch is known to the next one.
        step(lab, feed, query, keys)
        steps += 1
        table = query.routing()["Waits"]
        memory = query._opened.control.memory
    assert 1 < table.channels <= 3
    is_exact(lab, flow, keys, steps)
    assert any(e.kind == "scale-up" for e in events_of(lab) if isinstance(e, Decided))
    assert memory is not None
    # That of the batch before, which was known when the last one was committed.
    kept = json.loads(manifests_of(lab.checkpoint)[steps - 1].extra["control"])
    assert kept["scale"] == "ds2" and kept["controller"]["decisions"] > 0
    with lab.running(flow, **options) as query:
        assert query.routing()["Waits"] == table
        newest = manifests_of(lab.checkpoint)[steps - 1]
        assert query._opened.control.memory == newest.extra["control"]
        step(lab, feed, query, keys)
    is_exact(lab, flow, keys, steps + 1)


def test_executors_have_key_ranges_with_channels_of_their_own(lab: Lab) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    keys = keys_of_slots(lab, {0, 1, 2, 3}, 8)  # all in the first of the ranges
    options: dict[str, Any] = {"slots": 16, "executors": 3, "executors.reviewBatches": 6}

    def executors(query: braided.ElasticQuery) -> list[dict[str, Any]]:
        assert query.lastProgress is not None
        found: list[dict[str, Any]] = query.lastProgress["braided"]["control"]["operators"][
            "Waits"
        ]["executors"]
        return found

    def are_home(query: braided.ElasticQuery) -> bool:
        slots = query.routing()["Waits"].slots
        return all(
            int(slots[slot]) in each["channels"]
            for each in executors(query)
            for slot in range(each["slots"][0], each["slots"][1] + 1)
        )

    with lab.running(flow, channels=5, **options) as query:
        for _ in range(5):
            step(lab, feed, query, keys)
        ranges = executors(query)
        assert [each["slots"] for each in ranges] == [[0, 4], [5, 9], [10, 15]]
        # Channels go where the work is; everybody keeps one, and slots stay in their range.
        assert [len(each["channels"]) for each in ranges] == [3, 1, 1]
        assert are_home(query)
        for _ in range(3):  # the review merges ranges without work
            step(lab, feed, query, keys)
        assert len(executors(query)) < 3 and are_home(query)
        merged = [each["slots"] for each in executors(query)]
        query.rescale(4)
        for _ in range(2):
            step(lab, feed, query, keys)
        assert query.routing()["Waits"].channels == 4 and are_home(query)
    with lab.running(flow, **options) as query:
        for _ in range(2):
            step(lab, feed, query, keys)
        assert [each["slots"] for each in executors(query)] == merged and are_home(query)
    is_exact(lab, flow, keys, 12)
    reshapes = [e for e in events_of(lab) if isinstance(e, Decided) and e.kind == "reshape"]
    assert reshapes and "merged" in reshapes[0].reason


def test_a_batch_that_is_known_to_be_large_has_its_channels_at_once(lab: Lab) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    keys = keys_of_slots(lab, set(range(16)), 120)
    options: dict[str, Any] = {"slots": 16, "channels.max": 3}
    with lab.running(flow, channels=1, **options) as query:
        for number in range(20):
            step(lab, feed, query, keys[:1])
            # Input counts as collected while the batch before ran. A machine that held that one up
            # for seconds would make a trickle of the flood.
            if number >= 3 and last_batch(query)["durationMs"]["triggerExecution"] < 1_500:
                break
        assert query.routing()["Waits"].channels == 1
        # Workers for what may come, as many as can run at a time.
        assert query._opened.reserve.workers == min(3, lab.spark.sparkContext.defaultParallelism)
        # 120 times the rows, in 120 times the bytes: seven seconds of work, too much for a channel
        # even if a busy machine takes seconds to collect it.
        feed.add([(key,) for _ in range(ROWS_PER_KEY) for key in keys], files=len(keys))
        query.processAllAvailable()
        assert query._opened.control.settled(SETTLED_S)
        table = query.routing()["Waits"]
        last = last_batch(query)
    assert last["braided"]["operators"]["Waits"]["rows"] == len(keys) * ROWS_PER_KEY
    assert last["braided"]["operators"]["Waits"]["channels"] == table.channels > 1
    decided = next(e for e in events_of(lab) if isinstance(e, Decided) and not e.held)
    assert (decided.kind, decided.batch) == ("scale-up", last["batchId"])
    assert decided.reason.startswith("input comes ")


class Fails:
    def __init__(self) -> None:
        self.asked = 0

    def scale(self, *_: Any) -> Any:
        self.asked += 1
        raise RuntimeError("no idea")

    @property
    def by_rate(self) -> bool:
        raise RuntimeError("no idea of rates either")

    def balance(self, *_: Any) -> Any:
        return RoutingTable.initial(4, 4)


def test_policies_that_fail_harm_nobody_and_are_warned_of_once(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    policy = Fails()
    with (
        caplog.at_level(logging.WARNING, "braided"),
        lab.running(flow, channels=2, slots=16, scale=policy, balance=policy) as query,
    ):
        for _ in range(5):
            step(lab, feed, query, [1, 2])
        assert query.routing()["Waits"] == RoutingTable.initial(16, 2)
    is_exact(lab, flow, [1, 2], 5)
    assert policy.asked == 1  # and held back from then on
    failed = {e.policy: e for e in events_of(lab) if isinstance(e, Failed)}
    assert set(failed) == {"scale Fails", "balance Fails"}
    assert "no idea" in failed["scale Fails"].error
    said = [record.getMessage() for record in caplog.records if "held back" in record.getMessage()]
    assert len(said) == 2 and all("the query goes on without it" in each for each in said)


def test_more_channels_than_task_slots_are_warned_of_once_however_they_came_to_be(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    cores = lab.spark.sparkContext.defaultParallelism

    def said() -> list[str]:
        return [each for each in caplog.messages if "tasks at a time" in each]

    with (
        caplog.at_level(logging.WARNING, "braided"),
        lab.running(flow, channels=cores, slots=16) as query,
    ):
        step(lab, feed, query, [1, 2])
        assert not said()
        for channels in (cores + 1, cores + 2):
            query.rescale(channels)
            step(lab, feed, query, [1, 2])
        [words] = said()
    assert f"has {cores + 1} channels, but Spark runs {cores} tasks at a time" in words
    caplog.clear()
    # Nobody asks for them any more: they are as the query left them.
    with (
        caplog.at_level(logging.WARNING, "braided"),
        lab.running(flow, channels=cores, slots=16) as query,
    ):
        step(lab, feed, query, [1, 2])
        assert len(said()) == 1


def test_a_memory_that_can_not_be_read_is_done_without(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    with lab.running(flow, channels=2, slots=16) as query:
        query._opened.control.memory = '{"controller": 7}'
        step(lab, feed, query, [1, 2])
    with caplog.at_level(logging.WARNING, "braided"):
        query = lab.start(flow)
    assert "without its memory" in caplog.text
    step(lab, feed, query, [1, 2])
    query.stop()
    is_exact(lab, flow, [1, 2], 2)


def test_a_hot_key_leaves_its_company_and_returns_when_it_has_cooled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where batches take a busy machine many seconds, the company's work is little of each second.
    least = replace(policy_settings.HOT_KEYS, company_least=0.001)
    monkeypatch.setattr(policy_settings, "HOT_KEYS", least)
    feed = lab.feed("k int")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
    hot, *others = keys_of_slots(lab, {3}, 4)
    counts: Counter[int] = Counter()

    def batch(rows: dict[int, int]) -> None:
        counts.update(rows)
        feed.add([(key,) for key, count in rows.items() for _ in range(count)])
        query.processAllAvailable()
        assert query._opened.control.settled(SETTLED_S)

    def is_apart() -> bool:
        table = query.routing()["Waits"]
        return any(table.slots[pin.slot] != table.slots[3] for pin in table.pins)

    def others_are_pinned_and_it_is_not() -> bool:
        pinned = {each.key for each in query.routing()["Waits"].pins}
        return bool(pinned) and pin.key not in pinned

    query = lab.start(flow, channels=2, slots=16)
    done = 0
    while done < 7 or (not is_apart() and done < 40):
        batch({hot: 60, **dict.fromkeys(others, 12)})
        done += 1
    (pin,) = query.routing()["Waits"].pins
    assert pin.slot != 3 and pin.hash % 16 == 3
    channels = query.routing()["Waits"].slots
    assert channels[pin.slot] != channels[3], "and then the others left it alone"
    query.stop()
    query = lab.start(flow, slots=16)
    assert query.routing()["Waits"].pins == (pin,)
    done = 0
    while done < 10 or (not others_are_pinned_and_it_is_not() and done < 60):
        batch({hot: 1, **dict.fromkeys(others, 20)})
        done += 1
    # The others are hot by now, and in one slot: they are apart, and it is back.
    assert others_are_pinned_and_it_is_not()
    query.stop()
    assert lab.state(flow) == {(key,): {"rows": rows} for key, rows in counts.items()}
    assert sorted(lab.rows()) == sorted(
        (key, n) for key, rows in counts.items() for n in range(1, rows + 1)
    )
    decided = [e.kind for e in events_of(lab) if isinstance(e, Decided)]
    assert {"pin", "unpin"} <= set(decided)


@pytest.mark.parametrize(
    "ddl, key",
    [
        ("k int", (7,)),
        ("k int", (None,)),
        ("k bigint, s string", (-3, "é")),
        ("k timestamp, d date", (datetime(2024, 5, 6, 7, 8, 9), date(1969, 1, 2))),
        ("k double, b binary", (-0.0, b"x")),
        ("k decimal(10,2), s smallint, b boolean", (Decimal("1.50"), 3, True)),
        ("k decimal(38,2), s float", (Decimal("1.50"), float("nan"))),
    ],
)
def test_the_hashes_of_a_key_are_those_of_its_rows(lab: Lab, ddl: str, key: Any) -> None:
    rows = lab.spark.createDataFrame([key], ddl)
    codec = KeyCodec(to_arrow_schema(rows.schema))
    (encoded,) = codec.encode_batch([column.combine_chunks() for column in rows.toArrow().columns])
    expected = rows.selectExpr(*pin_hashes(rows.columns)).head()
    assert key_hashes(lab.spark, rows.schema, encoded) == tuple(expected or ())


def test_no_other_key_is_taken_for_a_pinned_one(lab: Lab) -> None:
    rows = lab.spark.createDataFrame([(None, 1), (1, None), (1, 1), (None, None)], "k int, c int")
    hashes = {tuple(row) for row in rows.selectExpr(*pin_hashes(["k", "c"])).collect()}
    assert len(hashes) == 4
    for nested in ("k array<int>", "k struct<a: int>", "c int, k array<array<int>>"):
        assert not can_be_pinned(lab.spark.createDataFrame([], nested).schema)

"""A query that starts again on its checkpoint: what continues, what is refused."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.accumulators import _accumulatorRegistry
from pyspark.errors import StreamingQueryException

import braided
from braided.errors import CheckpointMismatchError, OperatorError, OptionError
from support.stream_harness import Feed, Lab, committed_view, manifests_of, wait_until
from support.stream_operators import SCHEMA, FirstSeen, LastThree, Totals

ROWS = [(k, 0, v, v) for v in range(4) for k in ("a", "b", None)]


def totals(feed: Feed, name: str = "Totals") -> braided.Stream:
    return braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA).name(name)


def test_a_restart_continues_with_state_and_routing_table(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(feed)
    with lab.running(flow, channels=2) as query:
        feed.add(ROWS)
        query.processAllAvailable()
        query.rescale(5)
        query.processAllAvailable()
        table = query.routing()["Totals"]
        assert table.channels == 5
    feed.add(ROWS)
    # braided.channels is for the first start only.
    with lab.running(flow, channels=3) as query:
        query.processAllAvailable()
        again = query.routing()["Totals"]
    assert (again.channels, again.epoch) == (5, table.epoch)
    assert again.slots.tolist() == table.slots.tolist()
    assert lab.state(flow) == {(k,): {"count": 8, "total": 12} for k in ("a", "b", None)}
    assert sorted(v for k, _, v, _ in lab.rows() if k == "a") == [0, 1, 3, 6, 6, 7, 9, 12]


def test_a_frame_that_is_read_twice_is_one_source_whose_log_is_missed_if_it_goes(lab: Lab) -> None:
    feed, other = lab.feed(SCHEMA), lab.feed(SCHEMA, "other")
    twice = feed.frame()
    frames = twice.union(twice.filter("v > 1")).union(other.frame())
    flow = braided.stream(frames).groupBy("k").apply(Totals, SCHEMA).name("Totals")
    for _ in range(2):
        feed.add(ROWS)
        other.add(ROWS)
        lab.run(flow, "noop", slots=8)
    # Of each of a, b and null: 0, 1, 2, 3, then 2, 3 again, and those of the other frame.
    assert lab.state(flow) == {(k,): {"count": 20, "total": 34} for k in ("a", "b", None)}
    assert sorted(path.name for path in (lab.checkpoint / "sources").iterdir()) == ["0", "1"]
    shutil.rmtree(lab.checkpoint / "sources/1")
    with pytest.raises(CheckpointMismatchError, match=r"missing from .*sources/1\. Files"):
        lab.run(flow, "noop", slots=8)


def test_a_frame_with_a_table_of_its_own_in_sql_starts_again(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.frame().createOrReplaceTempView("arriving")
    some = "WITH some AS (SELECT * FROM arriving WHERE v > 1) SELECT * FROM some"
    # Of each file two rows of a key, and the second query finds those of the first as well.
    for query, count in ((some, 4), (f"{some} UNION ALL SELECT * FROM some", 16)):
        lab.checkpoint = lab.home / f"checkpoint of {count}"
        stream = braided.stream(lab.spark.sql(query))
        flow = stream.groupBy("k").apply(Totals, SCHEMA).name("Totals")
        for _ in range(2):
            feed.add(ROWS)
            lab.run(flow, "noop", slots=8)
        assert {fields["count"] for fields in lab.state(flow).values()} == {count}


@pytest.fixture
def old(lab: Lab) -> Feed:
    """A feed with a checkpoint of one batch by operator 'Totals', keyed by k."""
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    lab.run(totals(feed), "noop", slots=8)
    return feed


def test_a_flow_that_does_not_fit_its_checkpoint_is_refused_by_operator(
    lab: Lab, old: Feed
) -> None:
    class OtherTotals(braided.Operator):
        count: int = 0
        total: str = ""

        def onRow(self, row: Any) -> None:
            pass

    source = braided.stream(old.frame())
    refused = {
        "renamed": totals(old, "Sums"),
        "another operator": source.groupBy("k").apply(LastThree, SCHEMA),
        "other fields": source.groupBy("k").apply(OtherTotals, SCHEMA).name("Totals"),
        "other key": source.groupBy("c").apply(Totals, SCHEMA),
        "other key type": source.groupBy(source.v.cast("string")).apply(Totals, SCHEMA),
    }
    accumulators = set(_accumulatorRegistry)
    for why, flow in refused.items():
        with pytest.raises(CheckpointMismatchError, match="'Totals'"):
            lab.start(flow, "noop")
            pytest.fail(f"{why}: was started")
    with pytest.raises(CheckpointMismatchError, match=r"8 slots .* asks for 16"):
        lab.start(totals(old), "noop", slots=16)
    two = old.frame().union(lab.feed(SCHEMA, "second").frame())
    flow = braided.stream(two).groupBy("k").apply(Totals, SCHEMA).name("Totals")
    with pytest.raises(CheckpointMismatchError, match=r"sources \(1, and this one reads 2\)"):
        lab.start(flow, "noop")
    # The refusals have done no harm, and left nothing behind.
    assert set(_accumulatorRegistry) <= accumulators
    old.add(ROWS)
    lab.run(totals(old), "noop")
    assert lab.state(totals(old))[("a",)] == {"count": 8, "total": 12}


def test_an_added_operator_starts_empty_beside_the_old_state(lab: Lab, old: Feed) -> None:
    flow = totals(old).groupBy("k").apply(FirstSeen, SCHEMA)
    old.add([("a", 0, 100, 0), ("z", 0, 3, 0)])
    lab.run(flow, "noop")
    assert lab.state(flow, "Totals")[("a",)] == {"count": 5, "total": 106}
    assert lab.state(flow, "FirstSeen") == {("a",): {"seen": {106}}, ("z",): {"seen": {3}}}
    with pytest.raises(CheckpointMismatchError, match="'FirstSeen', which is not in the flow"):
        lab.start(totals(old), "noop")


def test_two_operators_of_one_name_are_refused(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(feed).groupBy("k").apply(Totals, SCHEMA)
    with pytest.raises(braided.BraidedError, match=r"two operators are called 'Totals'.*name\("):
        lab.start(flow, "noop")


def test_an_operator_that_raises_is_named_with_key_row_and_batch_and_can_be_fixed(
    lab: Lab,
) -> None:
    def flow(limit: int) -> braided.Stream:
        class Sum(braided.Operator):
            total: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                if row.v > limit:
                    raise ValueError(f"{row.v} is too much")
                self.total += row.v
                yield row.k, row.c, self.total, row.seq

        return braided.stream(feed.frame()).groupBy("k").apply(Sum, SCHEMA)

    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    query = lab.start(flow(limit=50))
    query.processAllAvailable()
    feed.add([("a", 0, 1, 10), ("b", 7, 99, 11), ("b", 0, 1, 12)])
    with pytest.raises(StreamingQueryException) as raised:
        query.processAllAvailable()
    assert isinstance(raised.value.__cause__, OperatorError)
    failure = query.exception()
    assert failure is not None
    assert str(failure).startswith("OperatorError: operator 'Sum'")
    assert str(raised.value).startswith("OperatorError: operator 'Sum'")
    for text in (str(failure.__cause__), str(failure)):
        for part in ("operator 'Sum'", "ValueError: 99 is too much", "k='b'", "c=7", "batch: 1"):
            assert part in text
        assert 'raise ValueError(f"{row.v} is too much")' in text  # the user's own line
    # Spark tells of the error a little before it has ended the query.
    wait_until(lambda: not query.isActive, "the end of the query")
    assert list(manifests_of(lab.checkpoint)) == [0]
    assert list(lab.output()) == [0]
    feed.add([("b", 0, 1000, 13)])
    lab.run(flow(limit=5_000))
    assert lab.state(flow(0)) == {
        ("a",): {"total": 7},
        ("b",): {"total": 6 + 99 + 1 + 1000},
        (None,): {"total": 6},
    }
    assert sorted(seq for _, _, _, seq in lab.rows() if seq >= 10) == [10, 11, 12, 13]


def test_stopping_at_any_moment_is_clean_and_loses_nothing(lab: Lab) -> None:
    chance = random.Random(7)
    feed = lab.feed(SCHEMA)
    flow = totals(feed).groupBy("c").apply(LastThree, SCHEMA)
    expected = 0
    for number in range(10):
        # Every other stop does not wait for the running batch but cuts it off.
        query = lab.start(flow, channels=3, stopTimeout="0ms" if number % 2 else "60s")
        for _ in range(2):
            feed.add(ROWS)
            expected += 4
            threading.Event().wait(chance.random() * 0.6)  # any moment of a batch will do
        query.stop()
        assert query.exception() is None
        assert not query.isActive
        newest = max(manifests_of(lab.checkpoint), default=-1)
        commits = lab.checkpoint / "commits"
        spark_newest = max(
            (int(p.name) for p in commits.glob("[0-9]*")) if commits.exists() else [], default=-1
        )
        assert newest in (spark_newest, spark_newest + 1)
    lab.run(flow)
    assert lab.state(flow, "Totals") == {
        (k,): {"count": expected, "total": expected // 4 * 6} for k in ("a", "b", None)
    }
    assert sorted(v for k, _, v, _ in _first_output(lab)) == sorted([*range(1, expected + 1)] * 3)
    assert committed_view(lab.checkpoint).carry == ()


def test_a_query_stopped_as_soon_as_it_is_started_can_start_again(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = totals(feed)
    for _ in range(4):
        query = lab.start(flow)
        query.stop()
        assert query.exception() is None
    feed.add(ROWS)
    lab.run(flow)
    assert len(lab.rows()) == len(ROWS)


def _first_output(lab: Lab) -> list[tuple[Any, ...]]:
    # The second operator is keyed by the count that the first one gives out, once per key.
    return [(k, c, c, seq) for k, c, _, seq in lab.rows()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slotz": 3}, "braided.slotz; the nearest is braided.slots"),
        ({"slots": "many"}, "braided.slots is 'many'"),
        ({"channels": 0}, "braided.channels is '0'"),
        ({"orderPreserving": "maybe"}, "true or false"),
        ({"orderBy": "nothing"}, "the stream has k, c, v, seq"),
        ({"orderBy": "k"}, "'k' is string"),
    ],
)
def test_bad_options_are_refused_at_start(lab: Lab, options: dict[str, Any], words: str) -> None:
    feed = lab.feed(SCHEMA)
    with pytest.raises(OptionError, match=words):
        lab.start(totals(feed), "noop", **options)
    assert not (lab.checkpoint / "braided" / "manifests").exists()


def test_options_of_the_session_count_and_unknown_ones_are_refused(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    lab.spark.conf.set("spark.braided.slots", "12")
    try:
        query = lab.run(totals(feed), "noop")
        assert len(query.routing()["Totals"].slots) == 12
        lab.spark.conf.set("spark.braided.chanels", "12")
        with pytest.raises(OptionError, match=r"spark\.braided\.channels"):
            lab.start(totals(feed), "noop")
    finally:
        lab.spark.conf.unset("spark.braided.slots")
        lab.spark.conf.unset("spark.braided.chanels")

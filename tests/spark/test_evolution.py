"""Operators whose fields change between starts of a query."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import braided
from braided.errors import CheckpointMismatchError
from braided.store.durable.local_store import LocalStore
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from support.column_operators import column_version
from support.stream_harness import Feed, Lab, committed_view, manifests_of, timers_of

SCHEMA = "k string, v int"
FAR_AWAY_MS = 4_000_000_000_000


def version(number: int) -> type[braided.Operator]:
    """`Totals` as it was written over time."""

    class Base(braided.Operator, abstract=True):
        def onTimer(self, fired: Any) -> None: ...

    if number == 1:

        class Totals(Base):
            count: int = 0
            sum: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                self.count += 1
                self.sum += row.v
                self.setTimer(FAR_AWAY_MS + row.v)
                yield row.k, self.sum

        return Totals
    if number == 2:

        class Totals(Base):  # type: ignore[no-redef]
            total: float = braided.renamed("sum", default=0.0)
            names: list[str] = ["new"]  # noqa: RUF012
            count: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                if row.v < 0:
                    return  # only looks
                self.count += 1
                self.total += row.v + 0.5
                yield row.k, int(self.total * 10)

        return Totals

    class Totals(Base):  # type: ignore[no-redef]
        average: float = 0.0
        names: list[str] | None = None

        def onRow(self, row: Any) -> Iterator[Any]:
            yield row.k, int(self.average * 10)

        @classmethod
        def upgrade(cls, old: dict[str, Any]) -> dict[str, Any]:
            total = old.get("total", old.get("sum"))
            return {"average": total / old["count"], "names": old.get("names")}

    return Totals


def flow(feed: Feed, number: int) -> braided.Stream:
    grouped = braided.stream(feed.frame()).groupBy("k")
    return grouped.apply(version(number), SCHEMA)


def test_state_lives_through_versions_of_its_fields_key_by_key(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([(k, v) for v in (1, 2) for k in ("asleep", "looked", "awake")])
    # Snapshots come soon, and hold records of several versions.
    caches = lab.home / "caches"
    often = {
        "cache.dir": str(caches),
        "slots": 2,
        "channels": 1,
        "snapshot.minBytes": 1,
        "snapshot.factor": 0.1,
    }
    lab.run(flow(feed, 1), **often)
    before = timers_of(lab.checkpoint, flow(feed, 1))
    assert len(before) == 3

    feed.add([("awake", 3), ("looked", -1), ("born", 4)])
    lab.run(flow(feed, 2), **often)
    manifests = manifests_of(lab.checkpoint)
    written = manifests[max(manifests)].operators["Totals"]
    assert written.meta is not None
    assert len(written.meta.history) == 2
    assert written.keys == 4
    state = lab.state(flow(feed, 2))
    assert state == {
        ("asleep",): {"total": 3.0, "names": ["new"], "count": 2},
        ("looked",): {"total": 3.0, "names": ["new"], "count": 2},
        ("awake",): {"total": 6.5, "names": ["new"], "count": 3},
        ("born",): {"total": 4.5, "names": ["new"], "count": 1},
    }
    assert timers_of(lab.checkpoint, flow(feed, 2)) == before
    assert versions_of(lab) == {"asleep": 1, "looked": 1, "awake": 2, "born": 2}

    # What is left by 1 and 2 is read by 3, from the durable files alone.
    for number in range(3):  # enough for snapshots of everything
        feed.add([("born", number)])
        lab.run(flow(feed, 2), **often)
    kept = manifests_of(lab.checkpoint).values()
    assert any(run.snapshot for manifest in kept for run in manifest.operators["Totals"].runs)
    shutil.rmtree(caches)
    feed.add([("asleep", 0), ("awake", 0)])
    lab.run(flow(feed, 3), **often)
    assert sorted(lab.rows()[-2:]) == [("asleep", 15), ("awake", 21)]
    assert lab.state(flow(feed, 3))[("asleep",)] == {"average": 1.5, "names": None}
    assert timers_of(lab.checkpoint, flow(feed, 3)) == before


def versions_of(lab: Lab) -> dict[str, int]:
    """By which version of the fields each key's record was written."""
    view = committed_view(lab.checkpoint).operators["Totals"]
    state = ChannelState(
        LocalStore(str(lab.checkpoint / "braided")), None, "Totals", view, SnapshotLimits()
    )
    keys = KeyCodec(pa.schema([("k", pa.string())]))
    return {
        str(keys.decode(suffix[1:])[0]): record[0]
        for slot in range(view.meta.slots)
        for suffix, record in state.slot(slot).scan(b"k")
    }


def test_columns_live_through_versions_of_their_class_key_by_key(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)

    def columns(number: int) -> braided.Stream:
        return braided.stream(feed.frame()).groupBy("k").apply(column_version(number), SCHEMA)

    feed.add([(k, v) for v in (1, 2) for k in ("asleep", "awake")])
    lab.run(columns(1), channels=1)
    feed.add([("awake", 3), ("born", 4)])
    lab.run(columns(2))
    assert lab.state(columns(2)) == {
        ("asleep",): {"total": 3, "label": "new", "count": 2},
        ("awake",): {"total": 6, "label": "new", "count": 3},
        ("born",): {"total": 4, "label": "new", "count": 1},
    }
    # Records of both versions are read by the third.
    feed.add([("asleep", 0), ("awake", 0), ("born", 0)])
    lab.run(columns(3))
    assert sorted(lab.rows()[-3:]) == [("asleep", 15), ("awake", 20), ("born", 40)]
    assert lab.state(columns(3)) == {
        ("asleep",): {"average": 1.5, "label": None},
        ("awake",): {"average": 2.0, "label": "new"},
        ("born",): {"average": 4.0, "label": "new"},
    }


ADVICE = (
    r"Change the fields back, or say how old {} becomes? new with `@classmethod def "
    r"upgrade\(cls, old\)`.*, or give the operator another name and drop the state of this one "
    r'with \.option\("braided\.dropOperators", "Totals"\), or use a new checkpointLocation'
)


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_change_that_loses_something_is_refused_and_does_no_harm(lab: Lab, kind: str) -> None:
    first = version(1) if kind == "rows" else column_version(1)
    became = "int became str" if kind == "rows" else "int64 became string"
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1)])
    source = braided.stream(feed.frame()).groupBy("k")
    flow = source.apply(first, SCHEMA)
    lab.run(flow, "noop")
    misfit = "operator 'Totals' does not fit the state in this checkpoint: "
    advice = ADVICE.format("state" if kind == "rows" else "columns")
    changed = source.apply(changed_type(kind), SCHEMA)
    assert re.fullmatch(f"{misfit}count: {became}. {advice}", refusal(lab, changed))
    assert re.fullmatch(
        rf"{misfit}it has none of the fields that are stored \(count: int.*, sum: int.*\), "
        rf"as if it were another operator. {advice}",
        refusal(lab, source.apply(other(kind), SCHEMA)),
    )
    watermarked = feed.frame().selectExpr("k", "v", "timestamp_seconds(v) AS ts")
    events = braided.stream(watermarked.withWatermark("ts", "1 second")).groupBy("k")
    by_events = refusal(lab, events.apply(first, SCHEMA, timeMode="EventTime"))
    assert by_events.startswith("operator 'Totals' has timeMode='ProcessingTime'")
    feed.add([("a", 2)])
    lab.run(flow, "noop")
    assert lab.state(flow) == {("a",): {"count": 2, "sum": 3}}
    _check_dropped(lab, feed, source.apply(changed_type(kind), SCHEMA).name("anew"))


def refusal(lab: Lab, stream: braided.Stream) -> str:
    """The first line that a user sees of it."""
    with pytest.raises(CheckpointMismatchError) as caught:
        lab.start(stream, "noop")
    return str(caught.value).splitlines()[0]


def _check_dropped(lab: Lab, feed: Feed, anew: braided.Stream) -> None:
    """The advice of the error that refuses a changed type leads somewhere."""
    said = refusal(lab, anew)
    assert "'Totals'" in said.split(":")[0], said
    assert '.option("braided.dropOperators", "Totals")' in said
    before = committed_view(lab.checkpoint).batch
    feed.add([("b", 3)])
    with lab.running(anew, "noop", dropOperators="Totals") as query:
        query.processAllAvailable()
        assert list(query.routing()) == ["anew"]
    assert list(committed_view(lab.checkpoint).operators) == ["anew"]
    lab.run(anew, "noop", dropOperators="Totals")  # the option may stay
    # The state is there as long as the batches that had it are.
    old = braided.state(lab.checkpoint, lab.spark, "Totals", version=before)
    assert [(row.key.k, row.state["count"]) for row in old.collect()] == [("a", 2)]


def changed_type(kind: str) -> Any:
    if kind == "columns":

        class Totals(braided.ColumnOperator):
            count: pa.string() = ""
            sum: pa.int64() = 0

            def onRows(self, state: Any, rows: Any, index: Any) -> None: ...

        return Totals

    class Totals(braided.Operator):  # type: ignore[no-redef]
        count: str = ""
        sum: int = 0

        def onRow(self, row: Any) -> None: ...

    return Totals


def other(kind: str) -> Any:
    if kind == "columns":

        class Totals(braided.ColumnOperator):
            last: pa.date32() = None

            def onRows(self, state: Any, rows: Any, index: Any) -> None: ...

        return Totals

    class Totals(braided.Operator):  # type: ignore[no-redef]
        last: dt.date | None = None

        def onRow(self, row: Any) -> None: ...

    return Totals

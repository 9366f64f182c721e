"""Parameters and lookups of operators on Spark."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import Broadcast
from pyspark.errors import StreamingQueryException

import braided
from braided.errors import OperatorDefinitionError, OperatorError
from support.stream_harness import Feed, Lab, manifests_of

SCHEMA = "k string, v int"
ROWS = [(k, v) for v in range(3) for k in "abcdefgh"]


def test_a_parameter_may_be_a_broadcast_and_change_at_a_restart(lab: Lab) -> None:
    class Above(braided.Operator):
        limit: braided.Param[int] = 0
        names: braided.Param[Broadcast[dict[str, str]]]
        seen: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            if row.v > self.limit:
                self.seen += 1
                yield self.names.value[row.k], self.seen

    feed = lab.feed(SCHEMA)
    names = lab.spark.sparkContext.broadcast({k: k.upper() for k in "abcdefgh"})
    feed.add(ROWS)

    def flow(**params: Any) -> braided.Stream:
        above = Above.with_(names=names, **params)
        # A second operator makes the first one's output tagged: another function, made later.
        return (
            braided.stream(feed.frame())
            .groupBy("k")
            .apply(above, SCHEMA)
            .groupBy("k")
            .apply(above.with_(names=swapped, limit=0), SCHEMA)
            .name("Again")
        )

    swapped = lab.spark.sparkContext.broadcast({k.upper(): k * 2 for k in "abcdefgh"})
    lab.run(flow(), channels=2)
    first = lab.rows()
    assert sorted(first) == sorted((k * 2, n) for k in "abcdefgh" for n in (1, 2))
    feed.add(ROWS)
    lab.run(flow(limit=1))
    assert lab.state(flow(), "Above") == {(k,): {"seen": 3} for k in "abcdefgh"}
    source = braided.stream(feed.frame()).groupBy("k")
    with pytest.raises(OperatorDefinitionError, match=r"Above\.names has no value"):
        source.apply(Above, SCHEMA)


def test_lookups_are_opened_once_per_task_and_closed_also_after_an_error(
    lab: Lab, tmp_path: Path
) -> None:
    class Lookup(braided.Operator):
        where: braided.Param[str]
        count: int = 0

        def onOpen(self) -> dict[str, str]:
            self.note("open")
            return {"by": str(os.getpid())}

        def onRow(self, row: Any) -> Iterator[Any]:
            if row.v == 99:
                raise ValueError("99")
            self.count += 1
            yield row.k, len(self.opened)

        def onClose(self) -> None:
            self.note(f"close{len(self.opened)}")

        def note(self, what: str) -> None:
            """Leaves a file for every call, by which tasks can be counted from outside."""
            (Path(self.where) / f"{what}-{uuid.uuid4().hex}").touch()

    notes = tmp_path / "notes"
    notes.mkdir()

    def counted() -> tuple[int, int]:
        names = [path.name.split("-")[0] for path in notes.iterdir()]
        return names.count("open"), names.count("close1")

    def flow(feed: Feed) -> braided.Stream:
        lookup = Lookup.with_(where=str(notes))
        return braided.stream(feed.frame()).groupBy("k").apply(lookup, SCHEMA)

    feed = lab.feed(SCHEMA)
    feed.add(ROWS)
    query = lab.start(flow(feed), channels=2)
    query.processAllAvailable()
    assert counted() == (2, 2)  # eight keys, two channels
    feed.add([("a", 1)])
    query.processAllAvailable()
    assert counted() == (3, 3)  # a channel without a key opens nothing
    feed.add([("a", 1), ("a", 99)])
    with pytest.raises(StreamingQueryException) as caught:
        query.processAllAvailable()
    assert isinstance(caught.value.__cause__, OperatorError)
    assert counted() == (4, 4)
    assert max(manifests_of(lab.checkpoint)) == 1

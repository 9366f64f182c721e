"""Output that waits to be published when the query starts with its sinks in another order."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame

import braided
from braided.api.writer import StreamWriter
from braided.errors import CheckpointMismatchError
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import Prepared
from braided.store.history.manifest_log import ManifestLog
from support.power_cut import cut_at
from support.sqlite_source import rows_in, session_with_delta
from support.stream_harness import Feed, Lab, manifests_of, output_of
from support.stream_operators import SCHEMA, Totals

ROWS = [("ab"[i % 2], 0, i, i) for i in range(6)]
TOTALS = [
    ("a", 1, 0, 0), ("b", 1, 1, 1), ("a", 2, 2, 2), ("b", 2, 4, 3), ("a", 3, 6, 4), ("b", 3, 9, 5),
]  # fmt: skip
OF_A = [row for row in TOTALS if row[0] == "a"]
OF_B = [row for row in TOTALS if row[0] == "b"]


class Query:
    """A flow with three sinks: the rows of a, those of b, and all to a function."""

    def __init__(self, lab: Lab, feed: Feed) -> None:
        self.lab = lab
        self.taken: dict[int, list[Any]] = {}
        frame = feed.frame(maxFilesPerTrigger=1)
        self._stream = braided.stream(frame).groupBy("k").apply(Totals, SCHEMA)

    def writers(self) -> dict[str, StreamWriter]:
        def take(df: DataFrame, batch: int) -> None:
            self.taken[batch] = sorted(map(tuple, df.collect()))

        files = {
            k: self._stream.filter(f"k = '{k}'")
            .writeStream.format("parquet")
            .option("path", str(self.lab.out / k))
            for k in "ab"
        }
        return {**files, "function": self._stream.writeStream.foreachBatch(take)}

    def run(self, *order: str) -> None:
        writers = self.writers()
        first, *others = [writers[name] for name in order]
        first.option("checkpointLocation", str(self.lab.checkpoint)).trigger(availableNow=True)
        braided.start(first, *others).awaitTermination()

    def check_all_is_where_it_belongs(self) -> None:
        for k, rows in (("a", OF_A), ("b", OF_B)):
            published = output_of(self.lab.out / k).values()
            assert sorted(row for batch in published for row in batch) == rows
        assert [self.taken[batch] for batch in sorted(self.taken)] == [
            sorted(TOTALS[:4]),
            sorted(TOTALS[4:]),
        ]


@pytest.fixture
def query(lab: Lab) -> Query:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:])
    return Query(lab, feed)


def as_written_earlier(lab: Lab, names: list[str]) -> None:
    """Makes the newest manifest one of an earlier version, which named sinks by class and position.

    In a copy of the checkpoint: a process takes notice when a manifest that it knows is another.
    """
    lab.checkpoint = shutil.copytree(lab.checkpoint, lab.home / "earlier")
    manifest = manifests_of(lab.checkpoint).popitem()[1]
    outputs = tuple(
        Prepared(name, output.entries) for name, output in zip(names, manifest.outputs, strict=True)
    )
    file = lab.checkpoint / "braided" / "manifests" / f"{manifest.batch:08d}.json"
    file.unlink()
    earlier = msgspec.structs.replace(manifest, outputs=outputs)
    ManifestLog(LocalStore(str(lab.checkpoint / "braided"))).write(earlier)
    written = msgspec.json.decode(file.read_bytes())["manifest"]["outputs"]
    assert [set(output) for output in written] == [{"sink", "entries"}] * len(names)


@pytest.mark.parametrize(("point", "nth"), [("after-manifest", 2), ("between-sinks", 3)])
def test_sinks_in_another_order_get_the_output_that_was_made_for_them(
    query: Query, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
        query.run("a", "b", "function")
    query.run("function", "b", "a")
    query.check_all_is_where_it_belongs()


def test_a_sink_that_is_gone_while_its_output_waits_is_asked_for_by_its_path(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_at(monkeypatch, "after-manifest"), pytest.raises(Exception, match="power cut"):
        query.run("a", "b", "function")
    with pytest.raises(CheckpointMismatchError, match=f"batch 0 .*files {query.lab.out}/b"):
        query.run("a", "function")
    query.run("b", "a", "function")
    query.check_all_is_where_it_belongs()


def test_output_that_an_earlier_version_prepared_is_published(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_at(monkeypatch, "after-manifest"), pytest.raises(Exception, match="power cut"):
        query.run("a", "b", "function")
    as_written_earlier(query.lab, ["FileSink-0", "FileSink-1", "ForeachBatchSink-2"])
    with (
        cut_at(monkeypatch, "after-manifest"),  # of the next batch: the first comes again
        pytest.raises(Exception, match="power cut"),
    ):
        query.run("a", "b", "function")
    assert [(o.sink, o.kind) for o in manifests_of(query.lab.checkpoint)[1].outputs] == [
        ("FileSink-0", "files"),
        ("FileSink-1", "files"),
        ("ForeachBatchSink-2", "foreachBatch"),
    ]
    query.run("function", "b", "a")
    query.check_all_is_where_it_belongs()


@pytest.fixture
def with_delta(lab: Lab) -> Iterator[Lab]:
    with Lab(session_with_delta(lab.spark), lab.home) as other:
        yield other


def test_a_delta_table_that_an_earlier_version_wrote_gets_no_batch_twice(
    with_delta: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, path = with_delta, str(with_delta.home / "rows.db")
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:])
    stream = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)

    def run() -> None:
        writer = stream.writeStream.format("delta").trigger(availableNow=True)
        writer.options(checkpointLocation=str(lab.checkpoint), path=path).start().awaitTermination()

    with cut_at(monkeypatch, "after-publish"), pytest.raises(Exception, match="power cut"):
        run()
    application = f"{manifests_of(lab.checkpoint)[0].flow}/DeltaSink"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE versions SET app = ?", [application])
    as_written_earlier(lab, ["DeltaSink"])
    run()
    assert sorted(rows_in(path)) == sorted(TOTALS)
    assert rows_in(path, "versions") == [(application, "0"), (application, "1")]

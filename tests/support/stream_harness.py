"""Runs flows batch by batch in tests, and reads back what they left: output and state.

A `Feed` is a directory of Parquet files that a streaming DataFrame reads; `add` makes one more
batch of rows arrive, whole. A `Lab` starts queries on a feed and knows their directories.
Everything is read from files, without the code that wrote them where that is possible.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import braided
from braided.api.query import ElasticQuery
from braided.flow.graph import flow_of
from braided.spark.arrow_types import to_arrow_schema
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import Manifest, View
from braided.store.history.manifest_log import ManifestLog
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.store.slots.layout import timer_parts, unwrap
from braided.tasks.rows import RowFactory
from braided.testing.kinds import tested_kind

__all__ = [
    "Feed",
    "Lab",
    "State",
    "committed_view",
    "last_batch",
    "manifests_of",
    "output_of",
    "rows_by_batch",
    "state_of",
    "timers_of",
    "wait_until",
]

State = dict[tuple[Any, ...], dict[str, Any]]
Rows = Sequence[tuple[Any, ...]]


class Feed:
    """A source that is fed batch by batch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str | StructType) -> None:
        self.directory = directory
        self.schema = spark.createDataFrame([], schema).schema
        self._spark = spark
        self._arrow = to_arrow_schema(self.schema)
        self._added = len(list(directory.glob("[0-9]*"))) if directory.exists() else 0
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Rows, files: int = 1) -> None:
        """More rows arrive, all at once, dealt out to several files in turn."""
        name = f"{self._added:05d}"
        self._added += 1
        hidden = self.directory.parent / f".{self.directory.name}-{name}"
        hidden.mkdir()
        for number in range(files):
            dealt = list(rows)[number::files]
            columns = list(zip(*dealt, strict=True)) or [()] * len(self._arrow)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, self._arrow, strict=True)
            ]
            table = pa.Table.from_arrays(arrays, schema=self._arrow)
            pq.write_table(table, hidden / f"{number}.parquet")
        os.replace(hidden, self.directory / name)  # a directory appears whole

    def frame(self, **options: Any) -> DataFrame:
        """The stream; `maxFilesPerTrigger=1` makes a batch of every file."""
        reader = self._spark.readStream.schema(self.schema).options(**options)
        return reader.parquet(f"{self.directory}/*")


class Lab:
    """Starts queries on directories of their own."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.checkpoint = home / "checkpoint"
        self.out = home / "out"
        self.root = Path("/")
        """What the paths in the log of a file sink are below."""
        self._started: list[ElasticQuery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for query in self._started:
            if query.isActive:
                query.stop()

    def address(self, path: Path) -> str:
        """What a query calls a path."""
        return str(path)

    def feed(self, schema: str | StructType, name: str = "in") -> Feed:
        return Feed(self.spark, self.home / name, schema)

    def start(
        self,
        stream: braided.Stream,
        sink: str | Callable[[DataFrame, int], None] = "parquet",
        trigger: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ElasticQuery:
        """Starts a query; `channels=5` stands for the option braided.channels."""
        writer = stream.writeStream
        if callable(sink):
            writer.foreachBatch(sink)
        else:
            writer.format(sink).option("path", self.address(self.out))
        writer.option("checkpointLocation", self.address(self.checkpoint))
        for name, value in options.items():
            writer.option(f"braided.{name}", value)
        if trigger:
            writer.trigger(**trigger)
        query = writer.start()
        self._started.append(query)
        return query

    @contextmanager
    def running(self, stream: braided.Stream, *args: Any, **kwargs: Any) -> Iterator[ElasticQuery]:
        """A query from start to stop."""
        query = self.start(stream, *args, **kwargs)
        try:
            yield query
        finally:
            query.stop()

    def run(self, stream: braided.Stream, *args: Any, **kwargs: Any) -> ElasticQuery:
        """Everything that is there, then the end."""
        query = self.start(stream, *args, trigger={"availableNow": True}, **kwargs)
        query.awaitTermination()
        return query

    # -- what a query left -----------------------------------------------------------------

    def output(self) -> dict[int, list[tuple[Any, ...]]]:
        return output_of(self.out, self.root)

    def rows(self) -> list[tuple[Any, ...]]:
        """All output, batch after batch."""
        return [row for batch in self.output().values() for row in batch]

    def state(self, stream: braided.Stream, operator: str | None = None) -> State:
        """The committed state of one operator: the only one if none is named."""
        return state_of(self.checkpoint, stream, operator)


# -- output --------------------------------------------------------------------------------------


def output_of(path: Path, root: Path = Path("/")) -> dict[int, list[tuple[Any, ...]]]:
    """What readers of a Parquet sink see, by batch and in order, from its `_spark_metadata`."""
    log = path / "_spark_metadata"
    if not log.exists():
        return {}
    entries = {
        int(file.name.removesuffix(".compact")): file
        for file in sorted(log.iterdir())
        if file.name.removesuffix(".compact").isdigit()
    }
    seen: set[str] = set()
    found: dict[int, list[tuple[Any, ...]]] = {}
    for batch in sorted(entries):
        listed = [json.loads(line)["path"] for line in entries[batch].read_text().split("\n")[1:]]
        found[batch] = []
        for uri in listed:
            if uri not in seen:
                seen.add(uri)
                table = pq.ParquetFile(root / unquote(urlparse(uri).path).lstrip("/")).read()
                found[batch] += zip(*[c.to_pylist() for c in table.columns], strict=True)
    return found


def rows_by_batch(feed: Feed, checkpoint: Path, batches: Sequence[int]) -> dict[int, list[Any]]:
    """Which rows of a feed Spark gave to which batch, in the order of the files."""
    arrived: dict[int, list[Path]] = {}
    for log in (checkpoint / "sources" / "0").iterdir():
        if log.name.removesuffix(".compact").isdigit():
            for line in log.read_text().split("\n")[1:]:
                entry = json.loads(line)
                files = arrived.setdefault(int(entry["batchId"]), [])
                path = Path(unquote(urlparse(entry["path"]).path))
                if path not in files:
                    files.append(path)
    found: dict[int, list[Any]] = {}
    done = -1
    for batch in batches:
        source = (checkpoint / "offsets" / str(batch)).read_text().split("\n")[2]
        until = -1 if source == "-" else int(json.loads(source)["logOffset"])
        paths = [p for log in range(done + 1, until + 1) for p in sorted(arrived[log])]
        done = max(done, until)
        found[batch] = [
            row
            for path in paths
            for row in zip(*[c.to_pylist() for c in pq.read_table(path).columns], strict=True)
        ]
    return found


# -- state ---------------------------------------------------------------------------------------


def manifests_of(checkpoint: Path) -> dict[int, Manifest]:
    """Every manifest that is there, by batch."""
    manifests = ManifestLog(LocalStore(str(checkpoint / "braided")))
    return {batch: manifests.read(batch) for batch in manifests.batches()}


def committed_view(checkpoint: Path) -> View:
    manifests = ManifestLog(LocalStore(str(checkpoint / "braided")))
    newest = manifests.newest()
    return View.empty() if newest is None else manifests.view_at(newest)


def state_of(checkpoint: Path, stream: braided.Stream, operator: str | None = None) -> State:
    """The committed state, key to fields, from the durable files alone (no cache)."""
    return {key: fields for key, (fields, _) in _records(checkpoint, stream, operator).items()}


def timers_of(
    checkpoint: Path, stream: braided.Stream, operator: str | None = None
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The pending timers (ms) of the keys that have some."""
    records = _records(checkpoint, stream, operator)
    return {key: timers for key, (_, timers) in records.items() if timers}


def _records(
    checkpoint: Path, stream: braided.Stream, operator: str | None
) -> dict[tuple[Any, ...], tuple[dict[str, Any], tuple[int, ...]]]:
    steps = {step.name: step for step in flow_of([stream._node]).steps}
    name = operator if operator is not None else next(iter(steps))
    step = steps[name]
    view = committed_view(checkpoint).operators.get(name)
    if view is None:
        return {}
    keys = KeyCodec(to_arrow_schema(step.key_schema))
    rows = RowFactory(step.key_schema)
    kind = tested_kind(step.operator)
    state = ChannelState(
        LocalStore(str(checkpoint / "braided")), None, name, view, SnapshotLimits()
    )
    found: dict[tuple[Any, ...], tuple[dict[str, Any], tuple[int, ...]]] = {}
    count = size = 0
    for slot in range(view.meta.slots):
        items = list(state.slot(slot).scan(b""))
        size += sum(len(suffix) + len(value) for suffix, value in items)
        index, recorded = set(), set()
        for suffix, value in items:
            if suffix[:1] == b"t":
                index.add(timer_parts(suffix, value))
                continue
            count += 1
            raw_key, record = unwrap(suffix, value)
            fields, timers = kind.fields(record, view.meta.history)
            recorded |= {(ms, raw_key) for ms in timers}
            key = _hashable(rows.rows_of(keys.decode_batch([raw_key]))[0])
            assert key not in found, f"key {key} is stored twice"
            found[key] = fields, tuple(timers)
        assert index == recorded, f"slot {slot}: timers of records and of the index differ"
        assert view.due.get(slot) == min((ms for ms, _ in index), default=None)
    assert (view.keys, view.bytes) == (count, size), "the manifest's totals are wrong"
    return found


def _hashable(value: Any) -> Any:
    """A key as plain tuples; lists and bytearrays in it can't be looked up."""
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    return bytes(value) if isinstance(value, bytearray) else value


def last_batch(query: Any) -> Any:
    """The progress of the newest batch that ran. After ten seconds without one, the last progress
    is another: that Spark looked for input in vain.
    """
    return [p for p in query.recentProgress if "addBatch" in p["durationMs"]][-1]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
    """Polls, bounded, for something that a running query does."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(0.01)

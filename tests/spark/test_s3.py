"""Queries whose checkpoint and output are in an object store: a real server, reached by s3a."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import braided
from braided.bench.s3_server import S3Server
from braided.errors import CheckpointReadError, FencedError, LateWriteError, UnsupportedError
from braided.query.admission import Admission, Admitted
from braided.steering import event_log
from braided.store.durable import epoch_lease
from braided.store.durable.epoch_lease import EpochLease
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store
from support.bad_input_harness import Superstitious, Tally
from support.chaos.store_proxy import Misbehaviour, StoreProxy, proxied
from support.s3 import S3Lab
from support.stream_harness import Feed, Lab, committed_view, manifests_of

SCHEMA = "k string, v bigint"
OUTPUT = "k string, count bigint, total bigint"
KEYS = [f"k{n}" for n in range(20)]


def _flow(feed: Feed, operator: type = Tally) -> braided.Stream:
    stream = braided.stream(feed.frame(maxFilesPerTrigger=1))
    return stream.groupBy("k").apply(operator, OUTPUT).name("tally")


def _arrive(feed: Feed, *values: int) -> None:
    for value in values:
        feed.add([(k, value) for k in KEYS])


def test_a_query_in_an_object_store_is_the_same_as_on_a_disk(
    lab: Lab, s3_lab: S3Lab, s3_server: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    feed = lab.feed(SCHEMA)
    _arrive(feed, 1, 13, 2)
    flow = _flow(feed, Superstitious)
    begun = len(s3_server.requests())
    for each in (lab, s3_lab):
        settings = {"slots": 16, "channels": 2, "onError": "divert", "fullManifestEvery": 2}
        query = each.start(flow, **settings, **{"cache.dir": str(tmp_path / "cache-1")})
        query.processAllAvailable()
        query.rescale(3)  # a move, by way of objects
        query.processAllAvailable()
        query.stop()
    requests = s3_server.requests(begun)
    _arrive(feed, 4)
    for each in (lab, s3_lab):
        # Without its cache: everything is read back.
        each.run(flow, onError="divert", **{"cache.dir": str(tmp_path / "cache-2")})
    shown = [{b: sorted(rows) for b, rows in each.output().items()} for each in (lab, s3_lab)]
    assert shown[0] == shown[1]
    assert len(s3_lab.rows()) == 3 * len(KEYS)
    assert s3_lab.state(flow) == lab.state(flow)
    checkpoint = s3_lab.address(s3_lab.checkpoint)
    read = [
        sorted(map(str, braided.state(where, lab.spark).drop("batch").collect()))
        for where in (checkpoint, str(lab.checkpoint))
    ]
    assert read[0] == read[1] and len(read[0]) == len(KEYS)
    assert braided.deadLetters(checkpoint, lab.spark).count() == len(KEYS)
    assert lab.spark.read.parquet(s3_lab.address(s3_lab.out)).count() == 3 * len(KEYS)
    # The controller's events are an object too. What it says of a batch goes by the time it took.
    started, measured = zip(*map(_events_of, (lab.checkpoint, s3_lab.checkpoint)), strict=True)
    assert started[0] == started[1] > 0
    assert measured[0] == measured[1] > 0
    # Credentials are nowhere in what was kept, nor in what was said.
    kept = [path for path in s3_lab.checkpoint.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if b"braided-secret" in path.read_bytes()]
    assert "braided-secret" not in "".join(capfd.readouterr())
    # Nobody reads or writes anything but once: what is asked for does not grow with the slots.
    assert {r.operation for r in requests if r.ours and r.status >= 400} <= {"GetObject"}


def _events_of(checkpoint: Path) -> tuple[int, int]:
    """How often the controller noted a start, and a batch that it measured."""
    lines = (checkpoint / "braided" / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    return kinds.count("started"), kinds.count("measured")


def test_requests_per_batch_do_not_grow_with_slots_or_keys(
    spark: SparkSession, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those that come by the clock, whatever there is to do."""
    for module, name in ((epoch_lease, "RENEWED_EVERY_S"), (event_log, "WRITTEN_EVERY_S")):
        monkeypatch.setattr(module, name, 1e9)
    channels, batches = 2, 6
    asked = []
    for slots, keys in ((64, 100), (1024, 20_000)):
        with S3Lab(spark, tmp_path / f"{slots}-{keys}", s3_server) as lab:
            feed = lab.feed(SCHEMA)
            feed.add([(f"k{n}", 1) for n in range(keys)])
            _arrive(feed, 1)
            with lab.running(_flow(feed), slots=slots, channels=channels) as query:
                query.processAllAvailable()
                begun = len(s3_server.requests())
                _arrive(feed, *range(batches))
                query.processAllAvailable()
                requests = s3_server.requests(begun)
            assert committed_view(lab.checkpoint).operators["tally"].keys == keys
        asked.append(Counter(request.operation for request in requests if request.ours))
    assert asked[0] == asked[1]
    assert 0 < asked[0].total() <= (3 * channels + 6) * batches


def test_a_query_is_given_what_its_store_needs_and_its_tasks_use_it(
    s3_lab: S3Lab, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given wins over the session's settings: here another way to the same server."""
    asked, begin = [], StoreProxy.begin_request

    def counted(proxy: StoreProxy) -> Misbehaviour | None:
        asked.append(proxy)
        return begin(proxy)

    monkeypatch.setattr(StoreProxy, "begin_request", counted)
    feed = s3_lab.feed(SCHEMA)
    _arrive(feed, 1, 2)
    begun = len(s3_server.requests())
    with proxied(s3_server.endpoint) as proxy:
        given = {**s3_server.settings, "endpoint": proxy.endpoint}
        options = {f"store.{name}": value for name, value in given.items()}
        s3_lab.run(_flow(feed), "noop", **options)  # a place for output has the session's settings
    ours = [request for request in s3_server.requests(begun) if request.ours]
    assert any("/state/" in request.key for request in ours)  # tasks write these
    assert len(asked) >= len(ours)
    assert s3_lab.state(_flow(feed))[(KEYS[0],)]["count"] == 2


def test_state_in_an_object_store_is_a_data_source(s3_lab: S3Lab, s3_server: S3Server) -> None:
    """Whoever reads it is a worker of Spark's, which knows nothing of the session's settings."""
    feed = s3_lab.feed(SCHEMA)
    _arrive(feed, 1, 2)
    s3_lab.run(_flow(feed), channels=2)
    s3_lab.spark.dataSource.register(braided.StateSource)
    reader = s3_lab.spark.read.format("braided")
    for name, value in s3_server.settings.items():
        reader.option(f"braided.store.{name}", value)
    rows = reader.load(s3_lab.address(s3_lab.checkpoint)).collect()
    assert sorted((row.key.k, row.state["count"]) for row in rows) == [(k, 2) for k in sorted(KEYS)]


def test_what_foreach_batch_gets_waits_in_the_object_store(s3_lab: S3Lab) -> None:
    feed = s3_lab.feed(SCHEMA)
    _arrive(feed, 1, 2)
    seen: list[tuple[int, int]] = []

    def take(rows: DataFrame, batch: int) -> None:
        seen.append((batch, rows.count()))
        if len(seen) == 2:
            raise RuntimeError("not this time")

    with pytest.raises(Exception, match="not this time"):
        s3_lab.run(_flow(feed), take)
    s3_lab.run(_flow(feed), take)  # at once: the query that failed has given its lease back
    assert seen == [(0, len(KEYS)), (1, len(KEYS)), (1, len(KEYS))]


def test_a_second_query_is_refused_and_takes_over_when_told(s3_lab: S3Lab) -> None:
    feed = s3_lab.feed(SCHEMA)
    _arrive(feed, 1)
    flow = _flow(feed)
    first = s3_lab.start(flow)
    first.processAllAvailable()
    with pytest.raises(FencedError, match=r"is held by query on s3a://.*braided\.takeover"):
        s3_lab.start(flow)
    second = s3_lab.start(flow, "noop", takeover=True)
    second.processAllAvailable()
    assert not first.isActive  # of two in one process, Spark itself ends the first
    _arrive(feed, 2)
    second.processAllAvailable()
    second.stop()
    newest = manifests_of(s3_lab.checkpoint)[max(manifests_of(s3_lab.checkpoint))]
    assert "epoch 2" in newest.writer
    assert s3_lab.state(flow)[(KEYS[0],)]["count"] == 2


def test_a_query_that_is_taken_over_from_while_idle_says_by_whom(
    s3_lab: S3Lab, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_lease, "RENEWED_EVERY_S", 0.1)
    feed = s3_lab.feed(SCHEMA)
    flow = _flow(feed)
    _arrive(feed, 1)
    query = s3_lab.start(flow)
    query.processAllAvailable()
    checkpoint = open_store(s3_lab.address(s3_lab.checkpoint), s3_server.settings)
    heir = EpochLease.acquire(checkpoint.below("braided"), "the heir", takeover=True)
    said = r"the heir \(pid .* has taken over s3a://"
    with pytest.raises(StreamingQueryException, match=said):
        query.awaitTermination(180)
    with pytest.raises(StreamingQueryException, match=said):
        query.processAllAvailable()
    error = query.exception()
    assert error is not None and isinstance(error.__cause__, FencedError)
    heir.release()
    # What it was about to write comes when the heir has looked, and is noticed by Spark.
    query = s3_lab.start(flow)
    query.processAllAvailable()
    checkpoint.put("sources/0/1", b"v1")
    _arrive(feed, 2)
    with pytest.raises(StreamingQueryException, match=r"^LateWriteError: an entry") as caught:
        query.processAllAvailable()
    assert isinstance(caught.value.__cause__, LateWriteError)
    assert "Start the query again" in str(caught.value.__cause__)
    s3_lab.run(flow)
    assert s3_lab.state(flow)[(KEYS[0],)]["count"] == 2


def test_input_is_read_once_after_a_late_write_of_a_driver_that_was_taken_over_from(
    s3_lab: S3Lab, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's source of files notes in `sources/0/<n>` which files it has taken, by a copy in the
    store that replaces what is there. The copy of a driver that stood still, or was held up on its
    way, comes when its heir has written the same entry with more files in it. The next start would
    believe the entry, and read the others again.
    """
    feed = s3_lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Tally, OUTPUT).name("tally")
    checkpoint = open_store(s3_lab.address(s3_lab.checkpoint), s3_server.settings)
    _arrive(feed, 1)
    s3_lab.run(flow)
    _arrive(feed, 2, 3)
    s3_lab.run(flow)
    _write_late(checkpoint, "sources/0/1", lines=3)
    with caplog.at_level(logging.WARNING, "braided"):
        s3_lab.run(flow)
    assert "sources/0/1 in s3a://" in caplog.text and "put back" in caplog.text
    assert s3_lab.state(flow)[(KEYS[0],)]["count"] == 3


def test_offsets_that_were_replaced_before_they_were_looked_at_are_not_committed(
    s3_lab: S3Lab, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was taken over from planned the same batch, and had no input for it yet."""
    feed = s3_lab.feed(SCHEMA)
    flow = _flow(feed)
    checkpoint = open_store(s3_lab.address(s3_lab.checkpoint), s3_server.settings)
    _arrive(feed, 1)
    s3_lab.run(flow)
    _arrive(feed, 2)
    admit = Admission.admit

    def late(self: Admission, df: DataFrame, batch: int, *rest: Any) -> Admitted:
        [before, own] = [bytes(checkpoint.get(f"offsets/{b}")).decode() for b in (batch - 1, batch)]
        position, tick = before.split("\n")[2], own.rpartition("\n")[2]
        other = "\n".join([*own.split("\n")[:2], position, tick])
        assert other != own
        checkpoint.put(f"offsets/{batch}", other.encode())
        return admit(self, df, batch, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Admission, "admit", late)
        query = s3_lab.start(flow, "noop")
        with pytest.raises(StreamingQueryException, match=r"^LateWriteError: the offsets of batch"):
            query.awaitTermination(120)
    for _ in range(2):
        s3_lab.run(flow)
    assert s3_lab.state(flow)[(KEYS[0],)]["count"] == 2


def test_input_is_read_once_after_late_writes_that_were_compacted(
    s3_lab: S3Lab, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Every so often an entry has the files of all before it. One of those may be replaced, or be
    made of one that was.
    """
    feed, other = s3_lab.feed(SCHEMA), s3_lab.feed(SCHEMA, "other")
    stream = braided.stream(other.frame()).union(braided.stream(feed.frame()))
    flow = stream.groupBy("k").apply(Tally, OUTPUT).name("tally")
    checkpoint = open_store(s3_lab.address(s3_lab.checkpoint), s3_server.settings)
    every = "spark.sql.streaming.fileSource.log.compactInterval"
    s3_lab.spark.conf.set(every, "2")
    try:
        _arrive(feed, 1, 2)
        _arrive(other, 1)
        s3_lab.run(flow)
        _write_late(checkpoint, "sources/1/0", lines=3)
        _arrive(feed, 3, 4)
        s3_lab.run(flow)
        # Compacted, and replaced by one that was made of the entry before as it was replaced.
        _write_late(checkpoint, "sources/1/1.compact", lines=5)
        with s3_lab.running(flow) as query:
            # In one, so that they are seen together.
            feed.add([(k, value) for value in (5, 6) for k in KEYS], files=2)
            query.processAllAvailable()
            _write_late(checkpoint, "sources/1/2", lines=3)
            _arrive(feed, 7)
            query.processAllAvailable()
        made = bytes(checkpoint.get("sources/1/3.compact")).decode().split("\n")
        assert len(made) == 1 + 4 + 1 + 1  # of what was replaced: a file is missing
        caplog.clear()
        with caplog.at_level(logging.WARNING, "braided"):
            s3_lab.run(flow)
    finally:
        s3_lab.spark.conf.unset(every)
    assert "sources/1/3.compact in s3a://" in caplog.text
    assert s3_lab.state(flow)[(KEYS[0],)]["count"] == 7 + 1
    # Copies are of a few entries, and go with the manifests that name them.
    assert len(committed_view(s3_lab.checkpoint).sources) <= 2 * 4


def _write_late(checkpoint: Store, name: str, lines: int) -> None:
    """An entry of so many lines, as written by a driver that has not seen the newest file."""
    *earlier, last = bytes(checkpoint.get(name)).decode().split("\n")
    assert len(earlier) + 1 == lines and "parquet" in last
    checkpoint.put(name, "\n".join(earlier).encode())


def test_a_store_that_can_not_be_reached_is_named_at_start(lab: Lab, s3_server: S3Server) -> None:
    flow = _flow(lab.feed(SCHEMA))
    writer = flow.writeStream.format("noop")
    writer.option("checkpointLocation", f"{s3_server.url}/refused")
    for name in ("secret_access_key", "SECRET_ACCESS_KEY"):
        with pytest.raises(CheckpointReadError, match=r"s3a://bucket/refused") as caught:
            writer.option(f"braided.store.{name}", "wrong-secret").start()
        assert "wrong-secret" not in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"dbfs.*What works"):
        writer.option("checkpointLocation", "dbfs:/x").start()

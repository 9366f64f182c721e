"""Checkpoints that are damaged, not ours, not writable or held by somebody else.

Each is refused by a typed error that names the file and what to do, never by a silent new start;
and when the damage is mended, the query goes on to the result it would have had without.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F

import braided
from braided.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointVersionError,
    CheckpointWriteError,
    FencedError,
)
from braided.store.durable.local_lease import LocalLease
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import FORMAT
from braided.store.history.runs import LOG_SUFFIX, SNAP_SUFFIX, batch_of, digest_of
from support.bad_input_harness import Tally, failure, fill, read_only, small_disk
from support.stream_harness import Feed, Lab, committed_view, last_batch, manifests_of

SCHEMA = "k string, v bigint"
OUTPUT = "k string, count bigint, total bigint"
KEYS = [f"key {n}" for n in range(24)]
BATCHES = 4


class Story:
    """A query that has run some batches and is to go on after something has happened to it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.feed: Feed = lab.feed(SCHEMA)
        self.flow = (
            braided.stream(self.feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Tally, OUTPUT)
        )
        self.braided = lab.checkpoint / "braided"
        self._added = 0

    def arrive(self, batches: int = 1) -> None:
        for _ in range(batches):
            self._added += 1
            self.feed.add([(k, self._added) for k in KEYS])

    def run(self, **options: Any) -> Any:
        """Goes on to the end, with a cache that knows nothing."""
        return self.lab.run(self.flow, **self._fresh(), **options)

    def failure(self, **options: Any) -> Any:
        return failure(self.lab, self.flow, **self._fresh(), **options)

    def check(self) -> None:
        """Everything that arrived has been counted once."""
        sums = [sum(range(n + 1)) for n in range(self._added + 1)]
        assert self.lab.state(self.flow) == {
            (k,): {"count": self._added, "total": sums[-1]} for k in KEYS
        }
        assert sorted(self.lab.rows()) == sorted(
            (k, n, sums[n]) for k in KEYS for n in range(1, self._added + 1)
        )

    def refused(self, kind: type[Exception], *words: str) -> None:
        """`start()` refuses, naming these."""
        with pytest.raises(kind) as raised:
            self.run()
        assert type(raised.value) is kind
        for word in words:
            assert word in str(raised.value)

    def manifest(self, batch: int) -> Path:
        return self.braided / "manifests" / f"{batch:08d}.json"

    def live(self, suffix: str) -> list[Path]:
        """The files that the state is made of now, oldest first."""
        names = committed_view(self.lab.checkpoint).operators["Tally"].live_files()
        found = [name for name in names if name.endswith(suffix)]
        return [self.braided / name for name in sorted(found, key=lambda n: batch_of(n) or 0)]

    def _fresh(self) -> dict[str, Any]:
        number = len(list(self.lab.home.glob("cache-*")))
        directory = self.lab.home / f"cache-{number}"
        directory.mkdir()
        return {"cache.dir": str(directory)}


@pytest.fixture
def story(lab: Lab) -> Story:
    story = Story(lab)
    story.arrive(BATCHES)
    story.run(slots=4, channels=2, fullManifestEvery=2)
    assert [m.full for m in manifests_of(lab.checkpoint).values()] == [True, False, True, False]
    story.arrive()
    return story


class Taken:
    """A file that is gone for a while."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = path.read_bytes()
        path.unlink()

    def restore(self) -> None:
        self._path.unlink(missing_ok=True)
        self._path.write_bytes(self._data)

    def replace(self, data: bytes) -> None:
        self._path.write_bytes(data)

    @property
    def data(self) -> bytes:
        return self._data


# -- damaged files -------------------------------------------------------------------------------


def test_a_truncated_or_altered_changelog_is_named_and_can_be_restored(story: Story) -> None:
    changelog = story.live(LOG_SUFFIX)[-1]
    taken = Taken(changelog)
    half = taken.data[: len(taken.data) // 2]
    altered = bytearray(taken.data)
    altered[len(altered) // 2] ^= 1
    for damage, words in (
        (half, f"has {len(half)} bytes, not the {len(taken.data)}"),
        (b"", "has 0 bytes"),
        (bytes(altered), "checksum does not match"),
        (None, "is missing"),
    ):
        if damage is None:
            changelog.unlink()
        else:
            taken.replace(damage)
        error = story.failure()
        assert isinstance(error, CheckpointCorruptError)
        for word in (str(changelog), words, "of slots ", f"batch {BATCHES - 1}. ", "Restore"):
            assert word in str(error)
    assert list(manifests_of(story.lab.checkpoint)) == list(range(BATCHES))
    taken.restore()
    story.run()
    story.check()


def test_a_deleted_snapshot_is_named_and_can_be_restored(lab: Lab) -> None:
    story = Story(lab)
    story.arrive(3)
    often = {"snapshot.minBytes": 1, "snapshot.factor": 0.01}
    story.run(slots=2, channels=1, **often)
    story.arrive()
    snapshot = story.live(SNAP_SUFFIX)[-1]
    taken = Taken(snapshot)
    error = story.failure()
    assert isinstance(error, CheckpointCorruptError)
    for word in (str(snapshot), "is missing", "slots 0, 1", f"batch {batch_of(snapshot.name)}"):
        assert word in str(error)
    taken.restore()
    story.run(**often)
    story.check()


def test_a_file_that_the_cache_makes_needless_is_not_missed(story: Story) -> None:
    # What only a host without the cache would read is no reason to stop a query that has it.
    cache = {"cache.dir": str(story.lab.home / "kept")}
    story.lab.run(story.flow, **cache)
    taken = Taken(story.live(LOG_SUFFIX)[0])
    story.arrive()
    query = story.lab.run(story.flow, **cache)
    assert last_batch(query)["braided"]["operators"]["Tally"]["rebuilt"] == 0
    taken.restore()
    story.check()


# -- manifests -----------------------------------------------------------------------------------


def test_deleted_manifests_are_no_new_beginning(story: Story) -> None:
    manifests = story.braided / "manifests"
    away = story.lab.home / "away"
    manifests.rename(away)
    story.refused(
        CheckpointMismatchError,
        str(story.lab.checkpoint),
        "4 committed batches",
        "braided/manifests directory was deleted",
        "new checkpointLocation",
    )
    manifests.mkdir()
    story.refused(CheckpointMismatchError, "no manifest")
    manifests.rmdir()
    away.rename(manifests)
    story.run()
    story.check()


def test_a_deleted_braided_directory_is_no_new_beginning(story: Story) -> None:
    away = story.lab.home / "away"
    story.braided.rename(away)
    story.refused(CheckpointMismatchError, "no manifest", "4 committed batches")
    shutil.rmtree(story.braided)
    away.rename(story.braided)
    story.run()
    story.check()


def test_the_newest_manifest_deleted_does_not_fit_what_spark_has_recorded(story: Story) -> None:
    taken = Taken(story.manifest(BATCHES - 1))
    story.refused(
        CheckpointMismatchError,
        str(story.lab.checkpoint),
        "Spark has committed batch 3",
        "newest manifest is of batch 2",
    )
    taken.restore()
    story.run()
    story.check()


def test_what_a_power_cut_takes_of_sparks_own_record_is_restored(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    # Spark does not sync its logs: after a power cut the ends of both may be missing, or files be
    # empty. Hadoop's checksum of what was there stays, or goes as well.
    log = {name: story.lab.checkpoint / name for name in ("commits", "offsets")}

    def take(directory: str, *batches: int) -> None:
        for name in (name for n in batches for name in (f"{n}", f".{n}.crc")):
            (log[directory] / name).unlink(missing_ok=True)

    take("commits", 2, 3)
    take("offsets", 3)
    # Planned and not yet run, and cut off in its last line, which would be the tick.
    cut = (log["offsets"] / "2").read_text().rpartition("\n")[0] + "\n"
    (log["offsets"] / "4").write_text(cut)
    with caplog.at_level(logging.WARNING, "braided"):
        story.run()
    assert "batches 3, 4" in caplog.text and "restored" in caplog.text
    story.check()
    story.arrive()
    newest = max(manifests_of(story.lab.checkpoint))
    take("commits", *range(newest))
    (log["commits"] / str(newest)).write_bytes(b"")
    (story.lab.checkpoint / "metadata").write_bytes(b"")
    take("offsets", *range(newest - 1))
    for number in (newest, newest - 1):
        (log["offsets"] / str(number)).write_bytes(b"")
    (log["offsets"] / f".{newest}.crc").unlink()
    story.run()
    story.check()


def test_a_source_whose_record_was_lost_is_not_read_twice(story: Story) -> None:
    sources = story.lab.checkpoint / "sources" / "0"
    taken = [Taken(sources / str(number)) for number in range(BATCHES)]
    story.refused(CheckpointMismatchError, "batch 3 was committed", str(sources), "read twice")
    for each in taken:
        each.restore()
    story.run()
    story.check()


def test_sparks_record_of_an_earlier_time_is_not_gone_on_with(story: Story) -> None:
    # What earlier versions wrote keeps no offsets: there nothing can be restored.
    for batch in range(BATCHES):
        _rewrite(story, batch)
    taken = Taken(story.lab.checkpoint / "offsets" / "3")
    story.refused(
        CheckpointMismatchError,
        "newest manifest is of batch 3, of which Spark's offsets know nothing",
    )
    taken.restore()
    story.run()
    story.check()


def _rewrite(story: Story, batch: int) -> None:
    """Makes a manifest what it would have been without offsets."""
    before = "" if batch == 0 else json.loads(story.manifest(batch - 1).read_bytes())["checksum"]
    manifest = json.loads(story.manifest(batch).read_bytes())["manifest"]
    del manifest["offsets"]
    story.manifest(batch).write_bytes(_sealed(before, manifest))


def test_a_manifest_missing_in_the_middle_is_named(story: Story) -> None:
    # Batch 2 is a full one: 3 builds on it, and the state of now needs nothing of 1 and 0.
    taken = Taken(story.manifest(2))
    for damage, words in (
        (None, "is missing"),
        (taken.data[:-20], "can't be read"),
        (taken.data.replace(b'"batch":2', b'"batch":7'), "checksum does not match"),
    ):
        if damage is not None:
            taken.replace(damage)
        story.refused(CheckpointCorruptError, str(story.manifest(2)), words, "Restore the file")
    taken.restore()
    # A gap among older ones is what a crash in the middle of collecting leaves: all below goes.
    story.manifest(1).unlink()
    story.run()
    assert not story.manifest(0).exists()
    story.check()


def test_the_newest_manifest_truncated_is_named(story: Story) -> None:
    taken = Taken(story.manifest(BATCHES - 1))
    taken.replace(taken.data[:100])
    story.refused(CheckpointCorruptError, str(story.manifest(BATCHES - 1)), "can't be read")
    taken.restore()
    story.run()
    story.check()


def test_manifests_of_two_histories_do_not_make_one(story: Story) -> None:
    # As when some files were restored from a copy: each is whole, but 3 does not follow this 2.
    taken = Taken(story.manifest(2))
    envelope = json.loads(taken.data)
    envelope["manifest"]["writer"] = "somebody else"
    taken.replace(_sealed(envelope["previous"], envelope["manifest"]))
    story.refused(CheckpointCorruptError, str(story.manifest(3)), "two histories", "from one copy")
    taken.restore()
    story.run()
    story.check()


def test_a_newer_format_is_left_to_a_newer_braided(story: Story) -> None:
    path = story.manifest(BATCHES - 1)
    taken = Taken(path)
    envelope = json.loads(taken.data)
    envelope["manifest"]["format"] = FORMAT + 1
    envelope["manifest"]["something"] = {"only": "the newer one knows"}
    taken.replace(_sealed(envelope["previous"], envelope["manifest"]))
    story.refused(
        CheckpointVersionError, str(path), f"format {FORMAT + 1}", f"up to {FORMAT}", "newer"
    )
    taken.restore()
    story.run()
    story.check()


def _sealed(previous: str, manifest: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(manifest)
    checksum = digest_of(previous.encode() + b"\n" + body)
    return b'{"checksum":"%s","previous":"%s","manifest":%s}' % (
        checksum.encode(),
        previous.encode(),
        body,
    )


# -- somebody else's -----------------------------------------------------------------------------


def test_a_checkpoint_of_a_native_query_is_refused_and_left_as_it_was(lab: Lab) -> None:
    story = Story(lab)
    story.arrive()

    def native() -> None:
        counts = story.feed.frame().groupBy("k").agg(F.count("*").alias("n"))
        writer = counts.writeStream.format("noop").outputMode("update")
        located = writer.option("checkpointLocation", str(lab.checkpoint))
        query = located.trigger(availableNow=True).start()
        query.awaitTermination()
        assert query.lastProgress is None or query.exception() is None

    native()
    story.refused(CheckpointMismatchError, str(lab.checkpoint), "another query wrote it")
    story.arrive()
    native()
    assert len(list((lab.checkpoint / "commits").glob("[0-9]*"))) == 2


def test_a_native_query_that_never_finished_a_batch_is_refused_too(lab: Lab) -> None:
    story = Story(lab)
    story.arrive()

    def fails(rows: Any, batch: int) -> None:
        raise ValueError("on purpose")

    query = (
        story.feed.frame()
        .writeStream.foreachBatch(fails)
        .option("checkpointLocation", str(lab.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination()
    assert (lab.checkpoint / "offsets" / "0").exists()
    with pytest.raises(CheckpointMismatchError, match="another query has begun here"):
        story.run()
    assert not lab.rows()


def test_a_checkpoint_of_another_flow_is_refused_by_operator(story: Story) -> None:
    class Another(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            yield row.k, self.rows, 0

    grouped = braided.stream(story.feed.frame(maxFilesPerTrigger=1)).groupBy("k")
    with pytest.raises(CheckpointMismatchError, match=r"operator 'Tally'.*not in the flow.*'Ano"):
        story.lab.run(grouped.apply(Another, OUTPUT))
    with pytest.raises(CheckpointMismatchError, match=r"operator 'Tally'.*stored \(count"):
        story.lab.run(grouped.apply(Another, OUTPUT).name("Tally"))
    by_number = braided.stream(story.feed.frame(maxFilesPerTrigger=1)).groupBy("v")
    with pytest.raises(CheckpointMismatchError, match=r"operator 'Tally'.*key columns.*v:bigint"):
        story.lab.run(by_number.apply(Tally, OUTPUT))
    story.run()
    story.check()


def test_another_slot_count_is_refused_and_the_old_one_kept_without_the_option(
    story: Story,
) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"'Tally' has 4 slots.*braided\.slots.* 8"):
        story.run(slots=8)
    story.lab.spark.conf.set("spark.braided.slots", "16")
    try:
        with pytest.raises(CheckpointMismatchError, match=r"'Tally' has 4 slots.* 16"):
            story.run()
    finally:
        story.lab.spark.conf.unset("spark.braided.slots")
    query = story.run()
    assert len(query.routing()["Tally"].slots) == 4
    story.check()


def test_the_output_of_another_query_is_not_added_to(lab: Lab, story: Story) -> None:
    shutil.rmtree(lab.checkpoint)
    with pytest.raises(CheckpointMismatchError, match=r"_spark_metadata.*another path") as raised:
        story.run()
    assert str(lab.out) in str(raised.value)


# -- two at once ---------------------------------------------------------------------------------


def test_a_second_query_of_the_process_is_fenced_off_and_the_first_unharmed(lab: Lab) -> None:
    story = Story(lab)
    with lab.running(story.flow, channels=2, slots=4) as first:
        story.arrive()
        first.processAllAvailable()
        for _ in range(2):
            with pytest.raises(FencedError) as raised:
                lab.start(story.flow)
            for word in (str(story.braided / "lease"), f"pid {os.getpid()}", "Stop that query"):
                assert word in str(raised.value)
        story.arrive()
        first.processAllAvailable()
        assert first.exception() is None and first.isActive
    story.arrive()
    story.run()  # stopped: the checkpoint is free
    story.check()


_SECOND = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from pyspark.sql import SparkSession
import braided
from support.bad_input_harness import Tally
from support.stream_harness import Lab

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
lab = Lab(spark, Path({home!r}))
flow = braided.stream(lab.feed({schema!r}).frame()).groupBy("k").apply(Tally, {output!r})
try:
    lab.run(flow)
except braided.BraidedError as error:
    print("REFUSED", type(error).__name__, error, flush=True)
spark.stop()
"""


def test_a_query_of_another_process_is_fenced_off_and_the_first_unharmed(lab: Lab) -> None:
    story = Story(lab)
    with lab.running(story.flow, channels=2, slots=4) as first:
        story.arrive()
        first.processAllAvailable()
        program = _SECOND.format(path=sys.path, home=str(lab.home), schema=SCHEMA, output=OUTPUT)
        second = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
        )
        assert "REFUSED FencedError" in second.stdout, second.stdout + second.stderr
        assert f"pid {os.getpid()} on " in second.stdout
        story.arrive()
        first.processAllAvailable()
    story.check()


def test_a_checkpoint_that_another_process_holds_is_free_when_that_is_killed(lab: Lab) -> None:
    story = Story(lab)
    story.arrive()
    hold = (
        "import sys; from braided.store.durable.local_store import LocalStore; "
        "from braided.store.durable.local_lease import LocalLease; "
        "lease = LocalLease.acquire(LocalStore(sys.argv[1]), 'a query elsewhere'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(story.braided)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        story.refused(FencedError, "a query elsewhere", f"pid {holder.pid}")
    finally:
        holder.kill()
        holder.communicate()
    story.run(slots=4)
    story.check()


def test_a_query_whose_lease_was_taken_commits_no_more(lab: Lab) -> None:
    story = Story(lab)
    query = lab.start(story.flow, channels=2, slots=4)
    story.arrive()
    query.processAllAvailable()
    (story.braided / "lease").unlink()
    with LocalLease.acquire(LocalStore(str(story.braided)), "the one that took over"):
        story.arrive()
        with pytest.raises(Exception, match="taken over"):
            query.processAllAvailable()
        assert isinstance(query.exception().__cause__, FencedError)
        assert list(manifests_of(lab.checkpoint)) == [0]
    story.run()
    story.check()


# -- disks ---------------------------------------------------------------------------------------


def test_a_checkpoint_below_a_file_can_not_be_written(lab: Lab) -> None:
    story = Story(lab)
    story.arrive()
    lab.checkpoint.write_text("no directory")
    story.refused(CheckpointWriteError, str(lab.checkpoint), "choose another checkpointLocation")
    lab.checkpoint.unlink()
    story.run(slots=4)
    story.check()


def test_a_batch_whose_changelog_can_not_be_written_is_not_committed(lab: Lab) -> None:
    story = Story(lab)
    story.arrive()
    story.braided.mkdir(parents=True)
    state = story.braided / "state"
    state.write_text("no directory")
    error = story.failure(channels=2, slots=4)
    assert isinstance(error, CheckpointWriteError)
    for word in (str(state / "Tally"), "a file stands where a directory should be"):
        assert word in str(error)
    assert manifests_of(lab.checkpoint) == {}
    state.unlink()
    story.run()
    story.check()


def test_a_read_only_checkpoint_is_refused_at_start(story: Story) -> None:
    with read_only(story.braided):
        with pytest.raises(CheckpointWriteError) as raised:
            story.run()
        assert str(story.braided / "lease") in str(raised.value)
        assert "Read-only" in str(raised.value) or "Permission" in str(raised.value)
    story.run()
    story.check()


def test_a_checkpoint_that_becomes_read_only_fails_the_batch_and_goes_on_after(lab: Lab) -> None:
    story = Story(lab)
    query = lab.start(story.flow, channels=2, slots=4)
    story.arrive()
    query.processAllAvailable()
    with read_only(story.braided / "state" / "Tally"):
        story.arrive()
        with pytest.raises(Exception, match="can't write"):
            query.processAllAvailable()
        error = query.exception().__cause__
        assert isinstance(error, CheckpointWriteError)
        assert str(story.braided / "state" / "Tally") in str(error)
    with read_only(story.braided / "manifests"):
        error = story.failure()
        assert isinstance(error, CheckpointWriteError)
        assert str(story.manifest(1)) in str(error)
    assert list(manifests_of(lab.checkpoint)) == [0]
    story.run()
    story.check()


def test_a_full_checkpoint_disk_fails_the_batch_and_goes_on_when_there_is_space(lab: Lab) -> None:
    story = Story(lab)
    with small_disk(story.braided, "2m") as disk:
        story.arrive()
        story.run(channels=2, slots=4)
        filler = fill(disk)
        story.arrive()
        error = story.failure()
        assert isinstance(error, CheckpointWriteError)
        for word in (str(story.braided), "No space left on device", "free some space"):
            assert word in str(error)
        assert list(manifests_of(lab.checkpoint)) == [0]
        filler.unlink()
        story.run()
        story.check()


def test_a_full_disk_below_all_of_the_checkpoint_says_so(lab: Lab) -> None:
    # Spark writes first here, so the words are its own.
    story = Story(lab)
    with small_disk(lab.checkpoint, "2m") as disk:
        story.arrive()
        story.run(channels=2, slots=4)
        filler = fill(disk)
        story.arrive()
        with pytest.raises(Exception, match="No space left on device"):
            story.run()
        filler.unlink()
        story.run()
        story.check()


# -- the cache's disk ----------------------------------------------------------------------------


def cache_errors(query: Any) -> list[int]:
    ran = [p["braided"] for p in query.recentProgress if "addBatch" in p["durationMs"]]
    return [each["operators"]["Tally"]["cacheErrors"] for each in ran]


def test_a_cache_directory_that_can_not_be_made_costs_the_cache_only(lab: Lab) -> None:
    story = Story(lab)
    story.arrive(2)
    (lab.home / "file").write_text("no directory")
    query = lab.run(
        story.flow, channels=2, slots=4, **{"cache.dir": str(lab.home / "file" / "cache")}
    )
    assert min(cache_errors(query)) > 0
    story.check()


def test_a_read_only_cache_directory_costs_the_cache_only(lab: Lab) -> None:
    story = Story(lab)
    cache = lab.home / "disk"
    cache.mkdir()
    story.arrive(2)
    with read_only(cache):
        query = lab.run(story.flow, channels=2, slots=4, **{"cache.dir": str(cache)})
        assert min(cache_errors(query)) > 0
    story.check()


def test_a_full_cache_disk_costs_the_cache_only(lab: Lab) -> None:
    story = Story(lab)
    with small_disk(lab.home / "disk", "16m") as disk:
        options = {"channels": 2, "slots": 8, "cache.dir": str(disk)}
        with lab.running(story.flow, **options) as query:
            story.arrive()
            query.processAllAvailable()
            assert cache_errors(query)[-1] == 0
            filler = fill(disk)
            story.arrive(2)
            query.processAllAvailable()
            assert max(cache_errors(query)) > 0
            filler.unlink()
            story.arrive(2)
            query.processAllAvailable()
            assert query.exception() is None
            # With space there is a cache again.
            last = last_batch(query)["braided"]["operators"]["Tally"]
            assert last["cacheErrors"] == 0 and last["cacheHits"] > 0
    story.check()


def test_a_cache_disk_that_is_full_from_the_start_costs_the_cache_only(lab: Lab) -> None:
    story = Story(lab)
    story.arrive(2)
    with small_disk(lab.home / "disk", "1m") as disk:
        fill(disk)
        query = lab.run(story.flow, channels=2, slots=4, **{"cache.dir": str(disk)})
        assert min(cache_errors(query)) > 0
    story.check()

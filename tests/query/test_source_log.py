"""What was committed of input is what Spark finds at the next start, whoever writes late."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braided.errors import CheckpointCorruptError
from braided.spark.source_log import Entry, SourceLog, files_by_entry, positions, with_entries
from braided.store.durable.local_store import LocalStore
from braided.store.history.garbage import collect
from braided.store.history.manifest import Manifest, SourceEntry
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.source_entries import copy_entries, read_entries

INTERVAL = 3
"""Every third entry is a compacted one, as every tenth of Spark's is."""


def line(entry: int, name: str) -> str:
    return json.dumps({"path": name, "timestamp": 1, "batchId": entry}, separators=(",", ":"))


def offsets(*entries: int) -> str:
    return "\n".join(["v1", "{}", *(f'{{"logOffset":{entry}}}' for entry in entries), "7"])


@dataclass
class Source:
    """The log of a source as Spark keeps it, below a checkpoint."""

    store: LocalStore

    def name(self, entry: int) -> str:
        return f"sources/0/{entry}" + (".compact" if (entry + 1) % INTERVAL == 0 else "")

    def exists(self, entry: int) -> bool:
        return self.name(entry) in self.store.list("sources/0")

    def newest(self) -> int:
        names = (name.rpartition("/")[2] for name in self.store.list("sources/0"))
        return max((int(name.removesuffix(".compact")) for name in names), default=-1)

    def text(self, entry: int, files: list[str]) -> str:
        """What a driver would write now."""
        own = [line(entry, name) for name in files]
        before = range(max(0, entry - INTERVAL), entry)
        if (entry + 1) % INTERVAL == 0:
            own = [text for e in before for text in self.read(e).split("\n")[1:]] + own
        return "\n".join(["v1", *own])

    def read(self, entry: int) -> str:
        return bytes(self.store.get(self.name(entry))).decode()

    def write(self, entry: int, text: str) -> None:
        self.store.put(self.name(entry), text.encode())

    def seen(self) -> dict[int, str]:
        """What Spark believes at a start: the newest compacted entry, and those after it."""
        newest = self.newest()
        first = max(0, (newest + 1) // INTERVAL * INTERVAL - 1)
        found: dict[int, str] = {}
        for entry in range(first, newest + 1):
            found.update(files_by_entry(self.read(entry)))
        return found


@dataclass
class Story:
    """Drivers one after the other, of which those before may still write one entry."""

    source: Source
    committed: dict[int, str] = field(default_factory=dict)
    kept: dict[Entry, str] = field(default_factory=dict)
    late: list[tuple[int, str]] = field(default_factory=list)
    files: int = 0

    def start(self) -> None:
        newest = max(self.committed, default=-1)
        self.log = SourceLog(self.source.store, offsets(newest) if newest >= 0 else "")
        self.log.restore(self.kept)
        seen = self.source.seen()
        assert {entry: seen[entry] for entry in seen if entry <= newest} == self.committed
        self.position = self.source.newest()
        keys = set(self.kept)
        self.kept = {k: text for k, text in self.kept.items() if self.log.is_needed(*k, keys)}

    def take(self, count: int) -> None:
        """A batch: the next entry, and what was planned and not committed before."""
        entry = self.position + 1
        if self.source.exists(entry):
            self.start()  # "Concurrent update to the log"
            return
        self.source.write(entry, self.source.text(entry, self._new(count)))
        self.position = entry
        self._commit(entry)

    def _commit(self, entry: int) -> None:
        self.kept.update(self.log.exposed(offsets(entry), self.kept))
        for each in range(max(self.committed, default=-1) + 1, entry + 1):
            self.committed[each] = files_by_entry(self.source.read(each)).get(each, "")

    def taken_over_from(self, count: int) -> None:
        """The driver stands still while it writes an entry, and another one starts."""
        entry = self.position + 1
        self.late.append((entry, self.source.text(entry, self._new(count))))
        self.start()

    def comes_late(self, which: int) -> None:
        if self.late:
            self.source.write(*self.late.pop(which % len(self.late)))

    def _new(self, count: int) -> list[str]:
        self.files += count
        return [f"file-{number}" for number in range(self.files - count, self.files)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "taken_over_from", "comes_late"]), st.integers(1, 3)
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_committed_input_is_what_the_next_start_sees(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    story = Story(Source(LocalStore(tmp_path_factory.mktemp("checkpoint"))))
    story.start()
    for name, number in steps:
        getattr(story, name)(number)
    while story.late:
        story.comes_late(0)
    story.start()
    # Copies are of a few entries since the last compacted one that nobody can replace.
    starts = 2 + sum(name != "comes_late" for name, _ in steps)
    assert len(story.kept) <= 3 * starts


def test_only_the_first_entries_after_a_start_are_copied(tmp_path: Path) -> None:
    source = Source(LocalStore(tmp_path))
    for entry in range(40):
        source.write(entry, source.text(entry, [f"file-{entry}"]))
    log = SourceLog(source.store, offsets(38))
    assert sorted(log.exposed(offsets(39), ())) == [(0, 39)]
    for entry in range(40, 60):
        source.write(entry, source.text(entry, [f"file-{entry}"]))
    assert sorted(log.exposed(offsets(59), {(0, 39)})) == [(0, 40), (0, 41)]
    assert log.exposed(offsets(59), {(0, 39), (0, 40), (0, 41)}) == {}
    # One that is compacted has its own lines in the copy.
    assert log.exposed(offsets(41), ())[0, 41] == line(41, "file-41")


def test_copies_go_when_a_compacted_entry_has_taken_over(tmp_path: Path) -> None:
    source = Source(LocalStore(tmp_path))
    for entry in range(6):
        source.write(entry, source.text(entry, [f"file-{entry}"]))
    log = SourceLog(source.store, offsets(5))
    kept = {(0, 3), (0, 4)}
    assert not any(log.is_needed(*each, kept) for each in kept)
    # As long as that one may be replaced itself, by one made of others, all are needed.
    assert all(log.is_needed(*each, kept | {(0, 5)}) for each in kept)
    uncommitted = SourceLog(source.store, offsets(4))
    assert all(uncommitted.is_needed(*each, kept) for each in kept)


def test_sources_that_keep_no_log_of_files_are_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("sources/0/0", b'v1\n{"topic":{"0":12}}')  # Kafka's first offsets
    text = 'v1\n{}\n{"topic":{"0":14}}\n{"logOffset":3}\n-\n5'
    assert positions(text) == {1: 3}
    log = SourceLog(store)
    assert log.exposed(text, ()) == {} and log.restore({}) == []


def test_an_entry_that_was_cut_off_or_replaced_is_put_back_where_it_belongs() -> None:
    whole = "\n".join(["v1", *(line(n // 2, f"file-{n}") for n in range(8))])
    assert with_entries(whole, files_by_entry(whole)) == whole
    for damaged in (
        whole.replace(line(2, "file-5"), line(2, "other")),
        whole.replace("\n" + line(2, "file-5"), ""),
        whole.replace(line(2, "file-5"), line(2, "file-5")[:20]),
    ):
        assert with_entries(damaged, {2: files_by_entry(whole)[2]}) == whole
    assert with_entries("", {0: line(0, "a")}) == f"v1\n{line(0, 'a')}"


def test_a_copy_that_is_damaged_is_named(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    copies = copy_entries(files, 7, {(0, 3): line(3, "a"), (1, 2): ""})
    assert read_entries(files, copies) == {(0, 3): line(3, "a"), (1, 2): ""}
    files.put(copies[0].name, b"else")
    with pytest.raises(CheckpointCorruptError, match=r"is damaged.*entry 3 of Spark's sources/0"):
        read_entries(files, copies)


def test_copies_go_with_the_last_manifest_that_names_them(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    manifests = ManifestLog(files)

    def commit(batch: int, full: bool, sources: tuple[SourceEntry, ...] = ()) -> None:
        manifests.write(Manifest("flow", batch, full, "test", 0, 0, {}, sources=sources))

    first = copy_entries(files, 0, {(0, 0): line(0, "a")})
    lost = copy_entries(files, 1, {(0, 1): line(1, "of a batch that failed")})
    second = copy_entries(files, 1, {(0, 1): line(1, "b")})
    commit(0, True, first)
    commit(1, False, second)
    assert manifests.view_at(1).sources == (*first, *second)
    assert collect(files, manifests, retain=2) == 1 and lost[0].name not in files.list("sources")
    assert manifests.sources(manifests.view_at(1))[0, 1] == line(1, "b")
    commit(2, True, second)
    collect(files, manifests, retain=1)
    assert files.list("sources") == [second[0].name]

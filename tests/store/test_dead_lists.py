"""Any number of files of dead letters: manifests stay small, and none is ever lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from braided.errors import CheckpointCorruptError
from braided.store.history import dead_lists
from braided.store.history.garbage import Collector, collect
from braided.store.history.manifest import DeadFile, Manifest
from braided.store.history.manifest_log import ManifestLog
from support.small_flow import OPERATOR, SmallFlow


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallFlow:
    for name, few in (("LISTED_FROM", 4), ("MERGED", 3), ("LEVELS", 3)):
        monkeypatch.setattr(dead_lists, name, few)
    return SmallFlow(tmp_path / "cp", full_every=2)


def divert(flow: SmallFlow, count: int) -> Manifest:
    """A batch, committed, with so many files of dead letters."""
    batch = flow.batch + 1
    names = [f"dead/{batch}-{channel}-a.parquet" for channel in range(count)]
    for name in names:
        flow.files.put(name, b"rows")
    dead = tuple(DeadFile(OPERATOR, name, "d", 1) for name in names)
    manifest = flow.manifest([flow.task(None, {0: {b"ka": b"%d" % batch}})], dead)
    flow.manifests.write(manifest)
    flow.batch = batch
    return manifest


def named(flow: SmallFlow, batch: int) -> list[str]:
    files = ManifestLog(flow.files)
    return [file.name for file in files.dead_files(files.view_at(batch))]


def test_manifests_do_not_grow_with_dead_letters_and_none_is_lost(flow: SmallFlow) -> None:
    collector = Collector(flow.files, flow.manifests, retain=3)
    expected: list[str] = []
    for batch in range(60):
        flow.files.put(f"dead/{batch}-list-lost.json", b"of a driver that was killed")
        manifest = divert(flow, 3)
        expected += [f"dead/{batch}-{channel}-a.parquet" for channel in range(3)]
        collector.collect(batch)
        assert len(manifest.dead) <= 9
        # Two lists at most of each level but the last, which takes 36 names or more.
        assert len(manifest.dead_lists) <= 2 + 2 + batch * 3 / 36
        for kept in flow.manifests.batches():
            assert named(flow, kept) == expected[: 3 * (kept + 1)]
    collect(flow.files, flow.manifests, retain=1)
    newest = flow.manifests.view_at(59)
    lists = [each.name for each in newest.dead_lists]
    assert set(flow.files.list("dead")) == {*expected, *lists}
    assert {each.level for each in newest.dead_lists} >= {2}
    assert newest.live_files().issuperset(lists)


def test_a_full_manifest_that_names_them_all_is_continued(
    flow: SmallFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier Braideds wrote them, however many there were."""
    with monkeypatch.context() as earlier:
        earlier.setattr(dead_lists, "LISTED_FROM", 1_000)
        manifests = [divert(flow, 20) for _ in range(3)]
    assert len(manifests[2].dead) == 60
    manifests += [divert(flow, 1) for _ in range(2)]
    assert len(manifests[4].dead) == 1 and manifests[4].dead_lists[0].files == 61
    # Who does not know lists must not collect garbage here.
    assert manifests[4].format == 2
    collect(flow.files, flow.manifests, retain=1)
    found = named(flow, 4)
    assert len(found) == 62 and set(found) <= set(flow.files.list("dead"))


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_list_that_can_not_be_read_is_named_and_nothing_is_collected(
    flow: SmallFlow, damage: str
) -> None:
    for _ in range(3):
        divert(flow, 4)
    files = set(flow.files.list("dead"))
    (dead,) = itertools.islice(flow.manifests.view_at(2).dead_lists, 1)
    flow.files.delete([dead.name])
    if damage == "damaged":
        flow.files.put(dead.name, b"[]")
    with pytest.raises(CheckpointCorruptError, match=f"{dead.name} is {damage}.*Restore it"):
        collect(flow.files, flow.manifests, retain=1)
    assert files - set(flow.files.list("dead")) <= {dead.name}

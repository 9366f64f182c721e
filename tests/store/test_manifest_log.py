"""The register of manifests: created once, checked on reading, cheap to follow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from braided.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointVersionError,
    FencedError,
)
from braided.store.history import manifest_log as module
from braided.store.history.manifest import FORMAT, View, to_full
from braided.store.history.manifest_log import ManifestLog
from support.small_flow import OPERATOR, SmallFlow


@pytest.fixture
def flow(tmp_path: Path) -> SmallFlow:
    return SmallFlow(tmp_path / "cp")


def run_batches(flow: SmallFlow, count: int) -> None:
    for _ in range(count):
        flow.run(None, {0: {b"ka": b"%d" % (flow.batch + 1)}, 1: {}})


def test_batches_are_listed_and_read(flow: SmallFlow) -> None:
    assert flow.manifests.newest() is None and flow.manifests.batches() == []
    run_batches(flow, 3)
    assert flow.manifests.newest() == 2 and flow.manifests.batches() == [0, 1, 2]
    assert flow.manifests.read(1).batch == 1
    assert flow.manifests.view_at(-1).batch == -1


def test_a_manifest_is_readable_by_people(flow: SmallFlow) -> None:
    run_batches(flow, 1)
    text = json.loads(flow.files.get("manifests/00000000.json").to_pybytes())
    assert text["manifest"]["batch"] == 0 and OPERATOR in text["manifest"]["operators"]


def test_writing_the_same_manifest_again_is_no_error(flow: SmallFlow) -> None:
    manifest = flow.commit([flow.task(None, {0: {b"ka": b"1"}})])
    flow.manifests.write(manifest)
    run_batches(flow, 1)
    flow.manifests.write(flow.manifests.read(1))


def test_another_writer_is_fenced_off_and_named(flow: SmallFlow) -> None:
    run_batches(flow, 1)
    mine = flow.manifest([flow.task(None, {0: {b"ka": b"1"}})])
    flow.manifests.write(msgspec.structs.replace(mine, writer="the other (pid 7)"))
    with pytest.raises(FencedError, match=r"00000001.json .*the other \(pid 7\); this is test"):
        flow.manifests.write(mine)


def test_a_manifest_that_breaks_a_rule_is_never_written(flow: SmallFlow) -> None:
    run_batches(flow, 1)
    manifest = flow.manifest([])
    broken = msgspec.structs.replace(
        manifest,
        operators={OPERATOR: msgspec.structs.replace(manifest.operators[OPERATOR], channels=0)},
    )
    with pytest.raises(ValueError, match=r"must not be committed.*0 channels"):
        flow.manifests.write(broken)
    with pytest.raises(CheckpointCorruptError, match="is missing"):
        flow.manifests.write(msgspec.structs.replace(manifest, batch=7))
    assert flow.manifests.batches() == [0]


def test_a_flow_may_start_at_any_batch(flow: SmallFlow) -> None:
    delta = msgspec.structs.replace(flow.manifest([]), batch=12, full=False)
    flow.manifests.write(to_full(View.empty(), delta))
    assert flow.manifests.view_at(12, flow.flow).batch == 12


def test_any_damage_is_found_and_named(flow: SmallFlow) -> None:
    run_batches(flow, 2)
    assert flow.files.directory is not None
    path = flow.files.directory / "manifests/00000001.json"
    whole, manifests = path.read_bytes(), ManifestLog(flow.files)

    def read_damaged(content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError) as caught:
            manifests.read(1)
        assert str(path) in str(caught.value) and "batch 1" in str(caught.value)

    for where in range(len(whole)):
        read_damaged(whole[:where])
        for bit in range(8):
            flipped = whole[where] ^ 1 << bit
            read_damaged(whole[:where] + bytes([flipped]) + whole[where + 1 :])


def test_a_missing_manifest_is_named(flow: SmallFlow) -> None:
    run_batches(flow, 4)
    flow.files.delete(["manifests/00000002.json"])
    with pytest.raises(CheckpointCorruptError, match=r"00000002.json is missing"):
        flow.manifests.view_at(3)


def test_a_newer_format_is_refused_as_such(flow: SmallFlow) -> None:
    body = b'{"format":%d,"batch":"in words"}' % (FORMAT + 1)
    envelope = module._Envelope(module._checksum("", body), "", msgspec.Raw(body))
    flow.files.put_if_absent("manifests/00000000.json", msgspec.json.encode(envelope))
    with pytest.raises(CheckpointVersionError, match=rf"00000000.json has format {FORMAT + 1}"):
        flow.manifests.read(0)


def test_a_manifest_under_another_name_is_found(flow: SmallFlow) -> None:
    run_batches(flow, 2)
    assert flow.files.directory is not None
    directory = flow.files.directory / "manifests"
    shutil.copy(directory / "00000001.json", directory / "00000002.json")
    with pytest.raises(CheckpointCorruptError, match="is the manifest of batch 1"):
        flow.manifests.read(2)


def test_following_reads_one_file_a_batch(flow: SmallFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batches(flow, 3)
    flow.manifests.view_at(2, flow.flow)
    run_batches(flow, 1)
    module._remembered.clear()
    manifests = ManifestLog(flow.files)
    manifests.view_at(2, flow.flow)
    read: list[str] = []
    original = flow.files.get
    monkeypatch.setattr(flow.files, "get", lambda name: read.append(name) or original(name))
    assert manifests.view_at(3, flow.flow).batch == 3
    assert manifests.view_at(3, flow.flow).batch == 3
    assert read == ["manifests/00000003.json"] * 2
    # Who has written a manifest needs not read it, nor the one before.
    read.clear()
    run_batches(flow, 2)
    assert flow.manifests.view_at(5, flow.flow).batch == flow.manifests.read(5).batch == 5
    assert not [name for name in read if name.startswith("manifests")]


def test_a_view_is_the_same_however_it_was_reached(flow: SmallFlow) -> None:
    run_batches(flow, 11)
    for batch in (0, 3, 10, 4, 5, 9, 2):
        followed = flow.manifests.view_at(batch, flow.flow).operators[OPERATOR]
        loaded = flow.manifests.view_at(batch).operators[OPERATOR]
        assert followed.chain(0) == loaded.chain(0) and len(loaded.chain(0)) == batch + 1


def test_a_restored_checkpoint_is_noticed(flow: SmallFlow, tmp_path: Path) -> None:
    run_batches(flow, 2)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "cp", copy)
    run_batches(flow, 2)
    shutil.rmtree(tmp_path / "cp")
    shutil.copytree(copy, tmp_path / "cp")
    flow.batch = 1
    flow.run(None, {0: {b"kb": b"another"}})
    flow.run(None, {0: {b"kb": b"history"}})
    assert flow.contents(None) == {0: {b"ka": b"1", b"kb": b"history"}}


def test_a_process_that_remembers_another_history_forgets_it(
    flow: SmallFlow, tmp_path: Path
) -> None:
    run_batches(flow, 2)
    shutil.copytree(tmp_path / "cp", tmp_path / "copy")
    other = SmallFlow(tmp_path / "copy")
    other.flow, other.batch = flow.flow, 1
    for number in range(2):
        other.run(None, {0: {b"kb": b"%d" % number}})
    run_batches(flow, 1)
    flow.view()
    shutil.rmtree(tmp_path / "cp")
    shutil.copytree(tmp_path / "copy", tmp_path / "cp")
    flow.batch, flow.manifests = 3, ManifestLog(flow.files)
    assert flow.contents(None) == {0: {b"ka": b"1", b"kb": b"1"}}


def test_manifests_of_two_histories_do_not_mix(flow: SmallFlow, tmp_path: Path) -> None:
    run_batches(flow, 2)
    shutil.copytree(tmp_path / "cp", tmp_path / "copy")
    run_batches(flow, 2)
    other = SmallFlow(tmp_path / "copy")
    other.flow, other.batch = flow.flow, 1
    other.run(None, {2: {b"kb": b"another"}})
    name = "manifests/00000002.json"
    shutil.copy(tmp_path / "copy" / name, tmp_path / "cp" / name)
    module._remembered.clear()
    with pytest.raises(CheckpointCorruptError, match=r"00000003.json.*two histories"):
        flow.manifests.view_at(3, flow.flow)


def test_another_flow_in_the_same_place_is_refused(flow: SmallFlow) -> None:
    run_batches(flow, 1)
    with pytest.raises(CheckpointMismatchError, match=flow.flow):
        ManifestLog(flow.files).view_at(0, "someone-else")


def test_pruning_needs_a_full_manifest_to_stand_on(flow: SmallFlow) -> None:
    run_batches(flow, 6)
    with pytest.raises(ValueError, match="not a full one"):
        flow.manifests.prune(3)
    assert flow.manifests.base_of(3) == 0 and flow.manifests.base_of(5) == 4
    assert flow.manifests.prune(4) == [3, 2, 1, 0]
    assert flow.manifests.batches() == [4, 5]
    assert flow.contents(None) == {0: {b"ka": b"5"}}


def test_a_process_whose_last_view_was_collected_meanwhile_reads_from_a_full_manifest(
    flow: SmallFlow,
) -> None:
    run_batches(flow, 3)
    flow.manifests.view_at(2, flow.flow)
    lagging = dict(module._remembered)
    run_batches(flow, 9)
    fulls = [batch for batch in flow.manifests.batches() if flow.manifests.read(batch).full]
    assert fulls[-1] > 3, "the flow writes a full manifest now and then"
    flow.manifests.prune(fulls[-1])
    module._remembered.update(lagging)  # as another process remembers it
    assert flow.manifests.view_at(11, flow.flow).batch == 11

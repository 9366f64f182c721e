"""The store on a local path: what can't be written says why, and nothing is half created."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from braided.errors import CheckpointWriteError
from braided.store.durable.local_store import LocalStore
from support.power_cut import cut_at


def test_a_relative_root_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = LocalStore("cp")
    files.put("x", b"1")
    monkeypatch.chdir("/")
    assert files.get("x").to_pybytes() == b"1"


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
def test_a_file_in_the_way_is_named(tmp_path: Path, method: str) -> None:
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(CheckpointWriteError) as caught:
        getattr(LocalStore(tmp_path), method)("state/op/1", b"x")
    assert str(tmp_path / "state/op/1") in str(caught.value)
    assert "choose another checkpointLocation" in str(caught.value)


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
def test_a_full_disk_is_named(method: str, tmp_path: Path) -> None:
    # /dev/full takes any open and refuses every write with ENOSPC.
    if method == "put":
        (tmp_path / "x").symlink_to("/dev/full")
        with pytest.raises(CheckpointWriteError, match=r"No space left.*free some space") as caught:
            LocalStore(tmp_path).put("x", b"1")
        assert caught.value.errno == 28
    else:
        with pytest.raises(CheckpointWriteError, match="can't write"):
            LocalStore("/proc").put_if_absent("x", b"1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointWriteError, match="write access"):
        LocalStore(tmp_path).put("x/y", b"1")


@pytest.mark.parametrize("point", ["create-written", "create-linked"])
def test_a_create_that_is_cut_short_leaves_all_or_nothing(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    with cut_at(monkeypatch, point), pytest.raises(RuntimeError, match=point):
        store.put_if_absent("m/0.json", b"first")
    created = point == "create-linked"
    assert store.put_if_absent("m/0.json", b"second") is not created
    assert bytes(store.get("m/0.json")) == (b"first" if created else b"second")
    assert store.list("m") == ["m/0.json"]

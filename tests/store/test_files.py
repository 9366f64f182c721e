"""Durable files: what is written is there, what cannot be written says why."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from braided.errors import CheckpointWriteError, UnsupportedError
from braided.store.durable.files import Files


def test_a_file_written_is_read_back_and_listed(tmp_path: Path) -> None:
    files = Files(tmp_path / "cp")
    files.write("state/op/1-0-a.log.arrow", b"one")
    files.write("state/op/2-0-a.log.arrow", pa.py_buffer(b"two"))
    files.write("out/1-x", b"")
    assert files.read("state/op/1-0-a.log.arrow").to_pybytes() == b"one"
    assert files.read("state/op/2-0-a.log.arrow").to_pybytes() == b"two"
    assert files.read("out/1-x").to_pybytes() == b""
    assert files.list("state") == ["state/op/1-0-a.log.arrow", "state/op/2-0-a.log.arrow"]
    assert files.list("nothing") == []
    with pytest.raises(FileNotFoundError):
        files.read("state/none")


def test_deleting_what_is_missing_is_fine(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("a", b"1")
    files.delete(["a", "b", "never/there"])
    assert files.list("") == []


def test_a_path_and_its_uris_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "a b"
    Files(spaced).write("x", b"1")
    monkeypatch.chdir(tmp_path)
    uris = (f"file://{spaced}", f"file:{spaced}", spaced.as_uri())
    for root in (str(spaced), "a b", "./a b", *uris):
        files = Files(root)
        assert files.read("x").to_pybytes() == b"1"
        assert files.root == str(spaced) and files.local == spaced


def test_a_relative_root_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = Files("cp")
    files.write("x", b"1")
    monkeypatch.chdir("/")
    assert files.read("x").to_pybytes() == b"1"


def test_create_is_once_only(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.create("m/0.json", b"first")
    assert not files.create("m/0.json", b"second")
    assert files.read("m/0.json").to_pybytes() == b"first"
    assert files.list("m") == ["m/0.json"]  # nothing half-done is left behind


def test_of_many_creators_one_wins_and_its_content_stays(tmp_path: Path) -> None:
    files = Files(tmp_path)
    together = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        together.wait()
        if files.create("m/7.json", b"%d" % number * 10_000):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.read("m/7.json").to_pybytes() == b"%d" % won[0] * 10_000


@pytest.mark.parametrize("method", ["write", "create"])
def test_a_file_in_the_way_is_named(tmp_path: Path, method: str) -> None:
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(CheckpointWriteError) as caught:
        getattr(Files(tmp_path), method)("state/op/1", b"x")
    assert str(tmp_path / "state/op/1") in str(caught.value)
    assert "choose another checkpointLocation" in str(caught.value)


@pytest.mark.parametrize("method", ["write", "create"])
def test_a_full_disk_is_named(method: str, tmp_path: Path) -> None:
    # /dev/full takes any open and refuses every write with ENOSPC.
    if method == "write":
        (tmp_path / "x").symlink_to("/dev/full")
        with pytest.raises(CheckpointWriteError, match=r"No space left.*free some space") as caught:
            Files(tmp_path).write("x", b"1")
        assert caught.value.errno == 28
    else:
        with pytest.raises(CheckpointWriteError, match="can't write"):
            Files("/proc").create("x", b"1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointWriteError, match="write access"):
        Files(tmp_path).write("x/y", b"1")


def test_other_stores_hold_files_but_no_register_yet() -> None:
    files = Files("mock:///cp")
    assert files.local is None
    files.write("state/op/1-0-a", b"one")
    files.write("state/op/2-0-a", b"two")
    assert files.read("state/op/1-0-a").to_pybytes() == b"one"
    assert files.list("state") == ["state/op/1-0-a", "state/op/2-0-a"]
    assert files.list("nothing") == []
    with pytest.raises(FileNotFoundError):
        files.read("none")
    files.delete(["state/op/1-0-a", "none"])
    assert files.list("") == ["state/op/2-0-a"]
    with pytest.raises(UnsupportedError, match="atomic"):
        files.create("m/0", b"x")


def test_a_register_can_be_brought_along() -> None:
    class Once:
        def __init__(self) -> None:
            self.names: set[str] = set()

        def create(self, name: str, data: bytes) -> bool:
            new = name not in self.names
            self.names.add(name)
            return new

    files = Files("mock:///cp", register=Once())
    assert files.create("m/0", b"x")
    assert not files.create("m/0", b"x")


def test_an_unknown_scheme_is_refused_with_a_sentence() -> None:
    with pytest.raises(UnsupportedError, match="dbfs:/x"):
        Files("dbfs:/x")

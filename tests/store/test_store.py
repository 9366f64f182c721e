"""What every store promises, whatever it is on: one suite over all of them."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from braided.bench.s3_server import S3Server
from braided.errors import CheckpointReadError, CheckpointWriteError, OptionError, UnsupportedError
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store

LARGE = bytes(range(256)) * (12 << 12)  # 12 MiB: more than one part of an upload


def test_what_is_put_is_read_back_and_listed(store: Store) -> None:
    store.put("state/op/1-0-a.log.arrow", b"one")
    store.put("state/op/2-0-a.log.arrow", pa.py_buffer(b"two"))
    store.put("state/a b%20é=1/x", b"odd")
    store.put("stately", b"")
    assert bytes(store.get("state/op/1-0-a.log.arrow")) == b"one"
    assert bytes(store.get("state/op/2-0-a.log.arrow")) == b"two"
    assert bytes(store.get("state/a b%20é=1/x")) == b"odd"
    assert bytes(store.get("stately")) == b""
    logs = ["state/op/1-0-a.log.arrow", "state/op/2-0-a.log.arrow"]
    assert store.list("state") == ["state/a b%20é=1/x", *logs]
    assert store.list("state/op") == logs
    assert store.list("") == ["state/a b%20é=1/x", *logs, "stately"]
    assert store.directories("state") == ["state/a b%20é=1", "state/op"]
    assert store.directories("") == ["state"]
    assert store.files("state/op") == logs
    assert (store.files("state"), store.files("")) == ([], ["stately"])
    assert store.list("nothing") == store.directories("nothing") == store.files("nothing") == []
    assert store.below("state").list("op") == ["op/1-0-a.log.arrow", "op/2-0-a.log.arrow"]


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for read in (store.get, store.reader, lambda name: store.get_ranges(name, [(0, 1)])):
        with pytest.raises(FileNotFoundError):
            read("state/none")


def test_what_is_put_again_is_replaced_as_a_whole(store: Store) -> None:
    store.put("x", b"a long one")
    store.put("x", b"short")
    assert bytes(store.get("x")) == b"short"


def test_ranges_and_pieces_of_a_large_file(store: Store) -> None:
    with store.writer("carry/large") as write:
        for start in range(0, len(LARGE), 1 << 20):
            write(LARGE[start : start + (1 << 20)])
    spans = [(0, 3), (9, 0), (len(LARGE) - 5, 5), (1 << 20, 70_000)]
    pieces = store.get_ranges("carry/large", spans)
    assert [bytes(piece) for piece in pieces] == [LARGE[s : s + n] for s, n in spans]
    assert store.get_ranges("carry/large", []) == []
    assert [bytes(each) for each in store.get_ranges("carry/large", [(7, 0)])] == [b""]
    with store.reader("carry/large") as file:
        assert bytes(file.read_buffer(7)) == LARGE[:7]
        file.seek(0)
        assert file.read() == LARGE
    assert bytes(store.get("carry/large")) == LARGE


def test_a_file_that_was_not_written_to_its_end_is_not_there(store: Store) -> None:
    if store.location.scheme not in (
        "",
        "hdfs",
    ):  # there a half stays under a name that nobody uses
        with pytest.raises(ZeroDivisionError), store.writer("half") as write:
            write(b"x" * 100)
            raise ZeroDivisionError
        assert store.list("") == []


def test_deleting_what_is_missing_is_fine(store: Store) -> None:
    for name in ("a", "d/b", "d/e/c", "other"):
        store.put(name, b"1")
    store.delete(["b", "a", "never/there"])
    store.delete([])
    assert store.list("") == ["d/b", "d/e/c", "other"]
    store.delete_directory("d")
    store.delete_directory("d")
    assert store.list("") == ["other"]
    assert store.directories("") == []


def test_a_name_is_created_once(store: Store) -> None:
    assert store.put_if_absent("m/0.json", b"first")
    assert not store.put_if_absent("m/0.json", b"second")
    assert bytes(store.get("m/0.json")) == b"first"
    assert store.list("m") == ["m/0.json"]  # nothing half-done is left behind
    assert store.put_if_absent("m/1.json", LARGE)
    assert not store.put_if_absent("m/1.json", b"second")


def test_of_many_creators_one_wins_and_its_content_stays(store: Store) -> None:
    for name in ("m/7.json", "m/8.json", "m/9.json"):
        together = threading.Barrier(8)
        won: list[int] = []

        def create(number: int, name: str = name, won: list[int] = won) -> None:
            together.wait()  # noqa: B023
            if store.put_if_absent(name, b"%d" % number * 10_000):
                won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert bytes(store.get(name)) == b"%d" % won[0] * 10_000


def test_a_store_travels_to_tasks_and_shows_no_secrets(store: Store) -> None:
    store.put("x", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert bytes(copy.get("x")) == b"1"
    assert copy.location == store.location
    assert "secret" not in repr(copy) and "secret" not in copy.path("x")


def _read_in_child(store: Store, name: str, results: multiprocessing.SimpleQueue[bytes]) -> None:
    results.put(bytes(store.get(name)))


def test_a_forked_process_can_use_a_store_that_its_parent_has_used(
    s3_server: S3Server,
) -> None:
    # As Spark's workers are forked. Nothing of the client may be shared, or the child hangs; only
    # a parent that has used a client itself can't fork, which Spark's daemon never does.
    script = (
        "import os, pickle, sys\n"
        "store = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "repr(store.below('y'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    store.put('x', b'from the child')\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "print(bytes(store.get('x')).decode())\n"
    )
    import subprocess
    import sys

    store = open_store(f"{s3_server.url}/forked", s3_server.settings)
    run = subprocess.run(
        [sys.executable, "-c", script, pickle.dumps(store).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert run.stdout == "from the child\n", run.stderr


def test_a_create_whose_answer_was_lost_is_known_by_its_content(store: Store) -> None:
    # The client has sent it again, and finds its own object.
    if store.location.scheme in ("", "hdfs"):  # where a client knows what became of it
        return
    store.put("m/0", b"mine, by the token 17")
    assert store.put_if_absent("m/0", b"mine, by the token 17")
    assert not store.put_if_absent("m/0", b"another's")


def test_a_marker_of_hadoops_for_a_directory_is_no_file(s3_server: S3Server) -> None:
    store = open_store(f"{s3_server.url}/markers", s3_server.settings)
    store.put("out/1-a/part-0", b"1")
    (s3_server.bucket / "markers" / "out" / "2-b").mkdir()  # as the server keeps such an object
    assert store.list("out") == ["out/1-a/part-0"]
    assert store.files("out") == store.files("out/2-b") == []
    store.delete_directory("out/1-a")
    assert store.list("out") == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secret_access_key": "wrong"}, "SignatureDoesNotMatch|403"),
        ({"access_key_id": "nobody"}, "XAdminUserNotFound|InvalidAccessKeyId"),
    ],
)
def test_a_store_that_refuses_is_named_and_its_secrets_are_not(
    s3_server: S3Server, wrong: dict[str, str], said: str
) -> None:
    store = open_store(f"{s3_server.url}/x", {**s3_server.settings, **wrong})
    with pytest.raises(CheckpointWriteError, match=said) as writing:
        store.put("a", b"1")
    with pytest.raises(CheckpointReadError, match=said) as reading:
        store.get("a")
    with pytest.raises(CheckpointReadError, match=said):
        store.list("")
    for caught in (writing, reading):
        assert f"{s3_server.url}/x/a" in str(caught.value)
        assert "braided-secret" not in str(caught.value)


def test_a_setting_that_the_client_does_not_know_is_an_option_error(s3_server: S3Server) -> None:
    store = open_store(f"{s3_server.url}/x", {**s3_server.settings, "colour": "red"})
    with pytest.raises(OptionError, match="colour"):
        store.get("a")


@pytest.mark.parametrize("location", ["dbfs:/x", "ftp://h/x"])
def test_a_place_without_a_store_is_refused_with_a_sentence(location: str) -> None:
    with pytest.raises(UnsupportedError, match=r"What works: local.*s3a://") as caught:
        open_store(location)
    assert location in str(caught.value)


def test_a_place_in_a_store_has_one_spelling(s3_server: S3Server) -> None:
    open_store(f"{s3_server.url}/spelled/x", s3_server.settings).put("y", b"1")
    for text in ("spelled//x/", "/spelled/x", "spelled/./z/../x"):
        store = open_store(f"{s3_server.url}/{text}", s3_server.settings)
        assert store.list("") == ["y"]
    assert open_store(f"{s3_server.url}/a#1").location != open_store(f"{s3_server.url}/a").location


def test_a_path_is_local_however_it_is_written(tmp_path: Path) -> None:
    open_store(tmp_path / "a b").put("x", b"1")
    for text in (f"{tmp_path}/a b", f"file:{tmp_path}/a b", f"file://{tmp_path}/./a b/"):
        store = open_store(text)
        assert bytes(store.get("x")) == b"1"
        assert store.location.text == f"{tmp_path}/a b"

"""`braided decisions`: for people and for programs, of logs in several files, and as they grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import braided
from braided.cli import main as cli
from braided.cli.event_files import EventFiles
from braided.control.events import Decided, Judged, Limited, Planned, Started, read
from braided.control.policy import Bounds
from braided.steering.event_log import EventLog, LocalEventLog, ObjectEventLog
from braided.store.durable.local_store import LocalStore
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store


def limited(batch: int) -> Limited:
    return Limited(batch, "sum", "hot key", "key 7 alone takes 1.2 channels", 4, 8, 0.61234)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    log = LocalEventLog(tmp_path / "braided", large_bytes=200)
    log.add([Started(0, "auto", "locality", 1, 16, {"sum": Bounds(1, 4)}, ("top",))])
    for batch in range(1, 4):
        log.add([limited(batch)])
    assert (tmp_path / "braided" / "events-1.jsonl").exists()
    return tmp_path


def test_decisions_of_all_files_come_the_oldest_first(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["decisions", str(checkpoint)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "started with scale auto, balance locality, 1 to 16 channels; " in lines[0]
    assert lines[0].endswith("; sum 1 to 4; top as it is")
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert "limited by  hot key: key 7 alone takes 1.2 channels" in lines[1]
    assert "(4 channels, 8 wished for, congestion 0.61)" in lines[1]
    assert cli.main(["decisions", str(checkpoint), "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[1])
    assert (first["type"], first["factor"], first["batch"]) == ("limited", "hot key", 1)


def test_what_comes_later_is_followed(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "braided.cli", "decisions", str(checkpoint), "--follow"]
    source = str(Path(braided.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            for _ in range(4):
                process.stdout.readline()
            log = LocalEventLog(checkpoint / "braided", large_bytes=200)
            for batch in (4, 5, 6):
                log.add([limited(batch)])
                assert process.stdout.readline().split()[1] == str(batch)
        finally:
            process.kill()


@pytest.fixture(params=["disk", "objects"])
def log_of(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Store, Callable[[int], EventLog]]]:
    """A store, and who writes a log there that is put away at some size."""
    if request.param == "disk":
        yield open_store(tmp_path), lambda large: LocalEventLog(tmp_path, large)
        return
    store, minutes = open_store(f"memory://{uuid.uuid4().hex}/x"), count(1)

    def clock() -> float:
        time.sleep(0.001)  # objects are named by the millisecond
        return 60 * next(minutes)

    yield store, lambda large: ObjectEventLog(store, lambda: True, large, clock)


def batches(lines: list[bytes]) -> list[int]:
    return [event.batch for event in read(lines)]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("large_bytes", [1, 300, 500, 1 << 20])
def test_each_line_is_given_once_however_the_log_is_put_away_between_two_looks(
    log_of: tuple[Store, Callable[[int], EventLog]], large_bytes: int, every: int
) -> None:
    store, writer = log_of
    log, files = writer(large_bytes), EventFiles(store)
    assert files.fresh() == []
    for batch in range(0, 30, every):
        for number in range(batch, batch + every):
            log.add([limited(number)])
        found = batches(files.fresh())
        assert found == [*range(batch + every - len(found), batch + every)]
        assert min(every, 4) <= len(found) <= every  # so many files are kept on a disk
        assert files.fresh() == []
    assert len(store.files("")) == 1 or large_bytes < 1 << 20


class Watched(LocalStore):
    """Notes what is asked of it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: list[str] = []

    def get(self, name: str) -> Any:
        self.asked.append(name)
        return super().get(name)

    def files(self, directory: str) -> list[str]:
        self.asked.append("names")
        return super().files(directory)

    def list(self, directory: str) -> list[str]:
        raise AssertionError("a checkpoint has many files")


def test_to_look_again_costs_one_file_and_one_more_for_each_that_was_put_away(
    tmp_path: Path,
) -> None:
    log, store = LocalEventLog(tmp_path, large_bytes=500), Watched(tmp_path)
    for batch in range(8):
        log.add([limited(batch)])
    files = EventFiles(store)
    assert batches(files.fresh()) == [*range(8)]
    old = set(store.files("")) - {"events.jsonl", "events-1.jsonl"}
    assert old
    for batch in range(8, 12):
        store.asked.clear()
        log.add([limited(batch)])
        assert batches(files.fresh()) == [batch]
        assert not old & set(store.asked)
        store.asked.clear()
        assert files.fresh() == []
        if (tmp_path / "events.jsonl").exists():
            assert store.asked == ["events.jsonl"]


def test_what_was_put_away_twice_by_who_was_killed_meanwhile_is_read_once() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}/x")
    for number, again in enumerate((1, 2)):
        log = ObjectEventLog(store, lambda: True, clock=count(60, 60).__next__)
        log.add([limited(number)])
        assert batches(EventFiles(store).fresh()) == [*range(number + 1)]
        store.put(f"events-{again}000.jsonl", bytes(store.get("events.jsonl")))
    assert len(store.files("")) == 3
    assert batches(EventFiles(store).fresh()) == [0, 1]


def test_a_decision_that_the_end_of_a_query_left_without_a_verdict_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def decided(number: int, held: str = "") -> Decided:
        return Decided(7, "sum", number, "scale-up", "input waits", 2, 4, held)

    log = LocalEventLog(tmp_path / "braided")
    log.add([Started(0, "ds2", "elasticutor", 1, 4), decided(1), decided(2, "cooling down")])
    log.add([Judged(8, "sum", 1, "effective", "throughput", 1.0, 2.0, 2.0), decided(3)])
    log.add([Planned(7, "sum", (3,), 1, 4, 5, 1.0, 0.1, 9.0, True), decided(4)])
    log.add([Started(9, "ds2", "elasticutor", 1, 4)])
    assert cli.main(["decisions", str(tmp_path)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "unjudged" in line]
    assert len(said) == 1 and "#4: the query ended before it could be seen" in said[0]


def test_a_place_without_a_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decisions", str(tmp_path)]) == 1
    assert "has no event log" in capsys.readouterr().err

"""`braided decisions`: for people and for programs, of logs in several files, and as they grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import braided
from braided.cli import main as cli
from braided.control.events import Limited, Started
from braided.steering.event_log import LocalEventLog


def limited(batch: int) -> Limited:
    return Limited(batch, "sum", "hot key", "key 7 alone takes 1.2 channels", 4, 8, 0.61234)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    log = LocalEventLog(tmp_path / "braided", large_bytes=200)
    log.add([Started(0, "auto", "locality", 1, 16)])
    for batch in range(1, 4):
        log.add([limited(batch)])
    assert (tmp_path / "braided" / "events-1.jsonl").exists()
    return tmp_path


def test_decisions_of_all_files_come_the_oldest_first(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["decisions", str(checkpoint)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("started with scale auto, balance locality, 1 to 16 channels")
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


def test_a_place_without_a_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decisions", str(tmp_path)]) == 1
    assert "has no event log" in capsys.readouterr().err

"""`braided cluster`: its arguments, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braided.bench.standalone_cluster import ClusterError, StandaloneCluster
from braided.cli import cluster as command
from braided.cli import main as cli

NUMBERS = "--workers --cores --memory"


@pytest.mark.parametrize("argument", NUMBERS.split())
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "99999999"])
def test_a_number_that_makes_no_cluster_is_refused_with_the_range(
    argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["cluster", argument, value])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"{argument}: takes a whole number from" in said or "expected one argument" in said


def test_help_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["cluster", "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert all(argument in said for argument in NUMBERS.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_what_was_asked_for_until_a_signal(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int, int]] = []
    ended: list[bool] = []

    @contextmanager
    def start(work: Path, workers: int, cores: int, memory_mb: int) -> Iterator[StandaloneCluster]:
        seen.append((workers, cores, memory_mb))
        signalled = threading.Timer(0, os.kill, (os.getpid(), number))
        try:
            signalled.start()
            yield StandaloneCluster(work, cores, memory_mb, 7077, 8080)
        finally:
            signalled.join()
            ended.append(True)

    monkeypatch.setattr(command, "standalone_cluster", start)
    assert cli.main(["cluster", "--workers", "2", "--cores", "3", "--memory", "900"]) == 0
    assert seen == [(2, 3, 900)] and ended == [True]
    assert capsys.readouterr().out.endswith("Stopped.\n")


def test_what_it_explains_has_the_settings_of_a_program(tmp_path: Path) -> None:
    said = command.explain(StandaloneCluster(tmp_path, 2, 900, 7077, 8080))
    assert '"spark.master": "spark://127.0.0.1:7077"' in said
    assert '"spark.executor.memory": "900m"' in said
    assert "Ctrl-C stops" in said


def test_a_cluster_that_does_not_start_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def start(*_: object) -> Iterator[StandaloneCluster]:
        raise ClusterError("the daemon on 127.0.0.1 has ended: no Java")
        yield

    monkeypatch.setattr(command, "standalone_cluster", start)
    assert cli.main(["cluster"]) == 1
    assert capsys.readouterr().err == "braided: the daemon on 127.0.0.1 has ended: no Java\n"

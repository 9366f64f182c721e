"""The command `braided`: what it runs, where it prints, and how it answers mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braided import bench
from braided.cli import main as cli
from braided.cli import report
from braided.errors import FencedError
from compat.fixture import unpack

COMPAT = Path(__file__).parents[1] / "compat" / "checkpoints" / "6162276"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(name: str, **members: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    return install


def exit_of(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def fake_run(quick: bool, progress: Callable[[str], None]) -> dict[str, Any]:
    progress("native: batch 1")
    print("noise from a library")
    return {"ratio": np.float64(31.4), "quick": quick, "sizes": [{"keys": 10_000, "ms": 1.5}]}


def test_json_is_the_last_line_of_output_and_progress_goes_elsewhere(
    module: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    module("braided.bench.stateful", run=fake_run)
    assert cli.main(["bench", "stateful", "--json", "--quick"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1]) == {
        "ratio": 31.4,
        "quick": True,
        "sizes": [{"keys": 10_000, "ms": 1.5}],
    }
    assert "native: batch 1" in printed.err
    assert "native" not in printed.out


def test_without_json_a_person_sees_progress_and_a_table(
    module: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    module("braided.bench.stateful", run=fake_run)
    assert cli.main(["bench", "stateful"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("native: batch 1")
    assert [line.split() for line in lines[-6:]] == [
        ["ratio", "31.4"],
        ["quick", "no"],
        [],
        ["sizes"],
        ["keys", "ms"],
        ["10,000", "1.5"],
    ]


def test_an_unknown_benchmark_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_of(["bench", "statefull"]) == 2
    message = capsys.readouterr().err
    assert "'statefull'; did you mean stateful?" in message
    for name in bench.BENCHES:
        assert name in message


def test_an_argument_that_no_benchmark_takes_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_of(["bench", "floor", "--fast"]) == 2
    assert "bench does not take --fast" in capsys.readouterr().err


def test_cases_are_chosen_where_a_benchmark_has_some(
    module: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def run(quick: bool, progress: Callable[[str], None], only: Any = ()) -> dict[str, Any]:
        seen.append(only)
        return {"quick": quick}

    module("braided.bench.scale", run=run)
    module("braided.bench.floor", run=fake_run)
    assert cli.main(["bench", "scale", "--only", "sink/saso", "--only", "key"]) == 0
    assert cli.main(["bench", "scale"]) == 0
    assert seen == [["sink/saso", "key"], ()]
    assert cli.main(["bench", "floor", "--only", "key"]) == 1
    assert "can't be run in part" in capsys.readouterr().err


def test_the_demo_gets_its_arguments_and_gives_the_exit_status(
    module: Callable[..., None],
) -> None:
    seen: list[list[str]] = []
    module("braided.cli.demo", main=lambda argv: seen.append(argv))
    assert cli.main(["demo", "--help"]) == 0
    module("braided.cli.demo", main=lambda argv: 3)
    assert cli.main(["demo"]) == 3
    assert seen == [["--help"]]


def test_an_error_of_ours_is_one_sentence_and_not_a_traceback(
    module: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(quick: bool, progress: Callable[[str], None]) -> dict[str, Any]:
        raise FencedError("the checkpoint is held by another query")

    module("braided.bench.floor", run=run)
    assert cli.main(["bench", "floor"]) == 1
    assert capsys.readouterr().err == "braided: the checkpoint is held by another query\n"


def test_interrupting_is_not_an_error_with_a_traceback(
    module: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: list[str]) -> int:
        raise KeyboardInterrupt

    module("braided.cli.demo", main=main)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "braided: interrupted\n"


def test_help_names_every_benchmark_and_what_it_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_of(["bench", "--help"]) == 0
    printed = capsys.readouterr().out
    for name in bench.BENCHES:
        assert f"  {name}" in printed
    assert "Rows per second of a running count and sum per key" in printed
    assert "Time of one full decision" in printed


def test_no_command_and_version_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of([]) == 2
    assert exit_of(["--version"]) == 0
    assert capsys.readouterr().out.startswith("braided ")


def test_help_does_not_run_a_benchmark_or_import_one() -> None:
    code = (
        "import sys\n"
        "from braided import bench\nfrom braided.cli import main as cli\n"
        "try:\n    cli.main(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not set(bench.BENCHES.values()) & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_that_json_does_not_have_become_null() -> None:
    result = {"a": float("nan"), "b": [np.inf, np.int64(3)], "c": np.array([1.5, 2]), "d": (1,)}
    read = json.loads(report.as_json(result))
    assert read == {"a": None, "b": [None, 3], "c": [1.5, 2], "d": [1]}


def test_records_with_different_fields_make_one_table() -> None:
    text = report.as_text({"runs": [{"a": 1}, {"b": {"c": True}}], "empty": []})
    assert [line.split() for line in text.splitlines()] == [
        ["empty"],
        [],
        ["runs"],
        ["a", "b.c"],
        ["1"],
        ["yes"],
    ]


def test_state_of_a_place_without_a_checkpoint_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["state", str(tmp_path)]) == 1
    assert "holds no committed batch of Braided's" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["simulate saso-remote", "decisions", "state"])
def test_who_has_seen_enough_gets_no_stack_trace(command: str, tmp_path: Path) -> None:
    words = command.split()
    if words[0] in ("decisions", "state"):
        unpack(COMPAT / "steered.tar.gz", tmp_path)
        words.append(str(tmp_path / "checkpoint"))
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(
        [sys.executable, "-m", "braided.cli", *words],
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (141, "")

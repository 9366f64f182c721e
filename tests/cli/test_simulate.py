"""`braided simulate` and `braided replay`: tables, JSON, plots, and answers to mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ET
from itertools import count
from pathlib import Path

import pytest

from braided.cli import main as cli
from braided.control.events import Started, encode, read
from braided.control.policies.balancers import Static
from braided.control.policies.ds2 import Off
from braided.control.policy import Bounds, Limits
from braided.control.settings import Settings
from braided.sim import SCENARIOS
from braided.sim.arrivals import Spike
from braided.sim.cluster import Cluster, SimFlow, SimOperator, simulate
from braided.sim.keys import Zipf
from braided.sim.replay import read_recording, replay
from braided.steering.event_log import EventLog, LocalEventLog, ObjectEventLog
from braided.store.durable.open_store import open_store


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The events of a run on few channels, unbalanced, through a surge."""
    flow = SimFlow(
        Cluster(hosts=1, cores=32),
        (SimOperator("sum", Zipf(skew=0.8), slots=64, channels=4),),
        Spike(2000, 6000, 10, 10),
        duration_s=40,
    )
    run = simulate(flow, Settings(scale=Off(), balance=Static(), limits=Limits(channels_max=4)))
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(encode(event) for event in run.events))
    return path


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert cli.main([*argv, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_saso_step_tells_the_four_properties(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "simulate", "saso-step")
    changes = found["changes"]
    assert isinstance(changes, list)
    assert all(each["settle_periods"] <= each["levels"] + 3 for each in changes)
    assert (found["overshoot"], found["oscillations"]) == (0, 0)
    assert isinstance(found["settle_periods"], int)
    assert isinstance(found["handled_share"], float)
    assert found["handled_share"] > 0.95


def test_a_policy_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    ours = printed(capsys, "simulate", "saso-remote")
    paper = printed(capsys, "simulate", "saso-remote", "--policy", "saso-paper")
    assert (ours["channels_last"], paper["channels_last"]) == (4, 32)


def test_a_person_gets_a_table_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "surge.svg"
    assert cli.main(["simulate", "surge", "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["batch", "start_s", "rows"] for line in lines)
    assert len(lines) < 70
    root = ET.parse(plot).getroot()
    assert root.tag.endswith("svg")
    assert len([e for e in root.iter() if e.tag.endswith("polyline")]) == 5


def test_a_log_is_replayed_with_another_policy(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, "replay", str(log), "--policy", "ds2", "--policy", "elasticutor")
    before, after = found["recorded"], found["replayed"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["latency_s"] < 0.6 * before["latency_s"]
    assert after["plans"] > 0
    # How far the simulator is to be believed: it is given back its own run here.
    retraced = found["retraced"]
    assert isinstance(retraced, dict) and 0 < retraced["error"] < 0.1
    assert retraced["channel_s"] == pytest.approx(before["channel_s"], rel=0.1)
    # A checkpoint has its log where a query leaves it.
    (log.parent / "query/braided").mkdir(parents=True)
    log.rename(log.parent / "query/braided/events.jsonl")
    again = printed(
        capsys, "replay", str(log.parent / "query"), "--policy", "ds2", "--policy", "elasticutor"
    )
    assert again["recorded"] == before


def test_a_replay_keeps_to_the_bounds_of_the_query(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def channels(*more: str) -> float:
        found = printed(capsys, "replay", str(log), "--policy", "ds2", *more)["replayed"]
        assert isinstance(found, dict)
        return float(found["channel_s"])

    free = channels("--max-channels", "16")
    log.write_bytes(encode(Started(0, "off", "static", 1, 4)) + log.read_bytes())
    bounded = channels()
    assert bounded < free and bounded == channels("--max-channels", "4")
    assert channels("--max-channels", "16") == free


@pytest.mark.parametrize("store", ["disk", "objects"])
def test_a_checkpoint_is_replayed_from_all_files_of_its_log(
    log: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest file is missing, or empty, when the log has just grown large."""
    events = list(read(log.read_bytes().splitlines(keepends=True)))
    started = Started(0, "off", "static", 1, 4)
    part = len(events) // 3
    lines = [events[:part], [started, *events[part : 2 * part]], events[2 * part :]]
    one = log.with_name("one.jsonl")
    one.write_bytes(b"".join(map(encode, [started, *events])))
    expected = printed(capsys, "replay", str(one), "--policy", "ds2")
    if store == "disk":
        checkpoint = str(log.parent / "query")
        writer: EventLog = LocalEventLog(log.parent / "query/braided", large_bytes=1)
    else:
        checkpoint = f"memory://{uuid.uuid4().hex}/query"
        minutes = count(1)

        def clock() -> float:
            time.sleep(0.001)  # objects are named by the millisecond
            return 60 * next(minutes)

        writer = ObjectEventLog(open_store(f"{checkpoint}/braided"), lambda: True, 1, clock)
    for each in lines:
        writer.add(each)
    writer.close()
    names = open_store(f"{checkpoint}/braided").files("")
    assert len(names) == len(lines) + (store == "objects")
    found = printed(capsys, "replay", checkpoint, "--policy", "ds2")
    assert found["recorded"] == expected["recorded"]
    assert found["replayed"] == expected["replayed"]


def test_a_replay_keeps_to_the_bounds_of_single_operators(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = log.read_bytes()

    def channels(started: Started, *more: str) -> float:
        log.write_bytes(encode(started) + events)
        found = printed(capsys, "replay", str(log), "--policy", "ds2", *more)["replayed"]
        assert isinstance(found, dict)
        return float(found["channel_s"])

    few = channels(Started(0, "ds2", "static", 1, 4))
    many = channels(Started(0, "ds2", "static", 1, 16))
    assert few < many
    assert channels(Started(0, "ds2", "static", 1, 16, {"sum": Bounds(1, 4)})) == few
    assert channels(Started(0, "ds2", "static", 1, 4, {"sum": Bounds(1, 16)})) == many
    bounded = Started(0, "ds2", "static", 1, 16, {"sum": Bounds(8, 8)})
    assert channels(bounded, "--max-channels", "4") < channels(bounded)
    kept = channels(Started(0, "ds2", "static", 1, 16, {}, ("sum",)))
    assert kept == channels(Started(0, "ds2", "static", 1, 16, {"sum": Bounds(4, 4)})) < many


def test_a_replay_of_the_same_policies_comes_near_to_what_was(log: Path) -> None:
    with log.open("rb") as lines:
        recording = read_recording(read(lines))
    settings = Settings(scale=Off(), balance=Static(), limits=Limits(channels_max=4))
    summary = replay(recording, settings).summary()
    assert float(summary["latency_s"]) == pytest.approx(recording.latency_s, rel=0.4)
    assert float(summary["channel_s"]) == pytest.approx(recording.channel_s, rel=0.25)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["simulate", "surge", "--policy", "fair"], "there is no policy 'fair'; to scale"),
        (["simulate", "surge", "--policy", "ds2", "--policy", "saso"], "saso is a second"),
        (["simulate", "surge", "--plot", "/nowhere/at/all.svg"], "the plot can't be written"),
        (
            ["replay", "/nowhere.jsonl", "--policy", "ds2"],
            "/nowhere.jsonl can't be replayed: it is no file, and no checkpoint",
        ),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 1
    assert message in capsys.readouterr().err


def test_a_log_without_batches_and_a_broken_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.write_bytes(b"")
    broken.write_bytes(b"what is this?\n" * 2)
    assert cli.main(["replay", str(empty), "--policy", "ds2"]) == 1
    assert "no measured batch" in capsys.readouterr().err
    assert cli.main(["replay", str(broken), "--policy", "ds2"]) == 1
    assert "line 1 is no event" in capsys.readouterr().err


def test_an_unknown_scenario_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulate", "saso"])
    message = capsys.readouterr().err
    assert all(name in message for name in SCENARIOS)


def test_simulating_does_not_import_spark() -> None:
    code = (
        "import sys\n"
        "from braided.cli.simulate import simulate_command\n"
        "assert 'pyspark' not in sys.modules and 'py4j' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

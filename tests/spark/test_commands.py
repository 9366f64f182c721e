"""The commands of README and docs, run as they stand there and with nothing in the environment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import braided
from support.bare import INCUBATOR, ROOT, but_for_waiting, finish, repository, start
from support.stream_harness import Lab
from support.stream_operators import Waits

PAGES = ("README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md")))
FIRST = ".venv/bin/python examples/threshold.py"
STATE = ".venv/bin/braided state checkpoint --json"
DECISIONS = ".venv/bin/braided decisions checkpoint --json"

RUN = {  # as written: as run, where it leaves something to the reader
    FIRST: FIRST,
    ".venv/bin/braided simulate saso-remote --policy saso-paper --plot paper.svg": "",
    ".venv/bin/braided simulate saso-remote --plot ours.svg": "",
    ".venv/bin/braided replay checkpoint --policy model --policy autoflow --plot replay.svg": "",
    ".venv/bin/braided state CHECKPOINT"
    " [--operator NAME] [--version N] [--to PATH] [--json]": STATE,
    ".venv/bin/braided decisions CHECKPOINT [--follow] [--json]": DECISIONS,
}
IMPORT = "needs the checkpoint of a native query; test_programs.py has one"
NOT_RUN = {  # as written: why not
    "make setup": "installs packages; `make test` has done it",
    "make demo": "a minute of load; test_demo.py runs a short one",
    "make test": "runs this",
    "make cluster": "runs until it is told to end; test_cluster.py of the command does",
    "braided bench migrate --json": "takes long; test_bench_migrate.py runs a short one",
    "braided plan --from HISTORY --keys LOCATION,HASHTAG --names byPlace,byTag"
    " --hosts 4 --out PLAN": "needs rows of the past; test_locality.py makes some",
    "braided demo --cluster": "a minute of load; test_cluster_harness.py loses a host too",
    ".venv/bin/braided import-state"
    " CHECKPOINT-OF-THE-NATIVE-QUERY NEW-CHECKPOINT --name Watch": IMPORT,
    ".venv/bin/braided import-state"
    " NATIVE_CHECKPOINT NEW_CHECKPOINT --name Totals --with-offsets": IMPORT,
}
PIP = "datasketches lmdb msgspec numpy obstore 'pandas<3' pyarrow"
OF_OTHERS = [  # they make a Python on the hosts of a cluster, from packages, and get jars
    "python3.11 -m venv /opt/braided",
    f"/opt/braided/bin/pip install {PIP}",
    "/opt/braided/bin/pip install --no-deps ./braided",
    "python3.11 -m venv environment",
    f"environment/bin/pip install venv-pack {PIP}",
    "environment/bin/pip install --no-deps ./braided",
    "environment/bin/venv-pack -p environment -o environment.tar.gz",
    "mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:3.9.2 -DoutputDirectory=jars",
]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def commands() -> list[str]:
    """Every command in a block of shell, without its comment."""
    blocks = re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", all_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    each = [part for line in lines for part in re.sub(r"\s#.*", "", line).split("&&")]
    return [" ".join(command.split()) for command in each if command.strip()]


def all_text() -> str:
    return "\n".join(map(text_of, PAGES))


def test_every_command_is_run_here_or_listed_with_a_reason() -> None:
    assert sorted(commands()) == sorted([*RUN, *NOT_RUN, *OF_OTHERS])


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_that_say_so(page: str) -> None:
    text = re.sub(r"^```[a-z]+\n.*?^```", "", text_of(page), flags=re.M | re.S)
    command = r"^ *(?:\$ |(?:\S*/)?(?:braided|make|pip|python3?|pytest) ).*"
    assert re.findall(command, text, re.M) == []


def test_commands_that_are_not_run_here_exist(tmp_path: Path) -> None:
    place = repository(tmp_path)
    inline = re.findall(r"`((?:braided|make) [a-z][^`\n]*)`", all_text())
    assert len(inline) > 10
    helps: dict[str, str] = {}
    for command in sorted({*NOT_RUN, *inline}):
        program, name, *rest = command.split()
        if program == "make":
            finish(start(f"make -n {name}", place))
            continue
        if name not in helps:
            helps[name], _ = finish(start(f".venv/bin/braided {name} --help", place))
        said = re.findall(r"[\w-]+", helps[name])
        unknown = [word for word in rest if word.islower() and word not in said]
        assert unknown == [], command


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path, lab: Lab) -> None:
    place = repository(tmp_path)
    first = start(FIRST, place)  # it lets half a minute pass, in which the others run
    try:
        feed = lab.feed("k int")
        flow = braided.stream(feed.frame()).groupBy("k").apply(Waits, "k int, n int")
        with lab.running(flow, channels=2, slots=16) as query:
            for _ in range(3):
                feed.add([(k,) for k in range(20)])
                query.processAllAvailable()
        (place / "checkpoint").symlink_to(lab.checkpoint)
        said = {}
        for command, filled_in in RUN.items():
            if command != FIRST:
                printed, noise = finish(start(filled_in or command, place))
                said[filled_in or command] = printed
                assert noise == "", command
        keys = {
            row["key"]["k"]: row["state"]["rows"] for row in map(json.loads, lines(said[STATE]))
        }
        assert keys == dict.fromkeys(range(20), 3)
        assert "started" in [json.loads(line)["type"] for line in lines(said[DECISIONS])]
        for drawn in ("paper.svg", "ours.svg", "replay.svg"):
            assert (place / drawn).read_text().startswith("<svg")
        printed, noise = finish(first)
        if not printed:  # this machine was so busy that the program's half minute was too short
            printed, noise = finish(start(FIRST, place))
    finally:
        first.kill()
    [first_batch] = re.findall(r"Batch: 0\n-+\n(.*?)\n\n", printed, re.S)
    rows = re.findall(r"\| +(\d)\| +([\d.]+)\|", first_batch)
    assert sorted(rows) == [("0", "0.0"), ("1", "2.5"), ("2", "5.0")]  # of each id the first
    assert but_for_waiting(noise) == INCUBATOR  # `make setup` has Spark show errors only


def lines(printed: str) -> list[str]:
    assert printed.strip()
    return printed.splitlines()

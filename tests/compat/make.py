"""Makes a set of old checkpoints: `python tests/compat/make.py OUT_DIR [CASE ...]`.

To keep what the code of a later commit writes, check that commit out, run

    export PYTHONPATH=$PWD/src:$PWD/tests
    python tests/compat/make.py tests/compat/checkpoints/$(git rev-parse --short HEAD)

and add the directory; the test finds it by itself. What another PySpark writes is kept in the same
way, with the Python of its environment (`make spark-venv SPARK=4.1.4`) and its name:

    .venv-4.1.4/bin/python tests/compat/make.py tests/compat/checkpoints/pyspark-4.1.4

The sets that are there stay as they are: the code that wrote them is gone. Make a new one when a
commit changes what is written on purpose, and for a case that is new (name it behind the
directory).

Everything is done by the flows of `flows.py` but for what no user can ask for: a batch that is cut,
a key that is pinned and a crash between two steps of a commit. For these, and only here, the engine
is reached into; a commit that has renamed them needs this file to be changed accordingly.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from braided import failpoints
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.table import Pin
from compat.case import Case, started
from compat.fixture import dead_letters, exact_state, pack, routing
from compat.flows import CASES, more_then, totals_then

_BEGIN = "before-routing"


class Making:
    """One case on its way to a fixture."""

    def __init__(self, spark: SparkSession, home: Path, name: str) -> None:
        self.spark, self.home, self.name = spark, home, name
        self.case: Case = CASES[name]
        self.routing: dict[str, Any] = {}

    def run(
        self,
        batches: int,
        then: Callable[[Any], None] | None = None,
        crash: str | None = None,
        writers: Any = None,
    ) -> None:
        """Runs the query until so many batches of its input are done, and a little more."""
        failpoints.arm(crash)
        query = started(self.case, self.spark, self.home, batches, writers)
        if crash is not None:
            self.fails(query, crash)
            return
        query.processAllAvailable()
        if then is not None:
            then(query)
            query.processAllAvailable()
        query.stop()
        self.routing = routing(query)

    def fails(self, query: Any, crash: str = _BEGIN) -> None:
        """Waits for a crash that was arranged."""
        try:
            query.processAllAvailable()
            raise AssertionError(f"{crash} was not reached")
        except StreamingQueryException as error:
            assert failpoints.message(crash) in str(error), error
        query.stop()
        self.routing = routing(query)


def plain(case: Making) -> None:
    case.run(len(case.case.old))


def rescaled(case: Making) -> None:
    case.run(2, lambda query: query.rescale(3))
    case.run(3)


def evolved(case: Making) -> None:
    case.run(1, writers=totals_then)
    case.run(2)


def unpublished(case: Making) -> None:
    case.run(1)
    case.run(2, crash="after-manifest")


def unrecorded(case: Making) -> None:
    """Published, but Spark knows nothing of it."""
    case.run(1)
    case.run(2, crash="after-publish")


def cut_short(case: Making) -> None:
    """The second batch leaves rows to the next one, which does not get far."""
    case.run(1)
    with only_batches(1):
        query = started(case.case, case.spark, case.home, len(case.case.old))
        query._opened.commands.cut_next(2)
        case.fails(query)


def sent_back(case: Making) -> None:
    """Rows are on their way back to their operator."""
    with only_batches(2):
        case.fails(started(case.case, case.spark, case.home, len(case.case.old)))


@contextmanager
def only_batches(number: int) -> Iterator[None]:
    """Batches run so many times; the next one crashes before it has done anything."""
    times, reach = itertools.count(1), failpoints.reach

    def counted(name: str) -> None:
        if name == _BEGIN and next(times) > number:
            raise failpoints.Crash(failpoints.message(name))

    failpoints.reach = counted
    try:
        yield
    finally:
        failpoints.reach = reach


def pin(query: Any, operator: str, slot: int | None = None, shares: tuple[int, ...] = ()) -> None:
    """Pins the key "a" to a slot, or to one that is not its own; its rows go to `shares`."""
    opened = query._opened
    key = b"\x91\xa1a"  # as store/slots/key_codec.py writes it
    hashes = opened.control._hashes.of_key(operator, key)
    chosen = (hashes[0] + 3) % 8 if slot is None else slot
    opened.commands.propose_pin(operator, Pin(key, *hashes, chosen, shares))
    opened.bell.ring()


def steered(case: Making) -> None:
    """The controller has learnt something, and a key is pinned."""
    case.run(2, lambda query: pin(query, "Turns"))
    case.run(len(case.case.old))
    [table] = case.routing.values()
    assert len(table["pins"]) == 1
    manifests = sorted((case.home / "checkpoint/braided/manifests").iterdir())
    assert '\\"seen\\": ' in manifests[-1].read_text(), "the policy remembers nothing yet"


def split_up(case: Making) -> None:
    """A key has three shares, and each batch merges what they come to."""
    case.run(1, lambda query: pin(query, "Merged", slot=1, shares=(1, 2, 6)))
    case.run(2)
    [table] = case.routing.values()
    assert [each[4] for each in table["pins"]] == [[1, 2, 6]]


def assigned_to(case: Making) -> None:
    """Two keys are in slots that are not those of their hashes."""

    def assign(query: Any) -> None:
        keys = [b"\x91\xa1a", b"\x91\xa1b"]
        hashes = zip(*(query._opened.control._hashes.of_key("Turns", k) for k in keys), strict=True)
        assigned = {"Turns": KeyAssignment.of(keys, *map(list, hashes), [3, 4])}
        query._opened.commands.propose_assignment(assigned)
        query._opened.bell.ring()

    case.run(1, assign)
    case.run(2)
    [table] = case.routing.values()
    assert sorted(table["assigned"].values()) == [3, 4]


def left_behind(case: Making) -> None:
    case.run(1, writers=more_then)
    case.run(2)


HISTORIES: dict[str, Callable[[Making], None]] = {
    "operator": rescaled,
    "columns": rescaled,
    "evolved": evolved,
    "connected": unpublished,
    "carry": cut_short,
    "loop": sent_back,
    "sinks": unpublished,
    "delta": unrecorded,
    "steered": steered,
    "split": split_up,
    "assigned": assigned_to,
    "dropped": left_behind,
}


def make(spark: SparkSession, name: str, out: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory).resolve() / "home"
        home.mkdir()
        making = Making(spark, home, name)
        HISTORIES.get(name, plain)(making)
        kept = {
            "state": {step: exact_state(spark, home, step) for step in making.routing},
            "routing": making.routing,
            "dead": dead_letters(spark, home),
        }
        if name == "operator":
            steps = list(making.routing)
            kept["versions"] = {
                str(version): {step: exact_state(spark, home, step, version) for step in steps}
                for version in range(len(making.case.old))
            }
        pack(home, out / f"{name}.tar.gz")
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        (out / f"{name}.json").write_text(text + "\n")


def main(out: Path, names: list[str]) -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    out.mkdir(parents=True, exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("braided compat")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for name in names or CASES:
        print(name, flush=True)
        make(spark, name, out)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

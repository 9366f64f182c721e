"""Checkpoints that the code of old commits wrote are read and continued by the code of now, and
those that were written with one version of Spark with another.

The fixtures are in tests/compat: for each commit, or version of PySpark, a directory, for each case
an archive and, beside it, what the code of then saw in it. `tests/compat/make.py` makes them.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from braided.store.history.manifest import FORMAT, format_of
from compat.case import started
from compat.fixture import dead_letters, exact_state, routing, state_by_key, unpack
from compat.flows import CASES
from compat.sink_flows import Remembers
from compat.source import batches_of
from support.sqlite_source import session_of_its_own

_SETS = Path(__file__).parents[1] / "compat" / "checkpoints"
_ARCHIVES = sorted(_SETS.glob("*/*.tar.gz"))


@pytest.fixture(params=_ARCHIVES, ids=lambda path: f"{path.parent.name}-{_name(path)}")
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def own_spark(spark: SparkSession) -> SparkSession:
    """The flows register sources under names, such as delta, that mean something else elsewhere."""
    return session_of_its_own(spark)


def _name(archive: Path) -> str:
    return archive.name.removesuffix(".tar.gz")


_LEAST = format_of({})
"""The format of a manifest today that has nothing in it that only a newer one can say."""


def test_there_is_a_checkpoint_of_every_case_in_the_format_of_today() -> None:
    """An older one is of another case: what is written now has to be read for ever, too."""
    formats = {path: _formats(path) for path in _ARCHIVES}
    assert {_name(path) for path in _ARCHIVES} == set(CASES)
    assert {_name(path) for path, found in formats.items() if min(found) >= _LEAST} == set(CASES)
    assert set().union(*formats.values()) == set(range(1, FORMAT + 1))


def _formats(archive: Path) -> set[int]:
    """Those of the manifests of a checkpoint."""
    found = set()
    with tarfile.open(archive) as tar:
        for entry in tar:
            if entry.isfile() and "/manifests/" in entry.name:
                file = tar.extractfile(entry)
                assert file is not None
                found.add(json.load(file)["manifest"]["format"])
    return found


def test_each_pyspark_that_wrote_checkpoints_wrote_one_of_every_case_of_its_day() -> None:
    sets: dict[str, set[str]] = {}
    for path in _ARCHIVES:
        sets.setdefault(path.parent.name, set()).add(_name(path))
    of_versions = {name: cases for name, cases in sets.items() if name.startswith("pyspark-")}
    assert of_versions
    for name, cases in of_versions.items():
        assert cases >= {*sets["6162276"], *sets["8706a78"]}, name


def test_an_old_checkpoint_is_read_and_continued(
    own_spark: SparkSession, tmp_path: Path, archive: Path
) -> None:
    spark = own_spark
    name = _name(archive)
    case = CASES[name]
    kept = json.loads(archive.with_name(f"{name}.json").read_text())
    unpack(archive, tmp_path)

    for operator, state in kept["state"].items():
        assert exact_state(spark, tmp_path, operator) == state
    for version, states in kept.get("versions", {}).items():
        for operator, state in states.items():
            assert exact_state(spark, tmp_path, operator, int(version)) == state
    assert dead_letters(spark, tmp_path) == kept["dead"]

    Remembers.before.clear()
    # The table of another set's sinks is at another place.
    spark.sql("DROP TABLE IF EXISTS compat_table")
    query = started(case, spark, tmp_path, len(case.batches))
    try:
        assert routing(query) == kept["routing"]
        query.processAllAvailable()
        batches = {p["batchId"]: p["braided"] for p in query.recentProgress if "braided" in p}
    finally:
        query.stop()
    redelivered = [batch for batch, section in batches.items() if section.get("redelivered")]
    assert len(redelivered) == case.crashed
    if "scale" in case.options:
        assert min(Remembers.before) > 0, "the policy's memory is gone"

    expected = case.expected(batches_of(case.batches))
    assert _sorted(case.output(spark, tmp_path)) == _sorted(expected.output)
    for operator, fields in expected.state.items():
        timers = expected.timers.get(operator, {})
        assert state_by_key(spark, tmp_path, operator) == (fields, timers)
    letters = dead_letters(spark, tmp_path)
    found = [(letter["operator"], letter["key"], letter["row"]) for letter in letters]
    assert sorted(map(repr, found)) == sorted(map(repr, expected.dead))
    assert all(letter in letters for letter in kept["dead"])


def _sorted(output: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {sink: sorted(map(repr, rows)) for sink, rows in output.items()}

"""Spark's own StatefulProcessors, natively and on Braided, on the same files in one session.

Outputs are compared step by step and exactly, types included; what a processor keeps is in its
output, because scenarios end with steps that show it, and for some it is read in both checkpoints.
On our side slots change channels in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from braided.bench.session import NATIVE
from braided.spark.jvm import RENAMED_LOGS
from braided.spark.version import SPARK
from support.processors.corpus import CASES, SCENARIOS
from support.processors.kept_state import braided_state, native_state
from support.processors.runs import Outcome, Running, Side, flow_of, prepared
from support.processors.scenario import Scenario, shown
from support.stream_harness import Feed

Both = Mapping[Side, Outcome]
SIDES: tuple[Side, ...] = ("native", "braided")


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Scenario], Both]:
    """Runs a scenario once, for all of its parts."""
    known: dict[str, Both] = {}

    def outcome(scenario: Scenario) -> Both:
        if scenario.name not in known:
            # With logs as ours have them, native queries start fewer processes.
            with _conf(spark, {**NATIVE, **dict([RENAMED_LOGS]), **scenario.conf}):
                known[scenario.name] = _run(scenario, spark, tmp_path_factory.mktemp("scenario"))
        return known[scenario.name]

    return outcome


NOT_ON_4_1 = ("value state, in rows", "all kinds, in pandas")
"""Scenarios that have nothing to be compared with there."""


def _marks(scenario: str) -> list[pytest.MarkDecorator]:
    """All tests of a scenario are run by the process that has run the scenario."""
    lacks_native = pytest.mark.skipif(
        SPARK == (4, 1) and scenario in NOT_ON_4_1,
        reason="the transformWithState of PySpark 4.1 stops at values, such as named tuples in "
        "state, that Braided and later versions take",
    )
    return [pytest.mark.together(scenario), lacks_native]


@contextmanager
def _conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        if known is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, known)


def _run(scenario: Scenario, spark: SparkSession, home: Path) -> Both:
    if scenario.batch:
        return {side: _batch(scenario, spark, side) for side in SIDES}
    feed = Feed(spark, home / "in", scenario.schema)
    sides = {side: Running(scenario, feed, home, side) for side in SIDES}
    try:
        for number, rows in enumerate(scenario.steps):
            for running in sides.values():
                running.before(number)
            feed.add(rows)
            for running in sides.values():
                running.step(number)
    finally:
        for running in sides.values():
            running.stop()
    return {side: running.outcome for side, running in sides.items()}


def _batch(scenario: Scenario, spark: SparkSession, side: Side) -> Outcome:
    rows = [row for step in scenario.steps for row in step]
    frame = prepared(scenario, spark.createDataFrame(rows, scenario.schema))
    try:
        made = flow_of(scenario, frame, scenario.operators, side)
        return Outcome(steps=[[tuple(row) for row in made.collect()]])
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("scenario", "part"),
    [
        pytest.param(s, part, id=f"{s.name}: {part}" if part else s.name, marks=_marks(s.name))
        for s, part in CASES
    ],
)
def test_a_processor_does_on_braided_what_it_does_natively(
    scenario: Scenario, part: str | None, outcomes: Callable[[Scenario], Both]
) -> None:
    both = outcomes(scenario)
    native, ours = both["native"], both["braided"]
    if scenario.fails is not None:
        assert native.error is not None and re.search(scenario.fails, native.error, re.S)
        assert ours.error is not None, f"native: {native.error}"
        assert re.search(scenario.fails, ours.error, re.S), ours.error
        return
    assert native.error is None, native.error
    assert ours.error is None, ours.error
    assert _shown(scenario, part, ours) == _shown(scenario, part, native)


KEPT = (
    "value state, in rows",
    "list state, in rows",
    "map state, in rows",
    "all kinds, in pandas",
    "event time, in rows",
    "keys: three columns in another order, with nulls",
    "initial state: other names, timers, a restart",
    "evolution: variables come and go, one is purged and comes back empty",
)
"""Scenarios whose state is read in the end; what expires is no longer there at different times."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in KEPT])
def test_what_is_kept_is_what_spark_reads_in_its_own_checkpoint(
    name: str, outcomes: Callable[[Scenario], Both], spark: SparkSession
) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    both = outcomes(scenario)
    with _conf(spark, {**NATIVE, **scenario.conf}):
        theirs = native_state(spark, both["native"].checkpoint)
        ours = braided_state(spark, both["braided"].checkpoint)
    assert theirs
    assert ours == theirs


def _shown(scenario: Scenario, part: str | None, outcome: Outcome) -> list[Any]:
    """What is compared of an outcome, in a form that says where it differs."""
    steps = [outcome.rows] if scenario.whole else outcome.steps
    rows = [[row for row in step if part is None or row[0] == part] for step in steps]
    if scenario.ordered:
        return [[shown(row) for row in step] for step in rows]
    return [sorted(map(shown, step)) for step in rows]


def test_the_corpus_has_distinct_scenarios_for_rows_and_for_pandas() -> None:
    names = Counter(f"{scenario.name}: {part}" for scenario, part in CASES)
    assert max(names.values()) == 1
    methods = Counter(scenario.operators[0].method for scenario, _ in CASES)
    assert methods["transformWithState"] >= 60
    assert methods["transformWithStateInPandas"] >= 30
    assert methods["applyInPandasWithState"] >= 8
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)

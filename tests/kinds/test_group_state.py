"""`applyInPandasWithState` in a task: what the function leaves in its GroupState is the key's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupStateTimeout

from braided.errors import OperatorError
from braided.kinds.processor.group_state import GroupStateProcessor
from braided.testing.ddl import parse_schema
from support.processors.flow import ProcessorFlow

OUT = "k string, n long, said string"


def processor(function: Any, timeout: str = GroupStateTimeout.NoTimeout) -> GroupStateProcessor:
    return GroupStateProcessor(function, parse_schema("n long"), timeout, ["k", "v"], 3, True)


def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """Counts rows; a negative one removes the state, 100 and more set a timeout."""
    if state.hasTimedOut:
        assert [list(frame.columns) for frame in frames] == [["k", "v"]]
        yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]], "said": ["timed out"]})
        state.remove()
        return
    n = state.getOption[0] if state.exists else 0
    for frame in frames:
        n += len(frame)
        state.update((n,))
        for value in frame["v"]:
            if value < 0:
                state.remove()
            if value >= 100:
                if state._timeout_conf == GroupStateTimeout.ProcessingTimeTimeout:
                    state.setTimeoutDuration(int(value))
                else:
                    state.setTimeoutTimestamp(int(value))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "said": [str(state)]})


def test_state_is_updated_and_removed(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, processor(count), OUT, time_mode="None", pandas=True)
    assert [row["n"] for row in flow.run([("a", 1), ("a", 2)])] == [2]
    assert [row["n"] for row in flow.run([("a", 1)])] == [3]
    flow.run([("a", -1)])
    assert flow.stored() == {}
    assert [row["n"] for row in flow.run([("a", 1)])] == [1]


@pytest.mark.parametrize(
    ("timeout", "mode", "until"),
    [
        (GroupStateTimeout.ProcessingTimeTimeout, "ProcessingTime", 600),
        (GroupStateTimeout.EventTimeTimeout, "EventTime", 600),
    ],
)
def test_a_key_times_out_when_the_clock_is_past_what_was_set(
    tmp_path: Path, timeout: str, mode: str, until: int
) -> None:
    flow = ProcessorFlow(tmp_path, processor(count, timeout), OUT, time_mode=mode, pandas=True)
    by_clock = mode == "ProcessingTime"

    def at(ms: int, rows: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
        given = flow.run(rows, now_ms=ms, watermark_ms=ms)
        return [(row["k"], row["n"]) for row in given if row["said"] == "timed out"]

    wanted = 500 if by_clock else until
    assert at(100, [("a", wanted), ("b", wanted)]) == []
    assert at(200, [("b", 1)]) == []  # an update without a timeout takes it away
    assert at(until, []) == []
    assert at(until + 1, []) == [("a", 1)]
    assert at(until + 2, []) == []
    flow.run([("b", -1)], now_ms=700, watermark_ms=700)
    assert flow.stored() == {}


def test_what_spark_refuses_is_refused(tmp_path: Path) -> None:
    def whole(key: Any, frames: Any, state: Any) -> Any:
        return pd.DataFrame({"k": ["a"]})

    def narrow(key: Any, frames: Any, state: Any) -> Any:
        yield pd.DataFrame({"k": ["a"]})

    def timeout(key: Any, frames: Any, state: Any) -> Any:
        state.setTimeoutDuration(1)
        return []

    for number, (function, said) in enumerate(
        [
            (whole, "iterable of pandas.DataFrame"),
            (narrow, "RESULT_COLUMN_SCHEMA_MISMATCH"),
            (timeout, "CANNOT_WITHOUT"),
        ]
    ):
        made = processor(function)
        flow = ProcessorFlow(tmp_path / str(number), made, OUT, time_mode="None", pandas=True)
        with pytest.raises(OperatorError, match=said):
            flow.run([("a", 1)])

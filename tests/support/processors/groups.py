"""Functions over groups with one state, `applyInPandasWithState`: state, timeouts, errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupStateTimeout

from support.processors.clocks import STILL, ms
from support.processors.scenario import Operator, Scenario, at

__all__ = ["SCENARIOS"]

OUT = "k string, what string"


def _given(key: Any, what: str) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "what": [what]})


def counts(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Counts; a negative value forgets the group, a zero leaves it as it is."""
    before = state.getOption
    values = [int(v) for frame in frames for v in frame["v"]]
    if min(values) < 0:
        state.remove()
    elif max(values) > 0:
        n, s = before or (0, 0)
        state.update((n + len(values), s + sum(values)))
    yield _given(key, f"{before} {sorted(values)} {state.exists} {state.getOption} {state}")


def typed(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """State of every type, and null in each."""
    before = state.getOption
    n = sum(len(frame) for frame in frames)
    if n == 1:
        state.update((True, 1, 0.5, "s", b"y", date(2024, 1, 1), at(0), Decimal("1.50"), ("z",)))
    else:
        state.update((None,) * 9)
    yield _given(key, repr(before))


_TYPED = (
    "b boolean, i int, x double, s string, y binary, d date, t timestamp, c decimal(10,2), "
    "q struct<z: string>"
)


def sessions(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """In event time: a session ends when the watermark passes its last event by five seconds."""
    if state.hasTimedOut:
        yield _given(key, f"over {state.get} at {state.getCurrentWatermarkMs() - ms(0)}")
        state.remove()
        return
    times = [round(t.timestamp() * 1000) for frame in frames for t in frame["t"]]
    newest = max(*times, state.getOption[0] if state.exists else 0)
    state.update((newest, (state.getOption or (0, 0))[1] + len(times)))
    state.setTimeoutTimestamp(max(newest + 5_000, state.getCurrentWatermarkMs() + 1))
    yield _given(key, f"open {newest - ms(0)} {state.get}")


def brief(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """In processing time: a timeout of a millisecond, or of a year."""
    if state.hasTimedOut:
        yield _given(key, f"timed out {state.get}")
        state.remove()
        return
    n = sum(len(frame) for frame in frames) + (state.getOption or (0,))[0]
    state.update((n,))
    state.setTimeoutDuration(1 if key[0] == "brief" else 365 * 24 * 3_600_000)
    clock = state.getCurrentProcessingTimeMs() > ms(0)
    yield _given(key, f"{n} {clock} {state.hasTimedOut}")


def mistaken(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Mistakes that raise."""
    for name, mistake in (
        ("get", lambda: state.get),
        ("update with nothing", lambda: state.update(None)),
        ("a timeout without one", lambda: state.setTimeoutDuration(1)),
        ("a timestamp without one", lambda: state.setTimeoutTimestamp(1)),
        ("the watermark without one", lambda: state.getCurrentWatermarkMs()),
    ):
        try:
            mistake()
        except Exception as error:
            yield _given(key, f"{name}: {type(error).__name__}")


def raising(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    raise ValueError("this group is cursed")


def _apply(function: Any, state: str, timeout: str = "NoTimeout", mode: str = "Update") -> Operator:
    return Operator(
        keys=("k",),
        method="applyInPandasWithState",
        call={
            "func": function,
            "outputStructType": OUT,
            "stateStructType": state,
            "outputMode": mode,
            "timeoutConf": timeout,
        },
    )


def _watermarked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "10 seconds")


_COUNTED = {
    "groups: counted": ((1, 2), (3,), (4, 5)),
    "groups: removed and back": ((1,), (-1,), (7,)),
    "groups: never updated": ((0,), (0,)),
    "groups: left as it is": ((1,), (0,), (2,)),
}


SCENARIOS = (
    Scenario(
        "groups: state",
        "k string, v int",
        tuple(
            tuple(
                (name, v)
                for name, steps in _COUNTED.items()
                if step < len(steps)
                for v in steps[step]
            )
            for step in range(3)
        ),
        (_apply(counts, "n long, s long"),),
        parts=tuple(_COUNTED),
        restarts={2: None},
    ),
    Scenario(
        "groups: every type, append mode",
        "k string, v int",
        ((("a", 1),), (("a", 1), ("a", 2)), (("a", 1),)),
        (_apply(typed, _TYPED, mode="Append"),),
        mode="append",
    ),
    Scenario(
        "groups: event time timeout",
        "k string, t timestamp",
        (
            (("a", at(1)), ("a", at(3)), ("b", at(2))),
            (("b", at(30)), ("a", at(4))),
            (("c", at(70)), ("a", at(2))),
            (("a", at(71)),),
        ),
        (_apply(sessions, "newest long, n int", GroupStateTimeout.EventTimeTimeout),),
        prepare=_watermarked,
    ),
    Scenario(
        "groups: processing time timeout",
        "k string, v int",
        ((("brief", 1), ("long", 1)), (("long", 1), ("other", 1))),
        (_apply(brief, "n int", GroupStateTimeout.ProcessingTimeTimeout),),
        parts=("long", "brief"),
        whole=True,
        conf=STILL,
    ),
    Scenario("groups: mistakes", "k string, v int", ((("a", 1),),), (_apply(mistaken, "n int"),)),
    Scenario(
        "groups: an exception",
        "k string, v int",
        ((("a", 1),),),
        (_apply(raising, "n int"),),
        fails="this group is cursed",
    ),
    Scenario(
        "groups: a batch DataFrame is refused",
        "k string, v int",
        ((("a", 1), ("b", 2), ("a", 3)),),
        (_apply(counts, "n long, s long"),),
        batch=True,
        fails=r"(?i)batch|streaming",
    ),
)

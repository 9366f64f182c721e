"""Processors that take and give pandas frames: dtypes, chunks, names and positions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from support.processors.scenario import Initial, Plain, Scenario, at, process

__all__ = ["SCENARIOS"]


class Dtypes(Plain):
    """What frames and keys look like."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            looks = {name: str(dtype) for name, dtype in frame.dtypes.items()}
            values = [[repr(value) for value in row] for row in frame.itertuples(index=False)]
            yield pd.DataFrame({"key": [repr(key)], "looks": [f"{looks} {sorted(values)}"]})


class Chunks(Plain):
    """Rows of a key may come in several frames, as long as the session's limits say."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long, s long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, s = self.total.get() or (0, 0)
        lengths = []
        for frame in rows:
            n, s = n + len(frame), s + int(frame["v"].sum())
            lengths.append(len(frame))
        self.total.update((n, s))
        yield pd.DataFrame({"k": key, "n": n, "s": s, "lengths": [lengths]})


_CHUNKS_OUT = "k string, n long, s long, lengths array<int>"


class Frames(Plain):
    """Other ways to give frames: by name, by position, several, empty, none."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = sum(len(frame) for frame in rows)
        whole = pd.DataFrame({"k": [key[0]], "n": [n], "x": [0.5]})
        match key[0]:
            case "columns in another order":
                yield whole[["x", "n", "k"]]
            case "columns by position":
                yield pd.DataFrame([[key[0], n, 1.5]])
            case "several frames":
                yield whole
                yield whole
            case "an empty frame":
                yield whole.head(0)
            case "nulls":
                yield pd.DataFrame({"k": [key[0]] * 2, "n": [n, None], "x": [None, float("nan")]})
            case "a strange index":
                yield pd.DataFrame({"k": [key[0]] * 2, "n": [1, 2], "x": [1, 2]}, index=["p", "q"])


FRAMES = (
    "columns in another order",
    "columns by position",
    "several frames",
    "an empty frame",
    "nulls",
    "a strange index",
    "nothing",
)


class Started(Plain):
    """Initial state as frames of one row each, or of several."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.history = handle.getListState("history", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.history.appendList([(n,) for n in initialState["start"]])

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            self.history.appendList([(n,) for n in frame["v"]])
        what = repr(sorted(n for (n,) in self.history.get()))
        yield pd.DataFrame({"k": [key[0]], "what": [what]})


class Rich(Plain):
    """Everything that a frame can hold, out of state that holds it too."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState(
            "last", "d date, ts timestamp, c decimal(10,2), xs array<int>"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        d, ts, c, xs = self.last.get() or (None, None, None, None)
        for frame in rows:
            for row in frame.itertuples():
                self.last.update((row.d, row.ts, row.c, list(row.xs)))
        yield pd.DataFrame(
            {
                "k": [key[0]],
                "d": [d],
                "ts": [ts],
                "c": [c],
                "xs": [xs],
                "s": [{"x": 1, "y": ["a"]}],
                "m": [{"a": 1}],
                "y": [b"\x00"],
            }
        )


_START = (("starts, no rows", 100), ("starts, then rows", 10), ("several", 1), ("several", 2))
_SUMS = (
    (("starts, then rows", 5), ("several", 5), ("no start", 5)),
    (("starts, no rows", 1), ("starts, then rows", 1), ("several", 1)),
)

# One row a step: natively the dtype of a column depends on the keys that share a chunk.
_LOOKS = (
    (1, 1, 0.5, True, "s", at(0), date(2024, 1, 1), Decimal("1.5"), [1], {"p": 1, "q": "q"}, b"y"),
    (2, None, None, None, None, None, None, None, None, None, None),
    (None, 3, float("nan"), False, "", at(1.5), None, None, [], {"p": None, "q": None}, b""),
)

SCENARIOS = (
    Scenario(
        "pandas: dtypes of frames and keys",
        "a int, n long, x double, b boolean, s string, t timestamp, d date, c decimal(5,1), "
        "xs array<int>, m struct<p: int, q: string>, y binary",
        tuple((row,) for row in _LOOKS),
        (process(Dtypes(), "key string, looks string", "a", pandas=True),),
    ),
    Scenario(
        "pandas: chunks of two rows",
        "k string, v int",
        (
            tuple(("ab"[n % 2], n) for n in range(11)),
            tuple(("abc"[n % 3], n) for n in range(10)),
        ),
        (process(Chunks(), _CHUNKS_OUT, pandas=True),),
        conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "2"},
    ),
    Scenario(
        "pandas: keys of two columns, append mode, a restart",
        "a int, v int, k string",
        (((1, 1, "x"), (1, 2, "y")), ((1, 4, "x"),), ((None, 5, None),)),
        (process(Dtypes(), "key string, looks string", "k", "a", pandas=True, mode="Append"),),
        mode="append",
        restarts={1: None},
    ),
    Scenario(
        "pandas: frames given in many ways",
        "k string, v int",
        (tuple((name, 1) for name in FRAMES),),
        (process(Frames(), "k string, n long, x double", pandas=True),),
        parts=FRAMES,
    ),
    Scenario(
        "pandas: initial state",
        "k string, v long",
        _SUMS,
        (
            process(
                Started(),
                "k string, what string",
                pandas=True,
                initial=Initial("k string, start long", _START, ("k",)),
            ),
        ),
    ),
    Scenario(
        "pandas: every type through state and output",
        "k string, d date, ts timestamp, c decimal(10,2), xs array<int>",
        (
            (("a", date(2024, 1, 1), at(0.25), Decimal("1.50"), [1, 2]),),
            (
                ("a", date(2024, 1, 2), at(1), Decimal("2.50"), []),
                ("b", date(1900, 1, 1), at(2), Decimal(0), [3]),
            ),
            (("a", date(2024, 1, 3), at(2), Decimal("3.5"), [0]),),
        ),
        (
            process(
                Rich(),
                "k string, d date, ts timestamp, c decimal(10,2), xs array<int>, "
                "s struct<x: int, y: array<string>>, m map<string, int>, y binary",
                pandas=True,
            ),
        ),
    ),
    Scenario(
        "pandas: batch",
        "k string, v int",
        (tuple(("ab"[n % 2], n) for n in range(5)), (("c", 1), (None, 2))),
        (process(Chunks(), _CHUNKS_OUT, pandas=True),),
        conf={"spark.sql.execution.arrow.maxBytesPerBatch": "1b"},
        batch=True,
    ),
    Scenario(
        "pandas: batch with initial state",
        "k string, v long",
        _SUMS,
        (
            process(
                Started(),
                "k string, what string",
                pandas=True,
                initial=Initial("k string, start long", _START, ("k",)),
            ),
        ),
        batch=True,
    ),
)

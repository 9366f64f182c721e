"""Operators and functions of users who have made a mistake, in a module that workers can import.

Each gets rows with a key `k` and a number `v`, and fails at the one with `v == 3`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import braided


class Passes(braided.Operator):
    def onRow(self, row: Any) -> Iterator[Any]:
        yield row.k, row.v


class Raises(braided.Operator):
    def onRow(self, row: Any) -> Iterator[Any]:
        yield row.k, 1 // (row.v - 3)


class GivesText(braided.Operator):
    def onRow(self, row: Any) -> Iterator[Any]:
        yield row.k, "x" if row.v == 3 else 1


class KeepsText(braided.Operator):
    n: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.n = "x" if row.v == 3 else 1
        yield row.k, 1


class RaisesLater(braided.Operator):
    def onRow(self, row: Any) -> None:
        if row.v == 3:
            self.setTimer(self.batchTime)

    def onTimer(self, fired: Any) -> Any:
        raise LookupError("nothing is known of it")


class ColumnsRaise(braided.ColumnOperator):
    n: pa.int64() = 0  # type: ignore[valid-type]

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        raise LookupError("nothing is known of it")


class ColumnsGiveText(braided.ColumnOperator):
    n: pa.int64() = 0  # type: ignore[valid-type]

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        return state, {"k": self.keys["k"], "v": ["x"] * len(state)}


class ColumnsKeepText(braided.ColumnOperator):
    n: pa.int64() = 0  # type: ignore[valid-type]

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        return {"n": np.array(["x"] * len(state))}


class _Processor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")


class ProcessorRaises(_Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield Row(k=key[0], v=1 // (row.v - 3))


class ProcessorGivesText(_Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield Row(k=key[0], v="x" if row.v == 3 else 1)


class ProcessorKeepsText(_Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.n.update(("x" if row.v == 3 else 1,))
        return iter(())


class FramesGiveText(_Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            yield pd.DataFrame({"k": [key[0]], "v": ["x" if 3 in frame["v"].array else 1]})


def frames_keep_text(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    for frame in frames:
        state.update(("x" if 3 in frame["v"].array else 1,))
        yield pd.DataFrame({"k": [key[0]], "v": [1]})


shares: dict[str, int] = {}
texts: dict[str, int] = {}
given: dict[str, int] = {}


def raises(row: Any) -> Iterator[Any]:
    shares[row.k] = 1 // (row.v - 3)
    yield {"k": row.k, "v": 1}


def keeps_text(row: Any) -> Iterator[Any]:
    texts[row.k] = "x" if row.v == 3 else 1
    yield {"k": row.k, "v": 1}


def gives_text(row: Any) -> Iterator[Any]:
    given[row.k] = row.v
    yield {"k": row.k, "v": "x" if row.v == 3 else 1}


def divides(v: int) -> int:
    return 1 // (v - 3)


def refuses(rows: Any, batch: int) -> None:
    raise KeyError("no such account")


def computes(rows: Any, batch: int) -> None:
    rows.selectExpr("1 div (v - 3)").collect()


class Sends:
    def process(self, row: Any) -> None:
        if row.v == 3:
            raise ConnectionError("nobody listens")

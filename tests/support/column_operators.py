"""Columnar operators for tests on Spark, in a module that workers can import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import braided

__all__ = ["Reminded", "Sequence"]

FAR = np.datetime64("2090-01-01", "us")


class Sequence(braided.ColumnOperator):
    """Keeps the numbers of a key's rows in the order in which they come."""

    seen: pa.list_(pa.int64()) = []  # noqa: RUF012

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        seen = state["seen"].to_pylist()
        for key, seq in zip(index.tolist(), rows["seq"].to_pylist(), strict=True):
            seen[key] = [*seen[key], seq]
        return {"seen": seen, **self.more(state)}, rows

    def more(self, state: pa.Table) -> dict[str, Any]:
        return {}


class Reminded(Sequence):
    """The next version: with one more field, and a time."""

    calls: pa.int32() = 0

    def more(self, state: pa.Table) -> dict[str, Any]:
        calls = state["calls"].to_numpy() + np.int32(1)
        return {"calls": calls, "due": np.full(len(calls), FAR)}

    def onDue(self, state: pa.Table, due: pa.ChunkedArray) -> None:
        """Not in this century."""

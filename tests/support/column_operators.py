"""Columnar operators for tests on Spark, in a module that workers can import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import braided

__all__ = ["Reminded", "Sequence", "column_version"]

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


def column_version(number: int) -> type[braided.ColumnOperator]:
    """`Totals` as it was written over time."""
    if number == 1:

        class Totals(braided.ColumnOperator):
            count: pa.int64() = 0
            sum: pa.int64() = 0

            def onRows(self, state: Any, rows: Any, index: Any) -> Any:
                total = _added(state["sum"], rows, index)
                return {"count": _counted(state, index), "sum": total}, _shown(self.keys, total)

        return Totals
    if number == 2:

        class Totals(braided.ColumnOperator):  # type: ignore[no-redef]
            total: pa.int64() = braided.renamed("sum", default=0)
            label: pa.string() = "new"
            count: pa.int64() = 0

            def onRows(self, state: Any, rows: Any, index: Any) -> Any:
                total = _added(state["total"], rows, index)
                return {"count": _counted(state, index), "total": total}, _shown(self.keys, total)

        return Totals

    class Totals(braided.ColumnOperator):  # type: ignore[no-redef]
        average: pa.float64() = 0.0
        label: pa.string() = None

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            return None, _shown(self.keys, (state["average"].to_numpy() * 10).astype(int))

        @classmethod
        def upgrade(cls, old: pa.Table) -> dict[str, Any]:
            total = old["total" if "total" in old.column_names else "sum"]
            return {"average": total.to_numpy() / old["count"].to_numpy()}

    return Totals


def _counted(state: pa.Table, index: Any) -> Any:
    return state["count"].to_numpy() + np.bincount(index)


def _added(before: pa.ChunkedArray, rows: pa.Table, index: Any) -> Any:
    return before.to_numpy() + np.bincount(index, rows["v"].to_numpy()).astype(int)


def _shown(keys: pa.Table, values: Any) -> dict[str, Any]:
    return {"k": keys["k"], "v": values}

"""The case of columnar operators: a field of each way in which values lie in a record."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import braided
from compat.case import Batches, Expected, files
from compat.operators import FAR_MS

__all__ = ["columns", "expected_columns"]


class Columns(braided.ColumnOperator):
    count: pa.int64() = 0
    total: pa.float64() = 0.0
    odd: pa.bool_() = False
    small: pa.int8() = None
    name: pa.string() = None
    raw: pa.binary() = b""
    recent: pa.list_(pa.int32()) = []  # noqa: RUF012
    vector: pa.list_(pa.float32(), 3) = (0.0, 1.0, 2.0)
    day: pa.date32() = None
    waited: pa.duration("us") = timedelta()
    tags: pa.list_(pa.string()) = None
    point: pa.struct([("x", pa.float64()), ("c", pa.int64())]) = None

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        last = np.r_[index[1:] != index[:-1], True]
        newest = rows.filter(pa.array(last)).to_pylist()
        many = np.bincount(index)
        raw, recent = state["raw"].to_pylist(), state["recent"].to_pylist()
        waited = state["waited"].to_pylist()
        for key, v, seq in zip(index, rows["v"].to_pylist(), rows["seq"].to_pylist(), strict=True):
            raw[key] += bytes([seq])
            recent[key] = [*recent[key], None if v % 5 == 0 else v][-3:]
            waited[key] += timedelta(seconds=seq)
        count = state["count"].to_numpy() + many
        total = state["total"].to_numpy() + np.bincount(index, rows["x"].to_numpy())
        new = {
            "count": count,
            "total": total,
            "odd": (count % 2).astype(bool),
            "small": np.array([row["c"] for row in newest], np.int8),
            "name": [str(row["c"]) for row in newest],
            "raw": raw,
            "recent": recent,
            "vector": braided.matrix(state["vector"]) + many[:, None].astype(np.float32),
            "day": [date(2024, 3, 1 + row["c"]) for row in newest],
            "waited": waited,
            "tags": [[str(row["c"]), None] for row in newest],
            "point": [{"x": row["x"], "c": row["c"]} for row in newest],
            "due": np.array([1000 * (FAR_MS + row["seq"]) for row in newest], "datetime64[us]"),
        }
        keys = self.keys["k"]
        seq = [row["seq"] for row in newest]
        return new, {"k": keys, "count": count, "total": total, "seq": seq}

    def onDue(self, state: pa.Table, due: pa.ChunkedArray) -> None:
        """Not in this century."""


def columns(source: DataFrame, home: Path) -> list[Any]:
    kept = (
        braided.stream(source)
        .groupBy("k")
        .apply(Columns, "k string, count bigint, total double, seq bigint")
    )
    return [files(kept, home)]


def expected_columns(batches: Batches) -> Expected:
    found = Expected({"out": []}, {"Columns": {}}, {"Columns": {}})
    for batch in batches:
        newest = {row.k: row.seq for row in batch}
        for row in batch:
            name = str(row.c)
            before = found.state["Columns"].get((row.k,), {})
            count = before.get("count", 0) + 1
            now = {
                "count": count,
                "total": before.get("total", 0.0) + row.x,
                "odd": count % 2 == 1,
                "small": row.c,
                "name": name,
                "raw": bytes(before.get("raw", b"")) + bytes([row.seq]),
                "recent": [*before.get("recent", []), None if row.v % 5 == 0 else row.v][-3:],
                "vector": [each + 1 for each in before.get("vector", [0.0, 1.0, 2.0])],
                "day": date(2024, 3, 1 + row.c),
                "waited": before.get("waited", timedelta()) + timedelta(seconds=row.seq),
                "tags": [name, None],
                "point": {"x": row.x, "c": row.c},
            }
            found.state["Columns"][(row.k,)] = now
            found.timers["Columns"][(row.k,)] = [FAR_MS + row.seq]
            if newest[row.k] == row.seq:
                found.output["out"].append((row.k, count, now["total"], row.seq))
    return found

"""Operators whose output goes to tables, in a module that workers can import."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import braided

__all__ = ["WIDE", "Widened"]

WIDE = (
    "k string, d decimal(10,2), day date, at timestamp, local timestamp_ntz, n int, "
    "l array<struct<x: int>>, b boolean, f double"
)


class Widened(braided.Operator):
    """A row of every type for each row."""

    count: int = 0

    def onRow(self, row: Any) -> Any:
        self.count += 1
        moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456 + row.n)
        yield {
            "k": row.k,
            "d": Decimal(row.n) / 4,
            "day": moment.date() if row.n else None,
            "at": moment.replace(tzinfo=dt.UTC),
            "local": moment,
            "n": row.n,
            "l": [{"x": row.n}],
            "b": row.n % 2 == 0,
            "f": float("nan") if row.n == 1 else row.n / 3,
        }

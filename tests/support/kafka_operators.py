"""Operators of the tests with Kafka; workers import them from here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import braided

__all__ = ["Counts", "Numbers"]


class Numbers(braided.Operator):
    """Numbers the rows of a key as they come."""

    rows: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[Any, ...]]:
        self.rows += 1
        yield row.k, self.rows, row.v


class Counts(StatefulProcessor):
    """The same for a native query."""

    def init(self, handle: Any) -> None:
        self.rows = handle.getValueState("rows", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (n,) = self.rows.get() or (0,)
        for row in rows:
            n += 1
            yield Row(k=key[0], n=n, v=row.v)
        self.rows.update((n,))

    def close(self) -> None:
        pass

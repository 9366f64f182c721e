"""Operators of queries that are made to be killed, in a module that workers can import."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row

import braided

__all__ = ["FORGET_AT", "OPERATORS", "TOTALS", "Tokens", "Totals"]

FORGET_AT = 9


class Totals(braided.Operator):
    """Deterministic. Drops its key now and then, so that removals are rolled back too."""

    count: int = 0
    total: int = 0

    def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
        self.count += 1
        self.total += row.amount
        yield row.id, row.key, self.count, self.total
        if self.count == FORGET_AT:
            self.forget()


class Tokens(braided.Operator):
    """Not deterministic: every row draws a token, which the next row of the key gives out."""

    token: str = ""
    count: int = 0

    def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
        before, self.token = self.token, uuid.uuid4().hex
        self.count += 1
        yield row.id, row.key, before, self.token


class Sums(braided.Operator):
    """Can merge, so that its keys are split; what it gives out does not depend on its state."""

    count: int = 0
    total: int = 0

    def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
        self.count += 1
        self.total += row.amount
        yield row.id, row.key, 1, row.amount

    def merge(self, other: Any) -> None:
        self.count += other.count
        self.total += other.total


class DyingTotals(Totals):
    """Kills its worker process at some rows, each of them once."""

    def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
        if row.amount < 0:
            try:
                Path(os.environ["DEATHS"], str(row.id)).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        yield from super().onRow(row)


TOTALS = "id long, key string, count long, total long"
OPERATORS: dict[str, tuple[type[braided.Operator], str]] = {
    "totals": (Totals, TOTALS),
    "dying": (DyingTotals, TOTALS),
    "sums": (Sums, TOTALS),
    "tokens": (Tokens, "id long, key string, before string, token string"),
}

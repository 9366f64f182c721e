"""Operators of queries that are made to be killed, in a module that workers can import."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

import braided

__all__ = ["FORGET_AT", "OPERATORS", "TOTALS", "Tokens", "Totals"]

FORGET_AT = 9
ROW_S = 0.01


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


class SlowTotals(Totals):
    """The same, so slowly that a batch can be cut while it runs."""

    def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
        time.sleep(ROW_S)
        yield from super().onRow(row)


class ColumnTotals(braided.ColumnOperator):
    """The same for all keys of a call."""

    count: pa.int64() = 0
    total: pa.int64() = 0

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        count, total = (state[name].to_numpy().copy() for name in ("count", "total"))
        amount = rows["amount"].to_numpy()
        given = {"count": np.zeros(len(index), int), "total": np.zeros(len(index), int)}
        for turn in braided.turns(index):
            keys = index[turn]
            count[keys] += 1
            total[keys] += amount[turn]
            given["count"][turn], given["total"][turn] = count[keys], total[keys]
            forgotten = keys[count[keys] == FORGET_AT]
            count[forgotten] = total[forgotten] = 0
        new = {"count": count, "total": total, "remove": count == 0}
        return new, {"id": rows["id"], "key": rows["key"], **given}


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
OPERATORS: dict[str, tuple[Any, str]] = {
    "columns": (ColumnTotals, TOTALS),
    "totals": (Totals, TOTALS),
    "slow": (SlowTotals, TOTALS),
    "dying": (DyingTotals, TOTALS),
    "sums": (Sums, TOTALS),
    "tokens": (Tokens, "id long, key string, before string, token string"),
}

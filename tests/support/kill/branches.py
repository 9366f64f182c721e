"""A flow that parts: one operator, six behind it, three sinks; and what it should have made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

import braided
from braided.api.writer import StreamWriter
from support.kill.operators import TOTALS, Totals
from support.kill.oracle import InputRow, TotalsRow, totals

__all__ = ["BRANCHES", "SINKS", "Expected", "expected", "writers"]

BRANCHES = 6
SINKS = {"first": (0, 1), "by-batch": (4, 5), "last": (2, 3)}
"""Which branches a sink has; the one in the middle is a foreachBatch and has "op" as well."""


def writers(rows: DataFrame, output: Path) -> list[StreamWriter]:
    up = braided.stream(rows).groupBy("key").apply(Totals, TOTALS).name("op")
    branches = [
        up.filter(f"id % {BRANCHES} = {i}")
        .selectExpr("id", "key", "total AS amount")
        .groupBy("key")
        .apply(Totals, TOTALS)
        .name(f"branch{i}")
        for i in range(BRANCHES)
    ]
    found = []
    for name, (one, other) in SINKS.items():
        both = branches[one].union(branches[other])
        if name == "by-batch":
            found.append(both.union(up).writeStream.foreachBatch(_by_batch(output / name)))
        else:
            found.append(both.writeStream.format("parquet").option("path", str(output / name)))
    return found


def _by_batch(directory: Path) -> Callable[[DataFrame, int], None]:
    """Writes the rows of a batch under its id: once more is no harm."""
    directory.mkdir(parents=True, exist_ok=True)

    def write(rows: DataFrame, batch: int) -> None:
        half = directory / f"{batch}.half"
        half.write_text("".join(json.dumps(row.asDict()) + "\n" for row in rows.collect()))
        os.replace(half, directory / f"{batch}.json")

    return write


class Expected(NamedTuple):
    rows: dict[str, list[TotalsRow]]
    """By sink."""
    state: dict[str, dict[str, Any]]
    """By operator and key."""


def expected(batches: list[list[InputRow]]) -> Expected:
    up, kept = totals(batches)
    state: dict[str, dict[str, Any]] = {"op": kept}
    branches = []
    for i in range(BRANCHES):
        rows = [InputRow(row.id, row.key, row.total) for row in up if row.id % BRANCHES == i]
        out, state[f"branch{i}"] = totals([rows])
        branches.append(out)
    shown = {name: branches[one] + branches[other] for name, (one, other) in SINKS.items()}
    shown["by-batch"] += up
    return Expected(shown, state)

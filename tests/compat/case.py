"""A case: one query of the compatibility suite, and what it should have made of its input.

Only Braided's public API is used here and in the flows, so that the very same query runs with the
code of any commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import braided
from compat import source as feed
from compat.source import InputRow

__all__ = [
    "DELAY_S",
    "Batches",
    "Case",
    "Expected",
    "Row",
    "all_of",
    "by_batch",
    "files",
    "in_files",
    "in_json",
    "only_files",
    "started",
]

DELAY_S = 30
"""Of the watermark."""

Row = tuple[Any, ...]
Batches = Sequence[Sequence[InputRow]]
Writers = Callable[[DataFrame, Path], list[Any]]


@dataclass
class Expected:
    """What a query has made of its input."""

    output: dict[str, list[Row]] = field(default_factory=dict)
    """By sink; order means nothing."""
    state: dict[str, dict[Row, dict[str, Any]]] = field(default_factory=dict)
    """By operator and key, as `braided.state` shows it."""
    timers: dict[str, dict[Row, list[int]]] = field(default_factory=dict)
    """In milliseconds; by operator, where it sets any."""
    dead: list[Row] = field(default_factory=list)
    """Operator, key and row of the rows that were diverted."""


@dataclass(frozen=True)
class Case:
    """One query."""

    writers: Writers
    """What is started, given the input and the directory of the query."""
    expected: Callable[[Batches], Expected]
    output: Callable[[SparkSession, Path], dict[str, list[Row]]]
    """What the sinks hold."""
    old: Sequence[int] = (12, 8)
    """The sizes of the batches in the checkpoint."""
    new: Sequence[int] = (9, 6)
    """The sizes of the batches that come then."""
    options: Mapping[str, Any] = field(default_factory=dict)
    crashed: bool = False
    """Whether the last old batch is to be delivered again."""

    @property
    def batches(self) -> list[int]:
        return [*self.old, *self.new]


def started(
    case: Case, spark: SparkSession, home: Path, batches: int, writers: Writers | None = None
) -> Any:
    """The query on the directories of `home`, with so many batches of input."""
    feed.write(home, case.batches[:batches])
    source = feed.frame(spark, home).withWatermark("at", f"{DELAY_S} seconds")
    made = (writers or case.writers)(source, home)
    made[0].option("checkpointLocation", str(home / "checkpoint"))
    made[0].option("braided.cache.dir", str(home / "cache"))
    for name, value in {"slots": 8, "channels": 2, **case.options}.items():
        made[0].option(f"braided.{name}", value)
    return braided.start(*made)


# -- sinks -----------------------------------------------------------------------------------------


def files(stream: Any, home: Path, name: str = "out") -> Any:
    return stream.writeStream.format("parquet").option("path", str(home / name))


def by_batch(stream: Any, home: Path, name: str) -> Any:
    """A file for each batch; once more is no harm."""

    def write(rows: DataFrame, batch: int) -> None:
        (home / name).mkdir(exist_ok=True)
        text = json.dumps([list(row) for row in rows.collect()])
        (home / name / f"{batch}.json").write_text(text)

    return stream.writeStream.foreachBatch(write)


def in_files(spark: SparkSession, path: Path) -> list[Row]:
    """What a reader of a file sink sees."""
    return [tuple(row) for row in spark.read.parquet(str(path)).collect()]


def in_json(path: Path) -> list[Row]:
    found = [row for file in sorted(path.glob("*.json")) for row in json.loads(file.read_text())]
    return [tuple(row) for row in found]


def only_files(spark: SparkSession, home: Path) -> dict[str, list[Row]]:
    return {"out": in_files(spark, home / "out")}


def all_of(batches: Batches) -> list[InputRow]:
    return [row for batch in batches for row in batch]

"""The input of all cases: files of rows, one for each batch, the same whenever they are written.

They are no part of a fixture. Whoever makes one or continues one writes the files that it has to
have, and a batch that is delivered again finds in them what it found at first.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DIRECTORY", "KEYS", "InputRow", "batches_of", "frame", "write"]

DIRECTORY = "in"
SCHEMA = "k string, c int, v bigint, x double, seq bigint, at timestamp"
START = datetime(2024, 3, 1, 12, tzinfo=UTC)
KEYS = ("a", "b", None, "ü", "long " + "x" * 600)
"""One of each kind that is stored in a way of its own: the last is kept under a digest."""
_WRITTEN_S = 1_700_000_000


class InputRow(NamedTuple):
    k: str | None
    c: int
    v: int
    x: float
    seq: int
    at: datetime


def batches_of(sizes: Sequence[int]) -> list[list[InputRow]]:
    """The rows of batches of these sizes."""
    ends = itertools.accumulate(sizes, initial=0)
    return [[_row(i) for i in range(*span)] for span in itertools.pairwise(ends)]


def _row(i: int) -> InputRow:
    v = i * 37 % 101 - 20
    return InputRow(KEYS[i * 7 % 5], i % 3, v, v / 4, i, START + timedelta(seconds=10 * i))


def write(home: Path, sizes: Sequence[int]) -> None:
    """Makes the batches of these sizes arrive, those that have not yet."""
    (home / DIRECTORY).mkdir(exist_ok=True)
    for number, batch in enumerate(batches_of(sizes)):
        path = home / DIRECTORY / f"{number:05d}.json"
        if path.exists():
            continue
        rows = [row._asdict() | {"at": row.at.isoformat()} for row in batch]
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes the oldest files first.
        os.utime(hidden, (_WRITTEN_S + number, _WRITTEN_S + number))
        os.replace(hidden, path)


def frame(spark: SparkSession, home: Path) -> DataFrame:
    """The input as a stream, a file a batch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(home / DIRECTORY))

"""The input of all cases: a stream that needs no files, so that a checkpoint names no place.

Row number i is `row(i)`, at any time and on any machine. Options say how many rows there are
(`until`) and where batches end (`ends`), so that a batch is the same rows whenever it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["KEYS", "SCHEMA", "START", "InputRow", "frame", "row", "rows"]

SCHEMA = "k string, c int, v bigint, x double, seq bigint, at timestamp"
START = datetime(2024, 3, 1, 12, tzinfo=UTC)
KEYS = ("a", "b", None, "ü", "long " + "x" * 600)
"""One of each kind that is stored in a way of its own: the last is kept under a digest."""


class InputRow(NamedTuple):
    k: str | None
    c: int
    v: int
    x: float
    seq: int
    at: datetime


def row(i: int) -> InputRow:
    v = i * 37 % 101 - 20
    return InputRow(KEYS[i * 7 % 5], i % 3, v, v / 4, i, START + timedelta(seconds=10 * i))


def rows(until: int) -> list[InputRow]:
    return [row(i) for i in range(until)]


def frame(spark: SparkSession, batches: Sequence[int], until: int) -> DataFrame:
    """The first rows as a stream, in batches of these sizes."""
    spark.dataSource.register(CompatRows)
    ends = ",".join(map(str, itertools.accumulate(batches)))
    return spark.readStream.format("compat_rows").options(until=until, ends=ends).load()


class _Span(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self._until = int(options["until"])
        self._ends = [int(end) for end in options["ends"].split(",")]

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        end = next((end for end in self._ends if end > start["row"]), start["row"])
        return {"row": max(start["row"], min(end, self._until))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Span(start["row"], end["row"])] if start["row"] < end["row"] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Span)
        yield from map(row, range(partition.start, partition.end))


class CompatRows(DataSource):
    @classmethod
    def name(cls) -> str:
        return "compat_rows"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)

"""Lists of columns that the JVM was told once, to be used in the plan of every batch.

To tell the JVM of a column takes a call, and a parser where it is SQL. A batch's plan is made from
few calls, so what stays the same from batch to batch is kept there and referred to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import _to_java_column, _to_seq

__all__ = ["ColumnList", "NameList"]


class ColumnList:
    """Columns in the JVM."""

    def __init__(self, spark: SparkSession, columns: Sequence[Column]) -> None:
        self._columns: Any = _to_seq(spark.sparkContext, columns, _to_java_column)

    def select(self, frame: DataFrame) -> DataFrame:
        return DataFrame(frame._jdf.select(self._columns), frame.sparkSession)

    def sort_within_partitions(self, frame: DataFrame) -> DataFrame:
        return DataFrame(frame._jdf.sortWithinPartitions(self._columns), frame.sparkSession)


class NameList:
    """Names of columns in the JVM."""

    def __init__(self, spark: SparkSession, names: Sequence[str]) -> None:
        self._names: Any = _to_seq(spark.sparkContext, names)

    def drop(self, frame: DataFrame) -> DataFrame:
        return DataFrame(frame._jdf.drop(self._names), frame.sparkSession)

"""Counts the rows that a filter takes out, in the JVM and on the way.

A row that is late is dropped before it is routed, by a filter of Spark's, which tells nobody how
many it has dropped. So the filter asks, for a row that it is about to drop and for no other, a
function that counts and says no. It is written in Java, and its count is an accumulator of Spark's,
like the metrics that Spark shows: tasks that run again may count rows twice. Where it can't be
compiled, the log says so, and rows are dropped without being counted.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from braided.spark.java_classes import java_object
from braided.spark.jvm import java_class

__all__ = ["LateRows"]

log = logging.getLogger("braided")

_SOURCE = """
package braided;

import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.util.LongAccumulator;

public class LateRow implements UDF0 {
  private final LongAccumulator count;

  private LateRow(LongAccumulator count) { this.count = count; }

  public Object call() {
    count.add(1L);
    return Boolean.FALSE;
  }

  public static class Maker implements java.util.function.Function {
    public Object apply(Object count) {
      UDF0 late = new LateRow((LongAccumulator) count);
      return functions.udf(late, DataTypes.BooleanType);
    }
  }
}
"""


class LateRows:
    """The rows that one operator of a query does not get."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._maker = java_object(spark, _SOURCE, "braided.LateRow$Maker", ships=True)
        self._count: Any = None
        self._used = False

    def begin(self) -> None:
        """From here on they count."""
        if self._used:
            self._count.reset()
        self._used = False

    def dropped(self, rows: DataFrame, keep: str) -> DataFrame:
        """The rows that an SQL condition keeps; the others are counted when that is computed."""
        counted = self._counted
        if counted is None:
            return rows.filter(F.expr(keep))
        self._used = True
        return rows.filter(F.expr(keep) | counted)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody counts."""
        return self._counted is None

    @property
    def count(self) -> int:
        return int(self._count.value()) if self._used else 0

    @cached_property
    def _counted(self) -> Column | None:
        context: Any = self._context
        try:
            maker = self._maker.result()
        except (PySparkException, Py4JError, OSError, TypeError) as error:
            log.warning("late rows are dropped and not counted: %s", str(error).split("\n", 1)[0])
            return None
        self._count = context._jsc.sc().longAccumulator("late rows")
        function = maker.apply(self._count).asNondeterministic()
        sequences = java_class(context._jvm, "org.apache.spark.api.python.PythonUtils")
        return ClassicColumn(function.apply(sequences.toSeq([])))

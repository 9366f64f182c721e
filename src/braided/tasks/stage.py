"""What all keyed stages of a plan have in common: a Python function over the rows of a channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from braided.flow.route import order_columns
from braided.store.history.manifest import OperatorMeta
from braided.tasks.state_location import Place

__all__ = ["Mapped"]

_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Mapped:
    """One keyed operator with all that does not change between batches."""

    def __init__(self, meta: OperatorMeta, order: int, place: Place, output: StructType) -> None:
        self.meta = meta
        self.order = order
        """Order columns of its input; its output has one more."""
        self._place = place
        self._output = output

    def _task(self, keep_order: bool) -> tuple[_Task, list[str]]:
        """What runs in every partition, and the columns that it reads."""
        raise NotImplementedError

    def _mapped(self, routed: DataFrame, tagged: bool) -> DataFrame:
        """What the task gives out for rows that are where they belong."""
        function = self._tagged if tagged else self._plain
        return DataFrame(routed._jdf.mapInArrow(function, False, None), routed.sparkSession)

    @cached_property
    def _plain(self) -> Any:
        """The task as a JVM column; its output is the rows alone."""
        return _function(*self._task(False), self._output)

    @cached_property
    def _tagged(self) -> Any:
        """The same with order columns in front of its output."""
        tags = [StructField(name, LongType()) for name in order_columns(self.order + 1)]
        return _function(*self._task(True), StructType([*tags, *self._output.fields]))

    def _shared(self, keep_order: bool) -> dict[str, Any]:
        """What every task is told."""
        place = self._place
        return {
            "meta": self.meta,
            "flow": place.flow,
            "root": place.root,
            "cache": place.cache,
            "limits": place.limits,
            "order": self.order,
            "keep_order": keep_order,
        }


def _function(task: _Task, inputs: list[str], output: StructType) -> Any:
    # What DataFrame.mapInArrow does, once and not once per batch.
    function = pandas_udf(
        task,
        returnType=output,
        functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,  # type: ignore[call-overload]
    )
    return function(*map(F.col, inputs))._jc

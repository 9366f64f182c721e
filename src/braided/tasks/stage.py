"""A keyed step as a stage of a batch's plan: a Python function over the rows of each channel.

A plan is made anew for every batch, so it is made from few calls into the JVM: what does not
change between batches (columns, the Python function, the parsed table) is made once and used
again. What does change travels with the job as one local property, `BATCH_PROPERTY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.util import PythonEvalType

from braided.control.routing.table import RoutingTable
from braided.orders.address import LineAddress
from braided.spark.placed_frames import PlacedFrames
from braided.store.history.manifest import OperatorMeta
from braided.tasks.columns import order_columns
from braided.tasks.key_pairs import PairSetting
from braided.tasks.state_location import StateLocation

__all__ = ["KeyedStage", "StageInput", "StageSetting"]

_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class StageSetting:
    """What a stage is told of the query that it is in."""

    meta: OperatorMeta
    order: int
    """Order columns of its input; its output has one more."""
    location: StateLocation
    reports: Accumulator[list[bytes]]
    divert: bool
    """Whether a row whose operator raises goes to the dead letters."""
    placed: PlacedFrames | None = None
    """What runs channels on the hosts that the table names; None where that can't be."""
    line: LineAddress | None = None
    """How the driver reaches running tasks; None if it does not."""
    pairs: PairSetting | None = None
    """What is counted of the keys of rows that go on; None for nothing."""


@dataclass(frozen=True)
class StageInput:
    """The rows of a batch that a stage gets, and by which table."""

    frame: DataFrame
    table: RoutingTable
    admitted: list[str]
    """SQL for order columns that the frame does not have yet."""
    aged: bool
    """Whether some rows were left over by an earlier batch."""
    tagged: bool
    """Whether output rows are to have order columns."""


class KeyedStage:
    """One keyed step with all that does not change between batches."""

    def __init__(self, setting: StageSetting, output: StructType) -> None:
        self.setting = setting
        self.order = setting.order
        self._output = output

    def apply(self, rows: StageInput) -> DataFrame:
        """Rows in, output rows out."""
        raise NotImplementedError

    @property
    def takes_carry(self) -> bool:
        """Whether rows that are new can wait for the next batch: its tasks do those of the carry by
        themselves.
        """
        return False

    @property
    def rows_are_counted(self) -> bool:
        """Whether the rows that its tasks get are those that arrive, so that who counts these by
        slot knows what its channels will have to do.
        """
        return False

    def counted(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """Slots and how many of the rows each has, where that can be counted."""
        raise NotImplementedError

    def late(self, frame: DataFrame, watermark_ms: int) -> DataFrame | None:
        """The rows that its tasks drop because the watermark has passed their groups, as `key` and
        `row`; None where they drop none.
        """
        return None

    def _task(self, keep_order: bool) -> tuple[_Task, list[str]]:
        """What runs in every partition, and the columns that it reads."""
        raise NotImplementedError

    def _mapped(self, routed: DataFrame, rows: StageInput) -> DataFrame:
        """What the task gives out for rows that have one partition per channel."""
        function = self._tagged if rows.tagged else self._plain
        if self.setting.placed is not None and any(rows.table.hosts):
            routed = self.setting.placed.place(routed, rows.table.hosts)
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
        location = self.setting.location
        return {
            "meta": self.setting.meta,
            "flow": location.flow,
            "store": location.store,
            "cache": location.cache,
            "limits": location.limits,
            "order": self.order,
            "keep_order": keep_order,
            "line": self.setting.line,
            "pairs": self.setting.pairs,
        }


def _function(task: _Task, inputs: list[str], output: StructType) -> Any:
    # This is what DataFrame.mapInArrow does, but done once and not once per batch.
    function = pandas_udf(
        task,
        returnType=output,
        functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,  # type: ignore[call-overload]
    )
    return function(*map(F.col, inputs))._jc

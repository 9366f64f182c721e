"""`braided.stream` of a DataFrame that is not streaming: what Spark runs on one, runs here too.

As in Spark, a StatefulProcessor then sees all rows as one batch, starts with no state but what it
makes of `initialState`, and leaves none. The result is an ordinary DataFrame.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from braided.api.grouping import Grouping
from braided.api.processors import ProcessorMethods
from braided.errors import DefinitionError, UnsupportedError
from braided.kinds.processor.static_frames import process_batch
from braided.kinds.processor.step import ProcessorStep
from braided.spark.interpreter import check_workers

__all__ = ["GroupedFrame", "StaticStream"]


class StaticStream:
    """A DataFrame that is not streaming, to be grouped."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df

    @property
    def schema(self) -> StructType:
        return self._df.schema

    @property
    def columns(self) -> list[str]:
        return self._df.columns

    @property
    def isStreaming(self) -> bool:
        return False

    def groupBy(self, *cols: str | Column | list[Any]) -> GroupedFrame:
        """Groups rows, for `transformWithState` and `transformWithStateInPandas`."""
        return GroupedFrame(Grouping.of(self._df, cols))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise DefinitionError(
            f"{name}: braided.stream takes a streaming DataFrame (spark.readStream...); this one "
            "is not streaming. Only groupBy(...).transformWithState(...) and "
            "transformWithStateInPandas(...) work on it"
        )


class GroupedFrame(ProcessorMethods[DataFrame]):
    """Rows of a DataFrame by key."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping

    def applyInPandasWithState(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            "applyInPandasWithState is unsupported in batch query. Use applyInPandas instead."
        )

    def _then(self, step: ProcessorStep) -> DataFrame:
        check_workers(self._grouping.shape.sparkSession)
        return process_batch(self._grouping.shape, step)

    def _has_watermark(self) -> bool:
        return False  # as in Spark

    def _taken_names(self) -> set[str]:
        return set()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise DefinitionError(
            f"groupBy(...).{name}: braided.stream takes a streaming DataFrame "
            "(spark.readStream...); this one is not streaming. Only transformWithState and "
            "transformWithStateInPandas work on it"
        )

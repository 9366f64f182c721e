"""`braided.stream` of a DataFrame that is not streaming: what Spark runs on one, runs here too.

As in Spark, a StatefulProcessor then sees all rows as one batch, starts with no state but what it
makes of `initialState`, and leaves none. The result is an ordinary DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from braided.api.processors import Processing
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.route import Keys
from braided.flow.step import KeyedStep
from braided.kinds.processor.static_frames import process_batch
from braided.kinds.processor.step import ProcessorStep
from braided.spark.interpreter import check_workers

__all__ = ["Batch", "GroupedBatch"]


class Batch:
    """A DataFrame that is not streaming, to be grouped."""

    def __init__(self, df: DataFrame, group: Callable[..., Any]) -> None:
        self._shape = df
        self._group = group

    @property
    def schema(self) -> StructType:
        return self._shape.schema

    @property
    def columns(self) -> list[str]:
        return self._shape.columns

    @property
    def isStreaming(self) -> bool:
        return False

    def groupBy(self, *cols: str | Column | list[Any]) -> GroupedBatch:
        """Groups rows, for `transformWithState` and `transformWithStateInPandas`."""
        grouped = self._group(self, *cols)
        return GroupedBatch(self, grouped._cols, grouped._key, grouped._keys)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise DefinitionError(
            f"{name}: braided.stream takes a streaming DataFrame (spark.readStream...); this one "
            "is not streaming. Only groupBy(...).transformWithState(...) and "
            "transformWithStateInPandas(...) work on it"
        )


class GroupedBatch(Processing):
    """Rows of a DataFrame by key."""

    def __init__(self, batch: Batch, cols: list[str | Column], key: StructType, keys: Keys) -> None:
        self._stream: Any = batch
        self._cols, self._key, self._keys = cols, key, keys

    def applyInPandasWithState(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            "applyInPandasWithState is unsupported in batch query. Use applyInPandas instead."
        )

    def _free_name(self, name: str) -> str:
        return name

    def _then(self, step: KeyedStep) -> Any:
        assert isinstance(step, ProcessorStep)
        check_workers(self._stream._shape.sparkSession)
        return process_batch(self._stream._shape, step)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise DefinitionError(
            f"groupBy(...).{name}: braided.stream takes a streaming DataFrame "
            "(spark.readStream...); this one is not streaming. Only transformWithState and "
            "transformWithStateInPandas work on it"
        )

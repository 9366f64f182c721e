"""Schemas that users give, checked by Spark before anything is started."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braided.errors import DefinitionError

__all__ = ["empty_frame", "refuse_hidden_names"]


def empty_frame(session: SparkSession, schema: StructType | str, what: str) -> DataFrame:
    """An empty DataFrame of a schema; `what` is what an error calls it."""
    try:
        frame = session.createDataFrame([], schema)
    except PySparkException as error:
        raise DefinitionError(f"{what} {schema!r} is not understood: {error}") from None
    refuse_hidden_names(frame.columns)
    return frame


def refuse_hidden_names(names: Iterable[str]) -> None:
    """Refuses columns that could be taken for those that Braided adds on a row's way."""
    for name in names:
        if name.startswith("__braided_"):
            raise DefinitionError(f"column names like {name!r} are taken")

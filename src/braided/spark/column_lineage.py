"""Which columns a step passes on as they are, by Spark's own analysis."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

__all__ = ["kept_columns"]


def kept_columns(before: DataFrame, after: DataFrame) -> dict[str, str]:
    """The columns of `after`, which was made from `before`, that are columns of it unchanged: their
    names, and what they are called before. A name that comes twice is none.
    """
    known = {number: name for name, number in _attributes(before)}
    given = _attributes(after)
    names = [name for name, _ in given]
    return {
        name: known[number] for name, number in given if number in known and names.count(name) == 1
    }


def _attributes(df: DataFrame) -> list[tuple[str, int]]:
    """Names and Spark's own numbers of the columns: a column that is passed on keeps its number."""
    plan: Any = df._jdf.queryExecution().analyzed()
    output = plan.output()
    columns = [output.apply(i) for i in range(output.size())]
    return [(str(column.name()), int(column.exprId().id())) for column in columns]

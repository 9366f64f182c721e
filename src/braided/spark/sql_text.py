"""Names, values and columns as they are written in SQL."""

from __future__ import annotations

from pyspark.sql import Column

__all__ = ["column_text", "quoted", "text_literal"]


def quoted(name: str) -> str:
    """A name of a column or a table, whatever letters it has."""
    return "`" + name.replace("`", "``") + "`"


def column_text(column: Column | str) -> str:
    """What a user's column says, as Spark writes it down."""
    return column if isinstance(column, str) else str(column._jc)


def text_literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Names and values as they are written in SQL."""

from __future__ import annotations

__all__ = ["quoted", "text_literal"]


def quoted(name: str) -> str:
    """A name of a column or a table, whatever letters it has."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

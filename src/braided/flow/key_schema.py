"""The grouping columns of an operator, read from what a checkpoint says of them."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from braided.errors import UnsupportedError

__all__ = ["key_schema"]


def key_schema(text: str) -> StructType:
    """The grouping columns, from what the checkpoint says of them."""
    parts, depth, start = [], 0, 0
    inner = text.removeprefix("struct<").removesuffix(">")
    for place, letter in enumerate(inner + ","):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(inner[start:place])
            start = place + 1
    try:
        return StructType([_column(part) for part in parts])
    except PySparkException as error:
        raise UnsupportedError(f"the key columns {text} can't be understood: {error}") from None


def _column(text: str) -> StructField:
    # A type has colons only inside of <>, so the last one before that ends the name.
    head = text.partition("<")[0]
    cut = head.rfind(":")
    return StructField(text[:cut], DataType.fromDDL(text[cut + 1 :]))

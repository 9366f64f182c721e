"""The types of an operator's key, read from the text that a checkpoint keeps of them."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from braided.errors import UnsupportedError

__all__ = ["key_schema"]


def key_schema(text: str) -> StructType:
    """The grouping columns, from what the checkpoint says of them."""
    parts, depth, start = [], 0, 0
    inner = text.removeprefix("struct<").removesuffix(">")
    for position, letter in enumerate(inner + ","):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(inner[start:position])
            start = position + 1
    try:
        return StructType([_column(part) for part in parts])
    except PySparkException as error:
        raise UnsupportedError(f"the key columns {text} can't be understood: {error}") from None


def _column(text: str) -> StructField:
    # A type has colons only inside of <>, so the last one before that ends the name.
    head = text.partition("<")[0]
    colon = head.rfind(":")
    return StructField(text[:colon], DataType.fromDDL(text[colon + 1 :]))

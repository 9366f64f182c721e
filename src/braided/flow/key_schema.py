"""The types of an operator's key, read from the text that a checkpoint keeps of them."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from braided.errors import UnsupportedError
from braided.flow.type_text import parse_fields

__all__ = ["key_schema"]


def key_schema(text: str) -> StructType:
    """The grouping columns, from what the checkpoint says of them."""
    try:
        return StructType(parse_fields(text.removeprefix("struct<").removesuffix(">")))
    except PySparkException as error:
        raise UnsupportedError(f"the key columns {text} can't be understood: {error}") from None

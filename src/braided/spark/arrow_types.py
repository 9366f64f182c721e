"""Spark's types as Arrow's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from braided.spark.version import SPARK

__all__ = ["to_arrow_schema"]

# Up to 4.1 there was nothing to say: it is what Spark's side of mapInArrow reads timestamps as.
_UTC: dict[str, Any] = {"timezone": "UTC"} if SPARK >= (4, 2) else {}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Columns as tasks have them, with timestamps in UTC."""
    return types.to_arrow_schema(schema, **_UTC)

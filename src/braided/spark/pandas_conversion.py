"""Arrow to pandas and back, by the conversions of Spark's own worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from braided.spark.arrow_types import to_arrow_schema
from braided.spark.version import SPARK

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_series", "to_series"]


def to_series(batch: pa.RecordBatch, timezone: str, int_ext_dtype: bool) -> list[pd.Series[Any]]:
    """The columns of a batch, with the types that Spark's worker gives them."""
    if SPARK >= (4, 2):
        from pyspark.sql.conversion import ArrowBatchTransformer

        return ArrowBatchTransformer.to_pandas(
            batch, timezone=timezone, prefer_int_ext_dtype=int_ext_dtype
        )
    serializer = _old_serializer(timezone, True, False)
    return [serializer.arrow_to_pandas(column, i) for i, column in enumerate(batch.columns)]


def from_series(
    series: Sequence[pd.Series[Any]],
    schema: StructType,
    timezone: str,
    safely: bool,
    by_name: bool,
    int_to_decimal: bool,
) -> list[pa.Array]:
    """Columns of a schema's types, cast as far as the session's settings let them be."""
    if SPARK >= (4, 2):
        from pyspark.sql.conversion import PandasToArrowConversion

        batch = PandasToArrowConversion.convert(
            list(series),
            schema,
            timezone=timezone,
            safecheck=safely,
            arrow_cast=True,
            assign_cols_by_name=by_name,
            int_to_decimal_coercion_enabled=int_to_decimal,
        )
        return list(batch.columns)
    serializer = _old_serializer(timezone, safely, int_to_decimal)
    kinds = zip(to_arrow_schema(schema).types, schema.fields, strict=True)
    return [
        serializer._create_array(each, arrow, field.dataType, arrow_cast=True)
        for each, (arrow, field) in zip(series, kinds, strict=True)
    ]


@functools.cache
def _old_serializer(timezone: str, safely: bool, int_to_decimal: bool) -> Any:
    """What had the conversions up to 4.1."""
    from pyspark.sql.pandas import serializers

    module: Any = serializers  # what newer ones do not have
    return module.ArrowStreamPandasSerializer(timezone, safely, int_to_decimal)

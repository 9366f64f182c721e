"""How much input a batch has, before anybody reads it.

Offsets that count rows, as Kafka's do, tell it in rows; of files, Spark knows the bytes. Which it
is does not matter, because only batches of one query are compared, and only like with like. Of
other sources nothing is known.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from braided.spark.offset_log import SparkLog

__all__ = ["Amount", "input_size", "known_bytes"]

_UNKNOWN = 2**63 - 1
"""What Spark adds for an input of which it knows nothing."""
_OVERHEAD = 8
"""Bytes that Spark counts for a row, beside its columns."""

_MOST = 2**50
"""More is what Spark makes of the unknown when it goes through a projection or a join."""

log = logging.getLogger("braided")


class Amount(NamedTuple):
    """How much of what."""

    amount: float
    unit: str


def input_size(df: DataFrame, spark_log: SparkLog, batch: int) -> Amount | None:
    """Rows or bytes that a batch takes in; None if that is not known."""
    rows = spark_log.rows(batch)
    if rows is not None:
        return Amount(float(rows), "rows")
    try:
        estimated = int(df._jdf.queryExecution().analyzed().stats().sizeInBytes())
        width = int(df._jdf.schema().defaultSize())
    except (Py4JError, TypeError) as error:  # how Spark plans is its own business, and may change
        log.debug("the size of a batch is not known: %s", error)
        return None
    known = known_bytes(estimated, width)
    return None if known is None else Amount(known, "bytes")


def known_bytes(estimated: int, width: int) -> float | None:
    """The part of an estimate that comes from inputs whose size is known; None if there is none.

    In a batch that the tick asked for, Spark also counts that one: its one number, widened to rows
    of so many bytes.
    """
    tick = _UNKNOWN * (_OVERHEAD + width) // (_OVERHEAD + 8)
    known = (estimated - tick if estimated >= tick else estimated) % _UNKNOWN
    return float(known) if 0 < known < _MOST else None

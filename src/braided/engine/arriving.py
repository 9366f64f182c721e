"""How much input a batch has, before anybody reads it.

Offsets that count rows, as Kafka's do, tell it in rows; of files, Spark knows the bytes. Which it
is does not matter, because only batches of one query are compared with each other. Of other
sources nothing is known.
"""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from braided.engine.checkpoint import SparkLog

__all__ = ["input_size", "known_bytes"]

_UNKNOWN = 2**63 - 1
"""What Spark adds for an input of which it knows nothing, such as the tick."""

log = logging.getLogger("braided")


def input_size(df: DataFrame, spark_log: SparkLog, batch: int) -> float | None:
    """Rows or bytes that a batch takes in; None if that is not known."""
    rows = spark_log.rows(batch)
    if rows is not None:
        return float(rows)
    try:
        estimated = int(df._jdf.queryExecution().analyzed().stats().sizeInBytes())
    except (Py4JError, TypeError) as error:  # how Spark plans is its own business, and may change
        log.debug("the size of a batch is not known: %s", error)
        return None
    return known_bytes(estimated)


def known_bytes(estimated: int) -> float | None:
    """The part of an estimate that comes from inputs whose size is known; None if there is none."""
    return float(estimated % _UNKNOWN) or None

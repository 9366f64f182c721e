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

__all__ = ["input_size"]

_FILES = "LogicalRelation"
_NOTHING = "LocalRelation"

log = logging.getLogger("braided")


def input_size(df: DataFrame, spark_log: SparkLog, batch: int) -> float | None:
    """Rows or bytes that a batch takes in; None if that is not known."""
    rows = spark_log.rows(batch)
    return _bytes(df) if rows is None else float(rows)


def _bytes(df: DataFrame) -> float | None:
    """The bytes of files, where files are all that there is but for the tick."""
    try:
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()
        total, others = 0.0, 0
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            kind = leaf.getClass().getSimpleName()
            if kind == _FILES:
                total += float(leaf.stats().sizeInBytes().toString())
            elif kind != _NOTHING:
                others += 1
    except Py4JError as error:  # how Spark plans is its own business, and may change
        log.debug("the size of a batch is not known: %s", error)
        return None
    return total if others <= 1 and total > 0 else None

"""`braided.deadLetters` and `braided.lateRows`: the rows that a query has put aside, by
`braided.onError=divert` because their operator raised and by `braided.late=divert` because the
watermark had passed them.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from braided.errors import CheckpointMismatchError
from braided.spark.store_settings import session_checkpoint
from braided.store.history.manifest_log import ManifestLog
from braided.tasks.diverted import DEAD_SCHEMA, LATE

__all__ = ["deadLetters", "lateRows"]


def deadLetters(checkpoint: str | Path, spark: SparkSession) -> DataFrame:
    """All rows diverted in committed batches, each once: error, operator, key, row, batch.

    `key` and `row` are JSON; `row` is null for a timer. The query may be running.
    """
    return _diverted(checkpoint, spark, late=False)


def lateRows(checkpoint: str | Path, spark: SparkSession) -> DataFrame:
    """All late rows of committed batches, each once, in the same columns: `error` tells the
    watermark that was ahead of them.

    A row of an aggregation is there once for every window that was over, with that in its `key`;
    `key` is null for an operator that is grouped by an expression.
    """
    return _diverted(checkpoint, spark, late=True)


def _diverted(checkpoint: str | Path, spark: SparkSession, late: bool) -> DataFrame:
    store = session_checkpoint(spark, checkpoint)
    if not store.list(""):
        raise CheckpointMismatchError(f"{checkpoint} is not the checkpoint of a Braided query")
    manifests = ManifestLog(store)
    newest = manifests.newest()
    dead = () if newest is None else manifests.dead_files(manifests.view_at(newest))
    names = [file.name for file in dead if file.name.endswith(LATE) == late]
    schema = from_arrow_schema(DEAD_SCHEMA)
    if not names:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*map(store.path, names))

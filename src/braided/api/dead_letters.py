"""`braided.deadLetters`: the rows that a query with `braided.onError=divert` could not process."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from braided.errors import CheckpointMismatchError
from braided.kinds.operator.dead_letters import DEAD_SCHEMA
from braided.spark.store_settings import session_checkpoint
from braided.store.history.manifest_log import ManifestLog

__all__ = ["deadLetters"]


def deadLetters(checkpoint: str | Path, spark: SparkSession) -> DataFrame:
    """All rows diverted in committed batches, each once: error, operator, key, row, batch.

    `key` and `row` are JSON; `row` is null for a timer. The query may be running.
    """
    store = session_checkpoint(spark, checkpoint)
    if not store.list(""):
        raise CheckpointMismatchError(f"{checkpoint} is not the checkpoint of a Braided query")
    manifests = ManifestLog(store)
    newest = manifests.newest()
    dead = () if newest is None else manifests.dead_files(manifests.view_at(newest))
    schema = from_arrow_schema(DEAD_SCHEMA)
    if not dead:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(store.path(file.name) for file in dead))

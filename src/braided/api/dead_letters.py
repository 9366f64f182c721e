"""`braided.deadLetters`: the rows that a query with `braided.onError=divert` could not process."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from braided.errors import CheckpointMismatchError
from braided.kinds.operator.dead_letters import DEAD_SCHEMA
from braided.store.durable.files import checkpoint_files
from braided.store.history.manifest_log import ManifestLog

__all__ = ["deadLetters"]


def deadLetters(checkpoint: str | Path, spark: SparkSession) -> DataFrame:
    """All rows diverted in committed batches, each once: error, operator, key, row, batch.

    `key` and `row` are JSON; `row` is null for a timer. The query may be running.
    """
    location = Path(str(checkpoint).removeprefix("file://"))
    if not (location / "braided").is_dir():
        raise CheckpointMismatchError(f"{checkpoint} is not the checkpoint of a Braided query")
    files = checkpoint_files(location)
    manifests = ManifestLog(files)
    newest = manifests.newest()
    dead = () if newest is None else manifests.dead_files(manifests.view_at(newest))
    schema = from_arrow_schema(DEAD_SCHEMA)
    if not dead:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(files.path(file.name) for file in dead))

"""How many rows the tasks of a running stage have to read, as Spark counted them before it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["StageRows"]


class StageRows:
    """Asks Spark's scheduler. Its counts are of stages that are done, so they are whole."""

    def __init__(self, spark: SparkSession) -> None:
        self._scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()

    def read_by(self, stage: int) -> int | None:
        """Rows that were written for a stage's shuffle; None if Spark does not know the stage."""
        found = self._scheduler.stageIdToStage().get(stage)
        if found.isEmpty():
            return None
        parents = found.get().parents()
        counts = [
            parents.apply(i).latestInfo().taskMetrics().shuffleWriteMetrics().recordsWritten()
            for i in range(parents.length())
        ]
        return sum(map(int, counts))

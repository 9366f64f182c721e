"""Python workers in reserve: started before a batch with more channels needs them."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from braided.kinds.operator.task import import_task

__all__ = ["TASK_MODULES", "Reserve"]

TASK_MODULES = (import_task.__module__,)
"""What a first task would wait for."""

WORKER_IDLE_S = 50.0
"""How long a Python worker surely lives with nothing to do: Spark ends it after a minute."""


class Reserve:
    """What was asked for last, and when."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.workers, self._since_s = 0, 0.0

    def warm(self, channels: int, in_use: int) -> None:
        """Starts workers for more channels than there are `in_use`, as many as can run at once."""
        workers = min(channels, self._spark.sparkContext.defaultParallelism)
        if time.monotonic() - self._since_s > WORKER_IDLE_S:
            self.workers = 0
        if workers > max(self.workers, in_use):
            rows = self._spark.range(workers).repartition(workers)
            rows.mapInArrow(import_task, rows.schema).write.format("noop").mode("overwrite").save()
            self.workers, self._since_s = workers, time.monotonic()

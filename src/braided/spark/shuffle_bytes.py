"""What Spark's tasks have read of shuffles, on their own host and over the network."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from braided.spark.jvm import java_class

__all__ = ["ReadBytes", "ShuffleBytes"]


class ReadBytes(NamedTuple):
    """Bytes that tasks read of shuffles."""

    local: int
    remote: int
    last_local: int = 0
    """The part of stages that write no shuffle themselves: the last ones of their jobs."""
    last_remote: int = 0


class ShuffleBytes:
    """Reads Spark's own account of its stages, as far as it goes back."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        jvm: Any = context._jvm
        gateway: Any = context._gateway
        self._store: Any = context._jsc.sc().statusStore()
        self._no_quantiles = gateway.new_array(jvm.double, 0)
        self._no_list = java_class(jvm, "java.util.ArrayList")()
        self._last = -1

    def since_last(self) -> ReadBytes:
        """Of all stages since the last call."""
        stages = self._store.stageList(
            self._no_list, False, False, self._no_quantiles, self._no_list
        )
        local = remote = last_local = last_remote = 0
        newest = self._last
        for i in range(stages.size()):  # newest first
            stage = stages.apply(i)
            number = int(stage.stageId())
            if number <= self._last:
                break
            newest = max(newest, number)
            here, there = int(stage.shuffleLocalBytesRead()), int(stage.shuffleRemoteBytesRead())
            local, remote = local + here, remote + there
            if not int(stage.shuffleWriteBytes()):
                last_local, last_remote = last_local + here, last_remote + there
        self._last = newest
        return ReadBytes(local, remote, last_local, last_remote)

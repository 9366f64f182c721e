"""A driver that has asked Spark for no executors, and whose query moves to one of two.

That one is killed then. The argument is a directory for a cluster and the query; it prints, as
JSON, how the migration ended, whether another executor has come, and whether the query goes on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import braided
from braided.bench.standalone_cluster import standalone_cluster
from braided.spark.executors import SparkExecutors

PATIENCE_S = 150.0
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Count(braided.Operator):
    n: int = 0

    def onRow(self, row):  # type: ignore[no-untyped-def]
        self.n += 1
        yield row.k, self.n


def comes(is_so: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.1)
    return is_so()


def main(home: Path) -> None:
    with standalone_cluster(home / "cluster", workers=2, memory_mb=512) as cluster:
        settings: dict[str, Any] = {**cluster.spark_settings}
        settings["spark.driver.extraJavaOptions"] = JAVA
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        executors = SparkExecutors(spark)
        assert comes(lambda: len(executors.observed()) == 2), "two executors do not come"
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
        rows = source.option("numPartitions", 2).load().selectExpr("value % 20 AS k")
        query = (
            (braided.stream(rows).groupBy("k").apply(Count, "k long, n long"))
            .writeStream.format("noop")
            .option("checkpointLocation", str(home / "checkpoint"))
            .option("braided.channels", 2)
            .start()
        )

        def newest() -> int:
            return max((each["batchId"] for each in query.recentProgress), default=-1)

        assert comes(lambda: newest() >= 2), "no batch ends"
        migration = query.migrate("ccr", 1, timeout=PATIENCE_S)
        [left] = executors.observed()
        cluster.kill_executor(left.host)
        is_replaced = comes(lambda: any(each.id != left.id for each in executors.observed()))
        before = newest()
        goes_on = is_replaced and comes(lambda: newest() > before + 1)
        query.stop()
        said = {"outcome": migration.outcome, "replaced": is_replaced, "goes_on": goes_on}
        print(json.dumps(said), flush=True)
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

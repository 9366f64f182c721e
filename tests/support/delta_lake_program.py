"""Delta Lake itself, in a process of its own: `python delta_lake_program.py job.json`.

Reads tables, then lets a query go on that writes by Delta Lake's own data source, dies on the way
as asked, and is started again. What was read is printed, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

import braided
from braided import failpoints
from braided.bench.s3_server import cache_directory
from braided.bench.session import local_spark
from braided.spark.version import SPARK
from support.stream_operators import SCHEMA, Totals

__all__ = ["DELTA_SPARK", "Job", "lacking"]

DELTA_SPARK = (4, 2)
"""The version of Spark that the jars are for."""

_JARS = cache_directory() / "delta-4.2"


class Job(msgspec.Struct, frozen=True):
    home: str
    tables: list[str]
    """That are read."""
    moments: str
    """A table whose timestamps are read, in another zone than that of the test."""
    input: str
    """Of the query that goes on."""
    checkpoint: str
    table: str
    deaths: list[str]
    """Fail points, one for each run but the last."""


def lacking() -> str | None:
    """Why Delta Lake can't be run here; None if it can."""
    if SPARK != DELTA_SPARK:
        return "Delta Lake is tried on Spark 4.2: make test-spark SPARK=4.2.1"
    if not (_JARS / ".done").exists():
        return "the jars of Delta Lake are not installed: scripts/delta.sh does it"
    return None


def main(job: Job) -> None:
    settings = {
        "spark.jars": ",".join(map(str, sorted(_JARS.glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # It reads a table's log with as many tasks as for a large one.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    with local_spark("delta lake", Path(job.home), settings) as spark:

        def rows_of(table: str) -> list[tuple[Any, ...]]:
            read = spark.read.format("delta").load(table)
            return sorted(map(tuple, read.select("k", "c", "v", "seq").collect()))

        def run() -> None:
            feed = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            rows = braided.stream(feed.parquet(f"{job.input}/*"))
            writer = rows.groupBy("k").apply(Totals, SCHEMA).writeStream.format("delta")
            writer.option("checkpointLocation", job.checkpoint).trigger(availableNow=True)
            writer.start(job.table).awaitTermination()

        read = [rows_of(table) for table in job.tables]
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        moments = spark.read.format("delta").load(job.moments).selectExpr("seq", "unix_micros(at)")
        at = sorted(map(tuple, moments.collect()))
        spark.conf.unset("spark.sql.session.timeZone")
        died = []
        for point in job.deaths:
            failpoints.arm(point)
            try:
                run()
            except Exception as error:
                died.append(failpoints.message(point) in str(error))
        run()
        print(json.dumps({"read": read, "at": at, "died": died, "after": rows_of(job.table)}))


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job))

"""A driver of a cluster whose workers have the wrong Python, then the right one, and at last that
of a packed environment, the program's argument.

Prints what `start()` says to each, as lines of JSON, and the rows of queries that ran, with the
Python that they came from.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import braided
from braided.spark import interpreter


class Double(braided.Operator):
    def onRow(self, row):  # type: ignore[no-untyped-def]
        yield row.k, 2 * row.v, sys.executable


def main() -> None:
    spark = (
        SparkSession.builder.master("local-cluster[1,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.task.maxFailures", "1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    context = spark.sparkContext
    context.setLogLevel("OFF")
    rows = Path(tempfile.mkdtemp()) / "rows"
    spark.range(2).selectExpr("id AS k", "id + 1 AS v").coalesce(1).write.json(str(rows))
    stream = spark.readStream.schema("k long, v long").json(str(rows))
    found: list[tuple[int, int, str]] = []

    def start() -> None:
        found.clear()
        doubled = braided.stream(stream).groupBy("k").apply(Double, "k long, v long, python string")
        writer = doubled.writeStream.foreachBatch(
            lambda df, _: found.extend(map(tuple, df.collect()))
        )
        writer.option("braided.channels", 1).trigger(availableNow=True).start().awaitTermination()

    def refused(case: str) -> None:
        try:
            start()
        except braided.BraidedError as error:
            print(json.dumps([case, type(error).__name__, str(error)]), flush=True)

    assert context.pythonExec == "python3"
    refused("nothing set")
    context.pythonExec = "/no/such/python"
    refused("no such program")
    context.pythonExec, context.pythonVer = sys.executable, "2.7"
    refused("another Python")
    context.pythonVer = "{}.{}".format(*sys.version_info)
    ours, interpreter.VERSION = interpreter.VERSION, "9.9.9"
    refused("another braided")
    interpreter.VERSION = ours
    start()
    print(json.dumps(["right", sorted(found)]), flush=True)
    context.addArchive(f"{sys.argv[1]}#environment")  # as spark.archives, for executors that run
    context.pythonExec = "./environment/bin/python"
    start()
    print(json.dumps(["packed", sorted(found)]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

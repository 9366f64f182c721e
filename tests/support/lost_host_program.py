"""A driver of a cluster: counts rows per key until its input ends, then says what came of it.

Arguments are the settings of its session, as JSON, and a directory that all hosts see. It prints
the number of each batch as it ends, and at last how many rows there are of each kind.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import braided

ROWS, KEYS = 200, 20


class Count(braided.Operator):
    n: int = 0

    def onRow(self, row):  # type: ignore[no-untyped-def]
        self.n += 1
        yield row.k, self.n


def main(settings: dict[str, str], home: Path) -> None:
    spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = source.option("numPartitions", 2).load().selectExpr(f"value % {KEYS} AS k")
    query = (
        (braided.stream(rows).groupBy("k").apply(Count, "k long, n long"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .option("braided.channels", 4)
        .start(str(home / "counts"))
    )
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), asked.set()), daemon=True).start()
    last = -1
    while not asked.wait(0.05):
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended by itself")
        for progress in query.recentProgress:
            if progress["batchId"] > last:
                last = progress["batchId"]
                print(json.dumps({"batch": last}), flush=True)
    query.stop()
    counts = spark.read.parquet(str(home / "counts"))
    found = counts.agg(F.count("*"), F.count_distinct("k", "n"), F.min("n"), F.max("n")).first()
    assert found is not None
    said = dict(zip(("rows", "distinct", "least", "most"), found, strict=True))
    print(json.dumps({"last": last, **said}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))

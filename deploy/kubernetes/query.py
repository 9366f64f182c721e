"""A query as it runs in a pod: put your own flow in its place.

Where it reads and writes is in the environment, how Spark runs is in spark-defaults.conf; the
program says what is computed, and ends well when the pod is told to end.
"""

import os
import signal
import threading

import braided
from pyspark.sql import SparkSession


class Spending(braided.Operator):
    orders: int = 0
    total: float = 0.0

    def onRow(self, row):
        self.orders += 1
        self.total += row.amount
        yield {"customer": self.key.customer, "orders": self.orders, "total": self.total}


def main():
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())  # what Kubernetes sends first

    spark = SparkSession.builder.getOrCreate()
    orders = spark.readStream.schema("customer string, amount double").json(os.environ["INPUT"])
    spending = (
        braided.stream(orders)
        .groupBy("customer")
        .apply(Spending, "customer string, orders long, total double")
        .name("spending")
    )
    query = (
        spending.writeStream.format("parquet")
        .queryName("spending")
        .option("checkpointLocation", os.environ["CHECKPOINT"])
        .option("braided.scale", "ds2")
        .trigger(processingTime="1 second")
        .start(os.environ["OUTPUT"])
    )
    while query.isActive and not ending.wait(1):
        pass
    if query.isActive:
        query.stop()  # waits for the batch that runs
    if query.exception() is not None:
        raise query.exception()
    spark.stop()


if __name__ == "__main__":
    main()

"""A join of two streams in time: orders with their payments, at most a minute apart.

The same rows as Spark's own stream-stream join with a range of time gives, inner or left outer.
A row is kept until the watermark says that nothing can match it any more.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import braided
from pyspark.sql import SparkSession


@dataclass
class Waiting:
    time: datetime
    value: float
    matched: bool = False


class IntervalJoin(braided.Operator):
    seconds: braided.Param[int] = 60
    outer: braided.Param[bool] = False

    lefts: list[Waiting] = []
    rights: list[Waiting] = []

    def onLeft(self, row):
        left = Waiting(row.time, row.value)
        for right in self.rights:
            if self.near(left, right):
                left.matched = True
                yield self.key[0], left.time, left.value, right.value
        self.lefts.append(left)
        self.setTimer(row.time + timedelta(seconds=self.seconds))

    def onRight(self, row):
        right = Waiting(row.time, row.value)
        for left in self.lefts:
            if self.near(left, right):
                left.matched = True
                yield self.key[0], left.time, left.value, right.value
        self.rights.append(right)
        self.setTimer(row.time + timedelta(seconds=self.seconds))

    def onTimer(self, fired):
        oldest = fired - timedelta(seconds=self.seconds)
        for left in self.lefts:
            if self.outer and not left.matched and left.time <= oldest:
                yield self.key[0], left.time, left.value, None
        self.lefts = [left for left in self.lefts if left.time > oldest]
        self.rights = [right for right in self.rights if right.time > oldest]
        if not self.lefts and not self.rights:
            self.forget()

    def near(self, left, right):
        return abs((left.time - right.time).total_seconds()) <= self.seconds


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rates = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    rows = rates.selectExpr("value % 3 AS id", "timestamp AS time", "double(value) AS value")
    orders = braided.stream(rows.withWatermark("time", "5 seconds"))
    payments = braided.stream(rows.where("value % 2 = 0").withWatermark("time", "5 seconds"))
    joined = braided.connect(orders.groupBy("id"), payments.groupBy("id")).apply(
        IntervalJoin.with_(seconds=1, outer=True),
        "id long, time timestamp, paid_for double, payment double",
        timeMode="EventTime",
    )
    query = joined.writeStream.format("console").start()
    query.awaitTermination(60)
    query.stop()

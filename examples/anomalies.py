"""Readings that are far from what their sensor usually says, for many sensors at a time.

A ColumnOperator keeps an exponential moving average and variance of each sensor. One call gets the
readings of thousands of sensors; the score of a reading is how many standard deviations it is away.
A sensor that is silent for an hour is reported and forgotten.
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import braided
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

SILENCE = np.timedelta64(timedelta(hours=1))


class Anomalies(braided.ColumnOperator):
    alpha: braided.Param[float] = 0.05
    limit: braided.Param[float] = 8.0
    mean: pa.float64() = 0.0
    variance: pa.float64() = 0.0
    count: pa.int64() = 0

    def onRows(self, state, rows, index):
        mean, variance, count = (
            state[name].to_numpy().copy() for name in ("mean", "variance", "count")
        )
        value = rows["value"].to_numpy()
        score = np.zeros(len(value))
        for turn in braided.turns(index):  # the first reading of each sensor, then the second, ...
            key = index[turn]
            new = count[key] == 0
            off = np.where(new, 0.0, value[turn] - mean[key])
            spread = np.sqrt(variance[key])
            known = (count[key] >= 20) & (spread > 0)
            score[turn] = np.divide(np.abs(off), spread, out=np.zeros(len(key)), where=known)
            mean[key] = np.where(new, value[turn], mean[key] + self.alpha * off)
            variance[key] = (1 - self.alpha) * (variance[key] + self.alpha * off**2)
            count[key] += 1
        last = np.r_[index[1:] != index[:-1], True]
        due = rows["at"].to_numpy()[last] + SILENCE
        odd = score > self.limit
        found = {
            "sensor": rows["sensor"].filter(odd),
            "value": value[odd],
            "score": score[odd],
        }
        return {"mean": mean, "variance": variance, "count": count, "due": due}, found, odd

    def onDue(self, state, due):
        silent = {"sensor": self.keys["sensor"], "value": state["mean"], "score": [None] * len(due)}
        return {"remove": np.ones(len(due), bool)}, silent


def readings(batch, sensors=1000, each=20):
    """Quiet sensors, but for one reading; after the second batch sensor 7 says nothing more."""
    random = np.random.default_rng(batch)
    sensor = np.repeat(np.arange(sensors), each)
    value = sensor + random.normal(0, 1, sensors * each)
    if batch == 2:
        value[42 * each + 5] += 50
    at = np.datetime64("2024-05-01T00:00", "us") + np.timedelta64(40 * batch, "m")
    table = pa.table({"sensor": sensor, "at": np.full(sensors * each, at), "value": value})
    table = table.set_column(1, "at", table["at"].cast(pa.timestamp("us", "UTC")))
    return table.filter(pa.array((batch < 2) | (sensor != 7)))


def show(frame, batch):
    for row in frame.orderBy("sensor").collect():
        if row.score is None:
            print(f"batch {batch}: sensor {row.sensor} is silent, its mean was {row.value:.0f}")
        else:
            print(f"batch {batch}: sensor {row.sensor} says {row.value:.0f}, {row.score:.0f} sigma")


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for batch in range(6):
            path = Path(directory, f"{batch}.parquet")
            pq.write_table(readings(batch), path)
            os.utime(path, (batch, batch))  # files are taken by their age, one a batch
        rows = (
            spark.readStream.schema("sensor long, at timestamp, value double")
            .option("maxFilesPerTrigger", 1)
            .parquet(directory)
            .withWatermark("at", "1 minute")
        )
        found = (
            braided.stream(rows)
            .groupBy("sensor")
            .apply(Anomalies, "sensor long, value double, score double", timeMode="EventTime")
        )
        query = found.writeStream.foreachBatch(show).trigger(availableNow=True).start()
        query.awaitTermination()

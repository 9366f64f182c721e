"""A model for each of many keys, learnt while rows come in: linear regression by gradient descent.

The weights of a key are a column of lists of a fixed size, so that the weights of thousands of keys
are one matrix. Each row is predicted before its model learns from it.
"""

import os
import tempfile
from pathlib import Path

import braided
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

FEATURES = ("a", "b", "c")


class Regression(braided.ColumnOperator):
    rate: braided.Param[float] = 0.1
    weights: pa.list_(pa.float64(), 4) = [0.0] * 4  # the last one is the bias
    rows: pa.int64() = 0
    error: pa.float64() = None  # of the predictions, squared, averaged over about 50 rows

    def onRows(self, state, rows, index):
        weights = braided.matrix(state["weights"])
        error = state["error"].fill_null(0.0).to_numpy().copy()
        x = np.column_stack([rows[name].to_numpy() for name in FEATURES] + [np.ones(len(index))])
        y = rows["y"].to_numpy()
        predicted = np.zeros(len(index))
        for turn in braided.turns(index):  # one row of each key at a time: its model learns
            key = index[turn]
            predicted[turn] = np.einsum("ij,ij->i", x[turn], weights[key])
            off = predicted[turn] - y[turn]
            weights[key] -= self.rate * off[:, None] * x[turn]
            error[key] += 0.02 * (off**2 - error[key])
        count = state["rows"].to_numpy() + np.bincount(index)
        new = {"weights": weights, "rows": count, "error": error}
        return new, {"shop": self.keys["shop"], "rows": count, "error": error, "weights": weights}


def sales(batch, shops=500, each=60):
    """What a shop sells follows from three figures, by weights that are its own."""
    random = np.random.default_rng(batch)
    shop = np.repeat(np.arange(shops), each)
    x = random.normal(0, 1, (len(shop), 3))
    y = (x * np.column_stack([shop % 5, -(shop % 3), shop % 7])).sum(axis=1) + shop % 2
    y += random.normal(0, 0.01, len(shop))
    return pa.table({"shop": shop, **dict(zip(FEATURES, x.T, strict=True)), "y": y})


def show(frame, batch):
    worst = frame.orderBy("error", ascending=False).first()
    print(f"batch {batch}: {frame.count()} models, the worst has an error of {worst.error:.3f}")
    known = frame.where("shop = 23").first()
    print(f"batch {batch}: shop 23 has {[round(each, 1) for each in known.weights]}")


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for batch in range(4):
            path = Path(directory, f"{batch}.parquet")
            pq.write_table(sales(batch), path)
            os.utime(path, (batch, batch))  # files are taken by their age, one a batch
        schema = "shop long, a double, b double, c double, y double"
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(directory)
        models = (
            braided.stream(rows)
            .groupBy("shop")
            .apply(Regression, "shop long, rows long, error double, weights array<double>")
        )
        query = models.writeStream.foreachBatch(show).trigger(availableNow=True).start()
        query.awaitTermination()

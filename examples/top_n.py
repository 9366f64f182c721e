"""The three best-selling products of each shop, whenever they change.

Spark's own StatefulProcessor in pandas: sums in a map, one entry for each product, so that a shop
with a hundred thousand products reads and writes only those that were sold.
"""

import json
import os
import tempfile
from pathlib import Path

import braided
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

N = 3


class Best(StatefulProcessor):
    def init(self, handle):
        self.sold = handle.getMapState("sold", "product string", "pieces long")
        self.best = handle.getListState("best", "product string, pieces long")

    def handleInputRows(self, key, rows, timerValues):
        before = list(self.best.get())
        best = dict(before)
        for frame in rows:
            for product, pieces in frame.groupby("product")["pieces"].sum().items():
                total = (self.sold.getValue((product,)) or (0,))[0] + int(pieces)
                self.sold.updateValue((product,), (total,))
                best[product] = total  # sums only grow, so nobody else can have come in
        now = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:N]
        if now != before:
            self.best.put(now)
            yield pd.DataFrame(
                {
                    "shop": key[0],
                    "place": range(1, len(now) + 1),
                    "product": [product for product, _ in now],
                    "pieces": [pieces for _, pieces in now],
                }
            )

    def close(self):
        pass


SALES = [  # (shop, product, pieces)
    [("Oslo", "oar", 5), ("Oslo", "map", 2), ("Oslo", "rope", 9), ("Bonn", "map", 1)],
    [("Oslo", "map", 2), ("Oslo", "sail", 1), ("Bonn", "sail", 1), ("Bonn", "rope", 3)],
    [("Oslo", "sail", 11), ("Bonn", "oar", 1), ("Bonn", "oar", 4)],
]


def show(frame, batch):
    for shop, rows in sorted(frame.toPandas().groupby("shop")):
        listed = ", ".join(f"{r.place}. {r.product} ({r.pieces})" for r in rows.itertuples())
        print(f"batch {batch}  {shop}: {listed}")


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for number, batch in enumerate(SALES):
            rows = [{"shop": s, "product": p, "pieces": n} for s, p, n in batch]
            path = Path(directory, f"{number}.json")
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (number, number))  # files are taken by their age, one a batch
        sales = (
            spark.readStream.schema("shop string, product string, pieces long")
            .option("maxFilesPerTrigger", 1)
            .json(directory)
        )
        best = (
            braided.stream(sales)
            .groupBy("shop")
            .transformWithStateInPandas(
                statefulProcessor=Best(),
                outputStructType="shop string, place int, product string, pieces long",
                outputMode="Update",
                timeMode="None",
            )
        )
        query = best.writeStream.foreachBatch(show).trigger(availableNow=True).start()
        query.awaitTermination()

"""A stock exchange: orders to buy and to sell meet, best price first, then the older one.

Spark's own StatefulProcessor with one map for each side of a stock's book. It is rescaled while it
runs, which a native query can't be.
"""

import json
import os
import tempfile
from pathlib import Path

import braided
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor


class Book(StatefulProcessor):
    def init(self, handle):
        order = "price double, id long"
        self.sides = {
            side: handle.getMapState(side, order, "trader string, pieces long")
            for side in ("buy", "sell")
        }

    def handleInputRows(self, key, rows, timerValues):
        for order in sorted(rows, key=lambda row: row.id):
            left = order.pieces
            other = self.sides["sell" if order.side == "buy" else "buy"]
            sign = 1 if order.side == "buy" else -1
            waiting = sorted(other.keys(), key=lambda place: (sign * place[0], place[1]))
            for price, number in waiting:
                if left == 0 or sign * (price - order.price) > 0:
                    break
                trader, pieces = other.getValue((price, number))
                traded = min(left, pieces)
                left -= traded
                if traded == pieces:
                    other.removeKey((price, number))
                else:
                    other.updateValue((price, number), (trader, pieces - traded))
                buyer, seller = (order.trader, trader)[::sign]
                yield Row(stock=key[0], buyer=buyer, seller=seller, pieces=traded, price=price)
            if left:
                self.sides[order.side].updateValue((order.price, order.id), (order.trader, left))

    def close(self):
        pass


ORDERS = [  # (stock, id, trader, side, pieces, price)
    [("ACME", 1, "ann", "sell", 100, 10.5), ("ACME", 2, "ben", "sell", 50, 10.2)],
    [("ACME", 3, "cat", "buy", 120, 10.5), ("WIND", 4, "dan", "buy", 10, 3.0)],
    [("ACME", 5, "eve", "buy", 20, 10.0), ("WIND", 6, "ann", "sell", 30, 2.5)],
    [("ACME", 7, "ben", "sell", 60, 9.9), ("WIND", 8, "cat", "buy", 25, 2.6)],
]


def show(frame, batch):
    for t in frame.collect():
        print(f"{t.stock}: {t.buyer} buys {t.pieces} from {t.seller} at {t.price}")


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[3]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        fields = ("stock", "id", "trader", "side", "pieces", "price")
        for number, batch in enumerate(ORDERS):
            rows = [dict(zip(fields, order, strict=True)) for order in batch]
            path = Path(directory, f"{number}.json")
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (number, number))  # files are taken by their age, one a batch
        schema = "stock string, id long, trader string, side string, pieces long, price double"
        orders = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(directory)
        trades = (
            braided.stream(orders)
            .groupBy("stock")
            .transformWithState(
                statefulProcessor=Book(),
                outputStructType="stock string, buyer string, seller string, pieces long, "
                "price double",
                outputMode="Append",
                timeMode="None",
            )
        )
        query = trades.writeStream.foreachBatch(show).start()
        query.rescale(3)
        query.processAllAvailable()
        print(f"{query.routing()['Book'].channels} channels at the end")
        query.stop()

"""Orders of a stock exchange: endless, skewed, and the same every time.

Every column follows from the order's number by hashing, so a stream of orders can be made again at
once, as a table, to check what became of it. Few stocks get most of the orders: the share of orders
that the busiest x of all stocks get is the cube root of x.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

__all__ = ["SIDES", "STOCKS", "TRADERS", "order_stream", "orders"]

STOCKS = 400
TRADERS = 20_000
SIDES = ("buy", "sell")

_COLUMNS = (
    "id",
    f"concat('S', lpad(string(int({STOCKS} * pow(pmod(xxhash64(id, 1), 1000003) / 1000003, 3))),"
    " 3, '0')) AS stock",
    f"concat('T', lpad(string(pmod(xxhash64(id, 2), {TRADERS})), 5, '0')) AS trader",
    f"element_at(array('{SIDES[0]}', '{SIDES[1]}'), int(pmod(xxhash64(id, 3), 2)) + 1) AS side",
    "10000 + pmod(xxhash64(id, 4), 41) - 20 AS price",
    "10 * (1 + pmod(xxhash64(id, 5), 10)) AS shares",
)


def order_stream(spark: SparkSession, rows_per_batch: int) -> DataFrame:
    """Orders 0, 1, 2, ... without end, so many in each batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    numbers = source.option("numPartitions", 2).load()
    return numbers.selectExpr("value AS id").selectExpr(*_COLUMNS)


def orders(spark: SparkSession, count: int) -> DataFrame:
    """The first orders of the stream, as a table."""
    return spark.range(count).selectExpr(*_COLUMNS)

"""The exchange, from Kafka to Kafka and to Delta tables; and what it should have made."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable
from pyspark.sql import DataFrame

import braided
from braided.api.writer import StreamWriter
from braided.workloads.exchange import POSITIONS, TRADES, Ledger, Market, Matcher, replay

__all__ = ["TABLES", "Expected", "Order", "expected", "orders", "table", "writers"]

TABLES = ("tape", "positions")
"""In the order in which they are written, after Kafka's topic: what buyers got is added, a position
is replaced."""
_TRADERS = 40


class Order(NamedTuple):
    """As `replay` takes it."""

    id: int
    stock: str
    trader: str
    side: str
    price: int
    shares: int

    @property
    def value(self) -> str:
        """The message."""
        return json.dumps(self._asdict())


def orders(first: int, count: int, stocks: Sequence[str]) -> list[Order]:
    """The first stocks get more than the last."""
    chance = random.Random(first)
    weights = range(len(stocks), 0, -1)
    return [
        Order(
            id=number,
            stock=chance.choices(stocks, weights)[0],
            trader=f"T{chance.randrange(_TRADERS)}",
            side=chance.choice(["buy", "sell"]),
            price=1000 + chance.randrange(-3, 4),
            shares=10 * chance.randrange(1, 10),
        )
        for number in range(first, first + count)
    ]


def writers(messages: DataFrame, output: str) -> list[StreamWriter]:
    fields = "id long, stock string, trader string, side string, price long, shares long"
    rows = messages.selectExpr(f"from_json(string(value), '{fields}') AS o").select("o.*")
    trades = braided.stream(rows).groupBy("stock").apply(Matcher, TRADES).name("matcher")
    positions = trades.groupBy("trader").apply(Ledger, POSITIONS).name("ledger")
    to_kafka = trades.selectExpr("stock AS key", "to_json(struct(*)) AS value")
    bought = trades.filter("shares > 0").writeStream.format("delta")
    newest = positions.writeStream.format("delta").outputMode("update")
    return [
        to_kafka.writeStream.format("kafka"),  # the options say where
        bought.option("path", f"{output}/tape"),
        newest.option("path", f"{output}/positions"),
    ]


def table(home: Path, name: str) -> list[tuple[Any, ...]]:
    """What a reader of a table sees, sorted."""
    path = str(home / name)
    if not DeltaTable.is_deltatable(path):
        return []
    return sorted(tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


class Expected(NamedTuple):
    trades: dict[str, list[tuple[Any, ...]]]
    """Buyers' and sellers' rows by stock, in order."""
    tables: Mapping[str, list[tuple[Any, ...]]]
    """Sorted."""


class _Tape(Market):
    """A market that remembers each trade."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[tuple[str, str, int, int]]] = {}

    def trade(self, stock: str, trader: str, other: str, shares: int, price: int) -> None:
        super().trade(stock, trader, other, shares, price)
        buyer, seller = (trader, other) if shares > 0 else (other, trader)
        taken = abs(shares)
        self.rows.setdefault(stock, []).extend(
            [(buyer, stock, taken, -taken * price), (seller, stock, -taken, taken * price)]
        )


def expected(taken: Sequence[Order]) -> Expected:
    """What plain Python makes of the orders."""
    market = _Tape()
    replay(taken, market)
    bought = [row for rows in market.rows.values() for row in rows if row[2] > 0]
    positions = [(trader, *fields) for trader, fields in market.positions.items()]
    return Expected(market.rows, {"tape": sorted(bought), "positions": sorted(positions)})

"""A stock exchange: an order book for each stock, then a position for each trader.

`Matcher` and `Ledger` are keyed operators; `replay` says what they must arrive at. It shares no
code with them: one process, other data structures, all orders in one go.

The rules: an order takes the best prices of the other side first, older orders first among equal
prices, at the price of the order that was there before; what is left of it waits in the book. A
book keeps the best `DEPTH` waiting orders of each side.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from braided.operator.definition import Operator

__all__ = ["DEPTH", "POSITIONS", "TRADES", "Ledger", "Market", "Matcher", "Waiting", "replay"]

DEPTH = 25
TRADES = "trader string, stock string, shares long, cash long"
POSITIONS = "trader string, trades long, shares long, cash long"


@dataclass
class Waiting:
    """An order, or what is left of it, in a book."""

    id: int
    trader: str
    price: int
    shares: int


class Matcher(Operator):
    """The order book of one stock. Gives out two rows for each trade: buyer's and seller's."""

    orders: int = 0
    traded: int = 0
    bids: list[Waiting] = []  # noqa: RUF012  (a state field's default, copied for every key)
    asks: list[Waiting] = []  # noqa: RUF012

    def onRow(self, row: Row) -> Iterator[tuple[str, str, int, int]]:
        self.orders += 1
        buying = row.side == "buy"
        own, others = (self.bids, self.asks) if buying else (self.asks, self.bids)
        left = row.shares
        while left and others:
            best = others[0]
            if (best.price > row.price) if buying else (best.price < row.price):
                break
            shares = min(left, best.shares)
            cash = shares * best.price
            buyer, seller = (row.trader, best.trader) if buying else (best.trader, row.trader)
            yield buyer, row.stock, shares, -cash
            yield seller, row.stock, -shares, cash
            self.traded += shares
            left -= shares
            best.shares -= shares
            if not best.shares:
                del others[0]
        if left:
            sign = -1 if buying else 1
            waiting = Waiting(row.id, row.trader, row.price, left)
            insort(own, waiting, key=lambda w: (sign * w.price, w.id))
            del own[DEPTH:]


class Ledger(Operator):
    """The position of one trader. Gives out one row for each batch in which it changes."""

    trades: int = 0
    shares: int = 0
    cash: int = 0

    def onBatch(self, rows: pa.Table) -> Iterator[tuple[str, int, int, int]]:
        self.trades += rows.num_rows
        self.shares += pc.sum(rows["shares"]).as_py()
        self.cash += pc.sum(rows["cash"]).as_py()
        yield self.key.trader, self.trades, self.shares, self.cash


@dataclass
class Market:
    """Everything that a number of orders leads to."""

    orders: dict[str, int] = field(default_factory=dict)
    """How many orders each stock got."""
    traded: dict[str, int] = field(default_factory=dict)
    """How many shares of each stock changed hands."""
    books: dict[tuple[str, str], list[tuple[int, str, int, int]]] = field(default_factory=dict)
    """By stock and side, best first: id, trader, price, shares."""
    positions: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By trader: trades, shares, cash."""

    def trade(self, stock: str, trader: str, other: str, shares: int, price: int) -> None:
        """The trader takes shares (gives them, if negative) from the other."""
        self.traded[stock] = self.traded.get(stock, 0) + abs(shares)
        for who, change in ((trader, shares), (other, -shares)):
            trades, held, cash = self.positions.get(who, (0, 0, 0))
            self.positions[who] = (trades + 1, held + change, cash - change * price)


def replay(
    orders: Iterable[tuple[int, str, str, str, int, int]], market: Market | None = None
) -> Market:
    """What (id, stock, trader, side, price, shares) in the order of their ids lead to.

    A market of one's own sees each trade.
    """
    market = Market() if market is None else market
    # Heaps of [price, or minus the price for bids; id; trader; shares]: the best is on top.
    heaps: dict[tuple[str, str], list[list[Any]]] = {}
    for number, stock, trader, side, price, shares in orders:
        market.orders[stock] = market.orders.get(stock, 0) + 1
        mine = heaps.setdefault((stock, side), [])
        theirs = heaps.setdefault((stock, "sell" if side == "buy" else "buy"), [])
        sign = -1 if side == "buy" else 1
        while shares and theirs and theirs[0][0] <= -sign * price:
            top = theirs[0]
            taken = min(shares, top[3])
            market.trade(stock, trader, top[2], -sign * taken, abs(top[0]))
            shares -= taken
            top[3] -= taken
            if top[3] == 0:
                heapq.heappop(theirs)
        if shares:
            heapq.heappush(mine, [sign * price, number, trader, shares])
            if len(mine) > DEPTH:
                mine.remove(max(mine))
                heapq.heapify(mine)
    for (stock, side), heap in heaps.items():
        market.books[stock, side] = [(i, t, abs(p), n) for p, i, t, n in sorted(heap)]
    return market

"""The demo's check: state and output against a recomputation that owes Braided nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from braided.kinds.operator.contents import newest_batch, state_of
from braided.spark.store_settings import session_checkpoint
from braided.store.durable.location import Location
from braided.workloads.exchange import Ledger, Matcher, replay
from braided.workloads.orders import orders

__all__ = ["compare"]


def compare(
    spark: SparkSession, home: Location, rows: int, say: Callable[[str], None]
) -> list[str]:
    """Compares all state and output of a run of so many rows a batch; what differs, in words."""
    checkpoint = session_checkpoint(spark, home / "checkpoint")
    committed = newest_batch(checkpoint) + 1
    names = ["id", "stock", "trader", "side", "price", "shares"]
    table = orders(spark, committed * rows).select(*names).toArrow().sort_by("id")
    expected = replay(zip(*(table[name].to_pylist() for name in names), strict=True))

    def key(name: str) -> StructType:
        return StructType().add(name, StringType())

    books = state_of(checkpoint, "matcher", Matcher, key("stock"))
    ledger = state_of(checkpoint, "ledger", Ledger, key("trader"))
    newest = (
        spark.read.parquet(str(home / "positions"))
        .groupBy("trader")
        .agg(F.max(F.struct("trades", "shares", "cash")).alias("p"))
    )
    found: list[tuple[str, Any, Any]] = [
        ("orders taken", {k: v["orders"] for (k,), v in books.items()}, expected.orders),
        (
            "shares traded",
            {k: v["traded"] for (k,), v in books.items() if v["traded"]},
            expected.traded,
        ),
        (
            "order books",
            {
                (stock, side): [(w.id, w.trader, w.price, w.shares) for w in fields[of]]
                for (stock,), fields in books.items()
                for side, of in (("buy", "bids"), ("sell", "asks"))
                if fields[of]
            },
            {of: book for of, book in expected.books.items() if book},
        ),
        (
            "positions in the state",
            {k: (v["trades"], v["shares"], v["cash"]) for (k,), v in ledger.items()},
            expected.positions,
        ),
        (
            "positions in the output",
            {row.trader: tuple(row.p) for row in newest.collect()},
            expected.positions,
        ),
    ]
    for what, ours, theirs in found:
        say(f"  {what:<24}{len(theirs):>8,}  {'identical' if ours == theirs else 'DIFFERENT'}")
    return [
        f"{what}: {len({k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k)}):,} differ"
        for what, ours, theirs in found
        if ours != theirs
    ]

"""The demo: a stock exchange on local Spark, rescaled while orders come in.

Orders go to a book for each stock, the trades that come of them to a position for each trader. The
query starts on two channels, goes to six, is rebalanced, and goes on with three; at the end all of
its state and output is compared with a recomputation that has nothing to do with Braided.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

import braided
from braided.api.query import ElasticQuery
from braided.bench.s3_server import missing, serve
from braided.bench.session import local_spark
from braided.kinds.operator.contents import newest_batch, state_of
from braided.spark.store_settings import session_checkpoint
from braided.store.durable.location import Location
from braided.workloads.exchange import POSITIONS, TRADES, Ledger, Matcher, replay
from braided.workloads.orders import STOCKS, TRADERS, order_stream, orders

__all__ = ["main"]

_ROWS_PER_BATCH = 10_000
_FIRST, _MORE, _LAST = 2, 6, 3
_PATIENCE_S = 120.0
_LOOK_S = 0.1


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="braided demo",
        description="A stock exchange on local Spark that is rescaled while it runs.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to stream (60)")
    parser.add_argument(
        "--rows", type=int, default=_ROWS_PER_BATCH, help=f"orders a batch ({_ROWS_PER_BATCH:,})"
    )
    parser.add_argument(
        "--s3",
        action="store_true",
        help="keep checkpoint and output on an S3 server that is started here (make s3)",
    )
    arguments = parser.parse_args(argv)
    if arguments.seconds <= 0 or arguments.rows < 1:
        parser.error("--seconds and --rows take numbers above 0")
    lacking = missing() if arguments.s3 else None
    if lacking is not None:
        parser.error(f"--s3: {lacking}")
    _say("Starting Spark on this machine ...")
    with (
        tempfile.TemporaryDirectory(prefix="braided-demo-", ignore_cleanup_errors=True) as made,
        _home(Path(made), arguments.s3) as (home, settings),
        local_spark("braided demo", Path(made), settings) as spark,
    ):
        return _run(spark, home, arguments.seconds, arguments.rows, _on_interrupt())


@contextmanager
def _home(work: Path, on_s3: bool) -> Iterator[tuple[Location, dict[str, str]]]:
    """Where checkpoint and output are, and how Spark gets there."""
    if not on_s3:
        yield Location.of(work), {}
        return
    with serve(work / "s3") as server:
        yield Location.of(f"{server.url}/demo"), server.spark_settings


def _on_interrupt() -> threading.Event:
    """Ctrl-C sets this, and raises KeyboardInterrupt the second time.

    Raised at once it could hit a call into the JVM, and PySpark's own answer to it cancels the jobs
    of the batch that is running.
    """
    asked = threading.Event()

    def answer(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, answer)
    return asked


def _run(
    spark: SparkSession, home: Location, seconds: float, rows: int, interrupted: threading.Event
) -> int:
    _say(
        f"An order book for each of {STOCKS:,} stocks, a position for each of {TRADERS:,} traders, "
        f"{rows:,} orders a batch.\nFor {seconds:g} seconds; Ctrl-C ends it before.\n"
    )
    query = _start(spark, home, rows)
    watch = _Watch(query)
    try:
        changes = _stream(query, watch, seconds, interrupted)
        if interrupted.is_set():
            _say("\nInterrupted: the running batch ends, then the query stops.")
    finally:
        query.stop()
    if interrupted.is_set():
        _say(f"Stopped after {len(watch.batches)} batches; nothing was compared.")
        return 130
    for batch in watch.new():
        _say(batch.line())
    _say("\nStopped. Computing the same again from the orders, in plain Python ...")
    problems = _compare(spark, home, rows)
    _summary(watch, changes, problems)
    return 1 if problems else 0


def _start(spark: SparkSession, home: Location, rows: int) -> ElasticQuery:
    trades = (
        braided.stream(order_stream(spark, rows)).groupBy("stock").apply(Matcher, TRADES)
    ).name("matcher")
    positions = trades.groupBy("trader").apply(Ledger, POSITIONS).name("ledger")
    return (
        positions.writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .option("braided.channels", _FIRST)
        .option("braided.orderBy", "id")
        .start(str(home / "positions"))
    )


# --- while it runs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    """One batch, as its progress shows it."""

    number: int
    rows: int
    ms: float
    done_s: float
    channels: int
    imbalance: float
    keys: int
    moves: int

    @staticmethod
    def of(progress: Any) -> _Batch:
        parts = progress["braided"]["operators"]
        ms = float(progress["durationMs"]["triggerExecution"])
        begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
        return _Batch(
            number=progress["batchId"],
            rows=parts["matcher"]["rows"],
            ms=ms,
            done_s=begun + ms / 1000,
            channels=parts["matcher"]["channels"],
            imbalance=parts["matcher"]["imbalance"],
            keys=sum(part["keys"] for part in parts.values()),
            moves=sum(part["moves"] for part in parts.values()),
        )

    def line(self) -> str:
        rate = 1000 * self.rows / self.ms
        return (
            f"{self.number:>6}{self.rows:>9,}{rate:>10,.0f}{self.channels:>10}{self.imbalance:>11.2f}"
            f"{self.keys:>12,}{self.moves:>7}{self.ms:>10,.0f}"
        )


_HEAD = (
    f"{'batch':>6}{'orders':>9}{'orders/s':>10}{'channels':>10}{'imbalance':>11}"
    f"{'state keys':>12}{'moves':>7}{'batch ms':>10}"
)


@dataclass
class _Watch:
    """Follows the batches of a query."""

    query: ElasticQuery
    batches: list[_Batch] = field(default_factory=list)

    def new(self) -> Iterator[_Batch]:
        """The batches that have ended since the last call."""
        last = self.batches[-1].number if self.batches else -1
        for progress in self.query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"] and "braided" in progress:
                batch = _Batch.of(progress)
                last = batch.number
                self.batches.append(batch)
                yield batch


@dataclass(frozen=True)
class _Change:
    """Something that was asked of the running query."""

    what: str
    channels: int
    """What the query has once the change is made."""
    after: int
    """The last batch that was known to have ended when it was asked for."""

    def is_made(self, batch: _Batch) -> bool:
        """Whether it had taken effect when a batch began."""
        return batch.number > self.after + 1 and batch.channels == self.channels


def _stream(
    query: ElasticQuery, watch: _Watch, seconds: float, interrupted: threading.Event
) -> list[_Change]:
    """Prints batches as they come and changes the query as time goes by."""
    plan: list[tuple[float, str, int, Callable[[], None]]] = [
        (0.25, f"rescale({_MORE})", _MORE, lambda: query.rescale(_MORE)),
        (0.5, "rebalance()", _MORE, query.rebalance),
        (0.75, f"rescale({_LAST})", _LAST, lambda: query.rescale(_LAST)),
    ]
    changes: list[_Change] = []
    begun: float | None = None
    deadline = time.monotonic() + _PATIENCE_S + seconds
    _say(_HEAD)
    while not interrupted.is_set():
        for batch in watch.new():
            _say(batch.line())
        now = time.monotonic()
        if begun is None and watch.batches:
            begun = now  # the first batch warms up and does not count
        spent = 0.0 if begun is None else (now - begun) / seconds
        settled = not changes or changes[-1].is_made(watch.batches[-1])
        if plan and settled and spent >= plan[0][0]:
            _, what, channels, change = plan.pop(0)
            _say(f"    -- {what} --")
            changes.append(_Change(what, channels, watch.batches[-1].number))
            change()
        elif not plan and settled and spent >= 1:
            return changes
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended by itself")
        if now > deadline:
            raise TimeoutError(f"{_PATIENCE_S:.0f} s over time; is this machine very busy?")
        interrupted.wait(_LOOK_S)
    return changes


# --- at the end -----------------------------------------------------------------------------------


def _compare(spark: SparkSession, home: Location, rows: int) -> list[str]:
    """What differs from the recomputation, in words."""
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
            {place: book for place, book in expected.books.items() if book},
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
        _say(f"  {what:<24}{len(theirs):>8,}  {'identical' if ours == theirs else 'DIFFERENT'}")
    return [
        f"{what}: {len({k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k)}):,} differ"
        for what, ours, theirs in found
        if ours != theirs
    ]


def _summary(watch: _Watch, changes: list[_Change], problems: list[str]) -> None:
    batches = watch.batches
    rows = sum(batch.rows for batch in batches)
    spent_s = batches[-1].done_s - (batches[0].done_s - batches[0].ms / 1000)
    gaps = {later.number: later.done_s - earlier.done_s for earlier, later in pairwise(batches)}
    usual_s = statistics.median(gaps.values())
    _say("\nSummary")
    _say(
        f"  {rows:,} orders in {len(batches)} batches and {spent_s:.0f} s, "
        f"{rows / spent_s:,.0f} a second; output every {usual_s:.2f} s (median)"
    )
    for change in changes:
        # The batch that was running when it was asked for, and the one that it took effect in.
        near = [b for b in batches if change.after < b.number <= change.after + 2]
        moves = sum(batch.moves for batch in near)
        pause_s = max(0.0, max(gaps[b.number] for b in near) - usual_s)
        before = [b.imbalance for b in batches if change.after - 3 < b.number <= change.after]
        later = [b.imbalance for b in batches if change.after + 2 < b.number <= change.after + 5]
        effect = ""
        if before and later:
            was, became = statistics.median(before), statistics.median(later)
            effect = f", imbalance {was:.2f} -> {became:.2f}"
        _say(f"  {change.what:<12} moved {moves} slots, pause {pause_s:.2f} s{effect}")
    if problems:
        _say("  result: DIFFERENT from the recomputation: " + "; ".join(problems))
    else:
        _say("  result: all state and all output identical to an independent recomputation")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

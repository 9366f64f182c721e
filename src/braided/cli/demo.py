"""The demo: a stock exchange on local Spark, rescaled while orders come in.

Orders go to a book for each stock, the trades that come of them to a position for each trader. The
query starts on two channels, goes to six, is rebalanced, and goes on with three; at the end all of
its state and output is compared with a recomputation that has nothing to do with Braided. On a
cluster one of its hosts is lost on the way.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import braided
from braided.api.query import ElasticQuery
from braided.bench.s3_server import missing, serve
from braided.bench.session import local_spark, quiet_spark
from braided.bench.standalone_cluster import StandaloneCluster, standalone_cluster
from braided.cli.demo_batches import HEAD, BatchFollower, Change, summary
from braided.cli.demo_check import compare
from braided.store.durable.location import Location
from braided.workloads.exchange import POSITIONS, TRADES, Ledger, Matcher
from braided.workloads.orders import STOCKS, TRADERS, order_stream

__all__ = ["main"]

_ROWS_PER_BATCH = 10_000
_FIRST, _MORE, _LAST = 2, 6, 3
_HOSTS = 3
_PATIENCE_S = 900.0
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
    parser.add_argument(
        "--cluster",
        action="store_true",
        help=f"on a cluster of {_HOSTS} hosts that is started here, and lose one of them",
    )
    arguments = parser.parse_args(argv)
    if arguments.seconds <= 0 or arguments.rows < 1:
        parser.error("--seconds and --rows take numbers above 0")
    lacking = missing() if arguments.s3 else None
    if lacking is not None:
        parser.error(f"--s3: {lacking}")
    where = f"a cluster of {_HOSTS} hosts" if arguments.cluster else "Spark"
    _say(f"Starting {where} on this machine ...")
    with (
        tempfile.TemporaryDirectory(prefix="braided-demo-", ignore_cleanup_errors=True) as made,
        _home(Path(made), arguments.s3) as (home, settings),
        _cluster(Path(made), arguments.cluster) as cluster,
        _session(Path(made), settings, cluster) as spark,
    ):
        show = _Show(spark, home, arguments.seconds, arguments.rows, cluster)
        return show.run(_on_interrupt())


@contextmanager
def _cluster(work: Path, wanted: bool) -> Iterator[StandaloneCluster | None]:
    if not wanted:
        yield None
        return
    with standalone_cluster(work / "cluster", workers=_HOSTS) as cluster:
        yield cluster


def _session(
    work: Path, settings: dict[str, str], cluster: StandaloneCluster | None
) -> AbstractContextManager[SparkSession]:
    if cluster is None:
        return local_spark("braided demo", work, settings, cores=_MORE)
    return quiet_spark("braided demo", work, {**cluster.spark_settings, **settings})


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


@dataclass(frozen=True)
class _Step:
    """Something that is done to the running query after a share of the time."""

    after: float
    what: str
    channels: int
    """What the query has once it is done."""
    act: Callable[[], object]
    how: str = ""
    """What its name does not say."""


@dataclass(frozen=True)
class _Show:
    """One run of the demo."""

    spark: SparkSession
    home: Location
    seconds: float
    rows: int
    cluster: StandaloneCluster | None

    def run(self, interrupted: threading.Event) -> int:
        _say(
            f"An order book for each of {STOCKS:,} stocks, a position for each of {TRADERS:,} "
            f"traders, {self.rows:,} orders a batch.\n"
            f"For {self.seconds:g} seconds; Ctrl-C ends it before.\n"
        )
        query = self._start()
        watch = BatchFollower(query)
        try:
            changes = self._stream(query, watch, interrupted)
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
        problems = compare(self.spark, self.home, self.rows, _say)
        _say("\nSummary")
        for line in summary(watch.batches, changes):
            _say(f"  {line}")
        if problems:
            _say("  result: DIFFERENT from the recomputation: " + "; ".join(problems))
            return 1
        _say("  result: all state and all output identical to an independent recomputation")
        return 0

    def _start(self) -> ElasticQuery:
        orders = braided.stream(order_stream(self.spark, self.rows))
        trades = orders.groupBy("stock").apply(Matcher, TRADES).name("matcher")
        positions = trades.groupBy("trader").apply(Ledger, POSITIONS).name("ledger")
        return (
            positions.writeStream.format("parquet")
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .option("braided.channels", _FIRST)
            .option("braided.orderBy", "id")
            .start(str(self.home / "positions"))
        )

    def _plan(self, query: ElasticQuery) -> list[_Step]:
        more = _Step(0.25, f"rescale({_MORE})", _MORE, lambda: query.rescale(_MORE))
        balanced = _Step(0.5, "rebalance()", _MORE, query.rebalance)
        fewer = _Step(0.75, f"rescale({_LAST})", _LAST, lambda: query.rescale(_LAST))
        if self.cluster is None:
            return [more, balanced, fewer]
        lost, cluster = self.cluster.workers[-1].host, self.cluster
        loss = _Step(
            after=0.6,
            what="lose a host",
            channels=_MORE,
            act=lambda: cluster.kill_worker(lost),
            how=f": kill -9 of the worker on {lost} and of all that it runs",
        )
        return [
            replace(more, after=0.2),
            replace(balanced, after=0.4),
            loss,
            replace(fewer, after=0.8),
        ]

    def _stream(
        self, query: ElasticQuery, watch: BatchFollower, interrupted: threading.Event
    ) -> list[Change]:
        """Prints batches as they come and changes the query as time goes by."""
        plan = self._plan(query)
        changes: list[Change] = []
        begun: float | None = None
        deadline = time.monotonic() + _PATIENCE_S + self.seconds
        _say(HEAD)
        while not interrupted.is_set():
            for batch in watch.new():
                _say(batch.line())
            now = time.monotonic()
            if begun is None and watch.batches:
                begun = now  # the first batch warms up and does not count
            spent = 0.0 if begun is None else (now - begun) / self.seconds
            settled = not changes or changes[-1].is_made(watch.batches[-1])
            if plan and settled and spent >= plan[0].after:
                step = plan.pop(0)
                _say(f"    -- {step.what}{step.how} --")
                changes.append(Change(step.what, step.channels, watch.batches[-1].number))
                step.act()
            elif not plan and settled and spent >= 1:
                return changes
            if not query.isActive:
                raise query.exception() or RuntimeError("the query ended by itself")
            if now > deadline:
                raise TimeoutError(f"{_PATIENCE_S:.0f} s over time; is this machine very busy?")
            interrupted.wait(_LOOK_S)
        return changes


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

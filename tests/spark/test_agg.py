"""`.agg` gives what Spark's own streaming aggregation gives on the same input, in one session."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import braided
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
    OperatorError,
    UnsupportedError,
)
from braided.spark.jvm import RENAMED_LOGS
from support.stream_harness import Feed, Lab, committed_view, last_batch

SCHEMA = (
    "k string, i int, b bigint, x double, f float, d decimal(12,3), wide decimal(38,6), s string, "
    "t timestamp, day date, yes boolean, bytes binary"
)
START = datetime(2024, 3, 1, 12, tzinfo=UTC)
Job = Callable[[Any], Any]


class Peers:
    """One job on the same input, native and braided, and what each gave out."""

    def __init__(self, lab: Lab, feed: Feed, job: Job, mode: str, **watermark: str) -> None:
        self.lab, self.feed, self.job, self.mode = lab, feed, job, mode
        self.watermark = watermark
        self.native: list[Row] = []
        self.braided: list[Row] = []

    def source(self) -> DataFrame:
        frame = self.feed.frame()
        for column, delay in self.watermark.items():
            frame = frame.withWatermark(column, delay)
        return frame

    @contextmanager
    def running(self, **options: Any) -> Iterator[braided.ElasticQuery]:
        """Both, from a start to a stop; they go on where they were."""
        home = self.lab.home
        native = _writer(self.job(self.source()), self.mode, self.native)
        native.option("checkpointLocation", str(home / "native"))
        self.lab.spark.conf.set(*RENAMED_LOGS)  # or it starts eight processes for each file
        native = native.start()
        self.lab.spark.conf.unset(RENAMED_LOGS[0])
        ours = _writer(self.job(braided.stream(self.source())), self.mode, self.braided)
        ours.option("checkpointLocation", str(self.lab.checkpoint))
        for name, value in options.items():
            ours.option(f"braided.{name}", value)
        query = ours.start()
        self.queries = (native, query)
        try:
            yield query
        finally:
            query.stop()
            native.stop()

    def step(self, rows: Sequence[tuple[Any, ...]], files: int = 1) -> None:
        """More rows, and both have processed them."""
        self.feed.add(rows, files)
        for query in self.queries:
            query.processAllAvailable()

    def taken(self) -> tuple[list[Row], list[Row]]:
        """What both gave out since the last call: ours, then Spark's."""
        found = self.braided[:], self.native[:]
        self.braided.clear()
        self.native.clear()
        return found


def _writer(frame: Any, mode: str, found: list[Row]) -> Any:
    def keep(rows: DataFrame, batch: int) -> None:
        found.extend(rows.collect())

    return frame.writeStream.outputMode(mode).foreachBatch(keep)


def same(ours: list[Row], native: list[Row], loose: dict[str, float] | None = None) -> None:
    """Equal rows in any order: exactly, but for columns that may be off by a relative error."""
    loose = loose or {}
    keys = [name for name in ours[0].__fields__ if name in ("k", "window", "t")] if ours else []

    def place(row: Row) -> str:
        return repr([row[name] for name in keys])

    assert sorted(map(place, ours)) == sorted(map(place, native))
    for a, b in zip(sorted(ours, key=place), sorted(native, key=place), strict=True):
        for name in a.__fields__:
            x, y = a[name], b[name]
            if name.startswith("set_"):
                x, y = sorted(map(repr, x)), sorted(map(repr, y))
            if name in loose and x is not None and y is not None:
                assert x == pytest.approx(y, rel=loose[name], nan_ok=True), (name, a)
            else:
                assert repr(x) == repr(y), (name, a)


def some_rows(batch: int, count: int = 60) -> list[tuple[Any, ...]]:
    """Rows of every type, with nulls, NaN and both zeros among them."""
    rows = []
    for n in range(batch * 1000, batch * 1000 + count):
        x = [math.nan, -0.0, None, n / 8, -n / 8, 1e300][n % 6] if n % 5 == 0 else n / 4
        rows.append(
            (
                None if n % 9 == 0 else f"k{n % 4}",
                None if n % 7 == 0 else n - 1500,
                n * 10**9 - 10**12,
                x,
                None if x is None else (-0.0 if n % 10 == 0 else n / 2),
                None if n % 6 == 0 else Decimal(n) / 8,
                Decimal(n * 10**24 - 10**27) / 10**6,
                None if n % 8 == 0 else f"ü{n % 11}",
                START + timedelta(seconds=n),
                None if n % 10 == 0 else date(2024, 1, 1) + timedelta(days=n % 50),
                None if n % 3 == 0 else n % 2 == 0,
                n.to_bytes(3, "big"),
            )
        )
    return rows


def exact() -> dict[str, Column]:
    return {
        "n": F.count("*"),
        "known": F.count("s"),
        "ints": F.sum("i"),
        "longs": F.sum("b"),
        "doubles": F.sum("x"),
        "decimals": F.sum("d"),
        "wides": F.sum("wide"),
        "product": F.sum(F.col("i") * 2),
        "none": F.sum(F.lit(None).cast("int")),
        "mean_i": F.avg("i"),
        "mean_d": F.avg("d"),
        "mean_wide": F.avg("wide"),
        "share": F.sum("i") / F.count("*") + 1,
        "some": F.expr("sum(i) FILTER (WHERE s IS NOT NULL)"),
        "least_x": F.min("x"),
        "most_x": F.max("x"),
        "most_f": F.max("f"),
        "least_d": F.min("d"),
        "most_wide": F.max("wide"),
        "least_s": F.min("s"),
        "most_s": F.max("s"),
        "least_t": F.min("t"),
        "most_day": F.max("day"),
        "most_bytes": F.max("bytes"),
        "least_pair": F.min(F.struct("day", "s", "x")),
        "any_yes": F.bool_or("yes"),
        "every_yes": F.min("yes"),
        "yeses": F.count_if("yes"),
        "at_most_b": F.max_by("s", "b"),
        "at_least_b": F.min_by(F.struct("i", "s"), "b"),
        "at_last_s": F.max_by("i", F.struct("s", "b")),
        "first_s": F.first("s"),
        "last_s": F.last("s"),
        "first_known": F.first("day", ignorenulls=True),
        "last_known": F.last("day", ignorenulls=True),
        "list_i": F.collect_list("i"),
        "list_pairs": F.collect_list(F.struct("s", "d", "t")),
        "set_s": F.collect_set("s"),
        "set_pairs": F.collect_set(F.struct("yes", "day")),
        "middle_i": F.percentile_approx("i", 0.5),
        "ends_d": F.percentile_approx("d", [0.0, 0.25, 1.0], 1000),
        "middle_t": F.percentile_approx("t", 0.5),
        "middle_day": F.percentile_approx("day", 0.5),
    }


def loose() -> dict[str, Column]:
    return {
        "dev": F.stddev("i"),
        "dev_pop": F.stddev_pop("x"),
        "var": F.variance("d"),
        "var_pop": F.var_pop("i"),
        "distinct_s": F.approx_count_distinct("s"),
        "distinct_b": F.approx_count_distinct("b", 0.01),
    }


BOUNDS = {"dev": 1e-12, "dev_pop": 1e-12, "var": 1e-12, "var_pop": 1e-12}
BOUNDS |= {"distinct_s": 0.15, "distinct_b": 0.03}


def named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def test_every_aggregate_equals_native_through_rescales_and_a_restart(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    columns = named(exact() | loose())
    peers = Peers(lab, feed, lambda rows: rows.groupBy("k").agg(*columns), "update")
    stream = braided.stream(feed.frame()).groupBy("k").agg(*columns)
    assert stream.schema == feed.frame().groupBy("k").agg(*columns).schema
    with peers.running(orderBy="b") as query:
        peers.step(some_rows(0))
        same(*peers.taken(), BOUNDS)
        query.rescale(5)
        peers.step(some_rows(1, 7))
        same(*peers.taken(), BOUNDS)
    with peers.running(orderBy="b") as query:
        peers.step(some_rows(2))
        query.rescale(1)
        peers.step(some_rows(3))
        same(*peers.taken(), BOUNDS)


def timed(*seconds: int, key: str = "a") -> list[tuple[Any, ...]]:
    """Rows of these seconds; the value is a power of two, so that a sum tells what is in it."""
    return [(START + timedelta(seconds=s), key, 2.0 ** (s % 40)) for s in seconds]


WINDOWS: dict[str, Callable[[], list[Any]]] = {
    "tumbling": lambda: [F.window("t", "10 seconds"), "k"],
    "sliding": lambda: ["k", F.window("t", "10 seconds", "5 seconds")],
    "time": lambda: ["t"],
}


@pytest.mark.parametrize(
    ("window", "mode"), [("tumbling", "append"), ("sliding", "update"), ("time", "append")]
)
def test_windows_evict_and_drop_late_rows_as_native(lab: Lab, window: str, mode: str) -> None:
    columns = WINDOWS[window]

    def job(rows: Any) -> Any:
        return rows.groupBy(*columns()).agg(F.sum("v").alias("s"), F.count("*").alias("n"))

    feed = lab.feed("t timestamp, k string, v double")
    peers = Peers(lab, feed, job, mode, t="10 seconds")
    long_key = "long " * 120
    with peers.running() as query:
        peers.step([*timed(1, 2, 12, 13), *timed(3, key="b"), *timed(4, key=long_key)])
        peers.step(timed(28, 29))  # the watermark goes to 19
        query.rescale(3)
        peers.step([*timed(5, 18, 21), *timed(22, key="b")])  # 5 is late, 18 for some windows
    with peers.running():
        peers.step([*timed(60), *timed(14)])
        peers.step([*timed(61), *timed(45)])
        peers.step(timed(90, 100))
        for query_of_either in peers.queries:
            query_of_either.processAllAvailable()
    ours, native = peers.taken()
    assert len(native) > 5
    assert sorted(map(repr, ours)) == sorted(map(repr, native))
    view = committed_view(lab.checkpoint).operators["agg"]
    # The watermark is at 90: what is left ends after it.
    left = {"tumbling": 2, "sliding": 4, "time": 1}[window]
    assert view.keys == left
    assert len([ms for ms in view.due.values() if ms is not None]) >= 1


def test_the_session_operator_of_the_examples_equals_session_windows(lab: Lab) -> None:
    sessions = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "sessions.py"))
    feed = lab.feed("t timestamp, user long")

    def job(rows: Any) -> Any:
        if isinstance(rows, braided.Stream):
            schema = "user long, start timestamp, clicks long"
            return rows.groupBy("user").apply(sessions["Sessions"], schema, timeMode="EventTime")
        window = F.session_window("t", "30 seconds")
        counted = rows.groupBy("user", window).agg(F.count("*").alias("clicks"))
        return counted.selectExpr("user", "session_window.start AS start", "clicks")

    peers = Peers(lab, feed, job, "append", t="40 seconds")
    with peers.running() as query:
        peers.step([(START + timedelta(seconds=s), s % 2) for s in (1, 10, 61, 12, 30, 75)])
        query.rescale(3)
        peers.step([(START + timedelta(seconds=s), s % 2) for s in (45, 110, 47, 200, 201)])
        peers.step([(START + timedelta(seconds=s), s % 2) for s in (500, 501)])
        for either in peers.queries:
            either.processAllAvailable()
    ours, native = peers.taken()
    assert len(native) > 3
    assert sorted(map(repr, ours)) == sorted(map(repr, native))


def test_complete_mode_gives_out_everything_in_every_batch(lab: Lab) -> None:
    feed = lab.feed("k long, v double")
    tables = []
    for name, rows in (("ours", braided.stream(feed.frame())), ("native", feed.frame())):
        totals = rows.groupBy("k").agg(F.sum("v").alias("s"))
        writer = totals.writeStream.format("memory").outputMode("complete")
        tables.append((name, writer.queryName(f"complete_{name}").start()))
    try:
        for batch in range(3):
            feed.add([(batch * 10 + n, float(n)) for n in range(12)])
            for _, query in tables:
                query.processAllAvailable()
        tables[0][1].rescale(3)
        tables[0][1].processAllAvailable()
        found = [
            sorted(lab.spark.table(f"complete_{name}").collect(), key=lambda row: row.k)
            for name, _ in tables
        ]
    finally:
        for _, query in tables:
            query.stop()
    assert found[0] == found[1]
    assert len(found[0]) == 32


def test_short_forms_are_named_and_typed_as_in_spark(lab: Lab) -> None:
    frame = lab.feed("k long, i int, x double, s string").frame()
    jobs: list[Job] = [
        lambda g: g.count(),
        lambda g: g.sum("i", "x"),
        lambda g: g.avg("i"),
        lambda g: g.mean("x"),
        lambda g: g.min("i"),
        lambda g: g.max(),
        lambda g: g.agg({"x": "sum", "*": "count"}),
        lambda g: g.agg(F.sum("x"), F.max("s").alias("top")),
    ]
    for job in jobs:
        native = job(frame.groupBy("k")).schema
        assert job(braided.stream(frame).groupBy("k")).schema == native


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (lambda: F.count_distinct("i"), "a distinct aggregate needs every value"),
        (lambda: F.sum_distinct("i"), "a distinct aggregate needs every value"),
        (lambda: F.percentile("i", 0.5), "percentile_approx keeps a sketch"),
        (lambda: F.median("i"), "percentile_approx keeps a sketch"),
        (lambda: F.mode("i"), "a count of every value"),
        (lambda: F.corr("i", "x"), "no rule yet"),
        (lambda: F.skewness("i"), "no rule yet"),
        (lambda: F.try_sum("i"), "may turn into null"),
        (lambda: F.collect_list(F.create_map("i", "i")), "maps can't be kept as state"),
        (lambda: F.first(F.create_map("i", "i")), "can't be kept as state"),
    ],
)
def test_what_is_left_out_is_refused_at_definition(
    lab: Lab, column: Callable[[], Column], reason: str
) -> None:
    grouped = braided.stream(lab.feed("k long, i int, x double").frame()).groupBy("k")
    with pytest.raises(UnsupportedError, match=reason):
        grouped.agg(column())


def test_definitions_that_make_no_sense_are_refused(lab: Lab) -> None:
    frame = lab.feed("k long, i int, t timestamp").frame()
    stream = braided.stream(frame)
    with pytest.raises(DefinitionError, match="at least one aggregate"):
        stream.groupBy("k").agg()
    with pytest.raises(DefinitionError, match="takes columns"):
        stream.groupBy("k").agg("i")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="nope"):
        stream.groupBy("k").agg(F.col("nope"))
    with pytest.raises(UnsupportedError, match=r"sessions\.py"):
        stream.groupBy(F.session_window("t", "5 minutes")).agg(F.count("*"))
    with pytest.raises(UnsupportedError, match="order of rows"):
        stream.groupBy("k").agg(F.first("i"), subKeys=2)
    with pytest.raises(DefinitionError, match="from 1 to 1024"):
        stream.groupBy("k").agg(F.sum("i"), subKeys=0)
    counts = stream.groupBy("k").count()
    with pytest.raises(UnsupportedError, match="which only a watermark tells"):
        counts.writeStream.format("noop").start()
    with pytest.raises(UnsupportedError, match="only ever added"):
        counts.writeStream.format("parquet").outputMode("complete").start(str(lab.out))


def test_a_sum_that_overflows_ends_the_query_as_in_ansi_mode(lab: Lab) -> None:
    feed = lab.feed("k string, b bigint")
    totals = braided.stream(feed.frame()).groupBy("k").agg(F.sum("b"))
    query = totals.writeStream.format("noop").outputMode("update").start()
    feed.add([("a", 2**62), ("b", 1)])
    query.processAllAvailable()
    feed.add([("a", 2**62)])
    with pytest.raises(Exception, match="does not fit into int64") as raised:
        query.processAllAvailable()
    assert isinstance(raised.value.__cause__, OperatorError)
    assert "'k': 'a'" in str(raised.value.__cause__)
    assert str(raised.value).startswith("OperatorError: aggregation 'agg': sum(b) does not fit")


def test_sub_keys_change_nothing_but_the_way(lab: Lab) -> None:
    feed = lab.feed("k long, v double")
    columns = named({"s": F.sum("v"), "n": F.count("*"), "var": F.var_pop("v"), "m": F.max("v")})

    def job(rows: Any) -> Any:
        more = {"subKeys": 3} if isinstance(rows, braided.Stream) else {}
        return rows.groupBy("k").agg(*columns, **more)

    peers = Peers(lab, feed, job, "update")
    with peers.running():
        for batch in range(2):
            peers.step([(n % 3, float(n + batch)) for n in range(60)], files=5)
    same(*peers.taken(), {"var": 1e-12})


def test_a_hot_key_travels_as_one_row_per_input_partition(lab: Lab, spark: SparkSession) -> None:
    feed = lab.feed("k long, v double")
    totals = braided.stream(feed.frame()).groupBy("k").agg(F.sum("v"))
    plans: list[str] = []
    feed.add([(1, float(n)) for n in range(5000)], files=2)
    query = totals.writeStream.format("noop").outputMode("update").start()
    try:
        query.processAllAvailable()
        engine: Any = query._engine  # type: ignore[attr-defined]
        (stage,) = engine._steps.processing._plan.stages.values()
        frame = spark.range(100).selectExpr("id % 3 AS k", "double(id) AS v")
        routed = stage._routed(frame, engine.version.tables["agg"])
        plans.append(routed._jdf.queryExecution().executedPlan().toString())
        progress = last_batch(query)["braided"]["operators"]["agg"]
    finally:
        query.stop()
    assert progress["rows"] == 1
    # Spark's first half, our exchange, Spark's second half, and no other exchange.
    assert plans[0].count("Exchange") == 1
    exchange = plans[0].index("Exchange shufflepartitionidpassthrough")
    assert plans[0].index("partial_sum") > exchange > plans[0].index("functions=[sum")


def test_aggregates_stand_between_operators(lab: Lab) -> None:
    class Latest(braided.Operator):
        """What the groups of a parity last said, and how often one spoke."""

        n: int = 0

        def onRow(self, row: Row) -> Iterator[tuple[Any, ...]]:
            self.n += 1
            yield row.parity, self.n, row.total

    feed = lab.feed("k long, v long")
    flow = (
        braided.stream(feed.frame())
        .groupBy("k")
        .agg(F.sum("v").alias("total"))
        .filter("total > 0")
        .withColumn("parity", F.col("k") % 2)
        .groupBy("parity")
        .apply(Latest, "parity long, n long, total long")
        .groupBy("parity")
        .agg(F.max("n").alias("n"), F.sum("total").alias("totals"))
        .name("second")
    )
    writer = flow.writeStream.format("parquet").outputMode("update")
    writer.option("path", str(lab.out)).option("checkpointLocation", str(lab.checkpoint))
    query = writer.start()
    try:
        for batch in range(2):
            feed.add([(n % 5, n) for n in range(20)])
            query.processAllAvailable()
            query.rescale(2 + batch)
    finally:
        query.stop()
    one = {k: sum(n for n in range(20) if n % 5 == k) for k in range(5)}
    expected = {}
    for parity in (0, 1):
        mine = [total for k, total in one.items() if k % 2 == parity]
        expected[parity] = (len(mine) * 2, sum(mine) + 2 * sum(mine))
    last = {parity: (n, total) for parity, n, total in lab.rows()}
    assert last == expected


def test_other_aggregates_do_not_fit_the_state(lab: Lab, tmp_path: Path) -> None:
    feed = lab.feed("k long, v long")
    feed.add([(1, 1)])

    def start(column: Column) -> None:
        totals = braided.stream(feed.frame()).groupBy("k").agg(column)
        writer = totals.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(lab.checkpoint)).start()
        query.processAllAvailable()
        query.stop()

    start(F.sum("v"))
    start(F.sum("v").alias("renamed"))  # the same state
    with pytest.raises(CheckpointMismatchError, match="the aggregates of 'agg'"):
        start(F.max("v"))

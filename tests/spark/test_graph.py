"""Flows that part and meet: branches, several sinks, unions, two inputs, rows that go back."""

from __future__ import annotations

import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import braided
from braided.errors import DefinitionError, UnsupportedError
from support.graph_operators import Component, Match, Total
from support.stream_harness import Lab, manifests_of, output_of

SCHEMA = "k string, v long"
ROWS = [(f"k{i % 7}", i) for i in range(60)]


def totals(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What Total gives out, row by row."""
    sums: dict[str, int] = defaultdict(int)
    found = []
    for k, v in rows:
        sums[k] += v
        found.append((k, sums[k]))
    return found


class Capture:
    """A foreachBatch that keeps rows by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = [tuple(row) for row in df.collect()]

    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def test_one_upstream_six_branches_three_sinks_run_each_operator_once(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:30])
    feed.add(ROWS[30:])
    up = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Total, SCHEMA)
    up = up.name("up")
    branches = [
        up.filter(f"v % 6 = {i}").groupBy("k").apply(Total, SCHEMA).name(f"branch{i}")
        for i in range(6)
    ]
    captured = Capture()
    writers = [
        branches[0].union(branches[1]).writeStream.format("parquet").option("path", lab.out / "a"),
        branches[2].union(branches[3]).writeStream.format("parquet").option("path", lab.out / "b"),
        branches[4].union(branches[5]).union(up).writeStream.foreachBatch(captured),
    ]
    writers[0].option("checkpointLocation", lab.checkpoint).option("braided.channels", 3)
    query = braided.start(*writers)
    query.processAllAvailable()
    query.rescale(2, "branch3")
    query.rescale(4, "up")
    feed.add([("k1", 5), ("k2", 6)])
    query.processAllAvailable()
    query.stop()
    rows = [*ROWS, ("k1", 5), ("k2", 6)]
    upstream = totals(rows)
    expected = [totals([row for row in upstream if row[1] % 6 == i]) for i in range(6)]

    def of(*wanted: list[tuple[str, int]]) -> Counter[Any]:
        return Counter(row for part in wanted for row in part)

    shown = [
        [row for batch in output_of(lab.out / name).values() for row in batch] for name in "ab"
    ]
    assert Counter(shown[0]) == of(expected[0], expected[1])
    assert Counter(shown[1]) == of(expected[2], expected[3])
    assert Counter(captured.rows()) == of(expected[4], expected[5], upstream)
    # Once per batch: every operator has seen each of its rows exactly once.
    batches = [p["braided"] for p in query.recentProgress if "braided" in p]
    seen: Counter[str] = Counter()
    for batch in batches:
        for name, operator in batch["operators"].items():
            seen[name] += operator["rows"]
    assert seen["up"] == len(rows)
    assert [seen[f"branch{i}"] for i in range(6)] == [len(e) for e in expected]
    assert query.routing()["branch3"].channels == 2 and query.routing()["up"].channels == 4


def test_branches_of_the_input_and_of_two_inputs(lab: Lab) -> None:
    left, right = lab.feed(SCHEMA, "left"), lab.feed("v long, k string", "right")
    left.add(ROWS)
    right.add([(v, k) for k, v in ROWS[:10]])
    one = braided.stream(left.frame())
    even = one.filter("v % 2 = 0").groupBy("k").apply(Total, SCHEMA).name("even")
    both = one.select("k", (F.col("v") * 10).alias("v"))
    tens = both.groupBy("k").apply(Total, SCHEMA).name("tens")
    other = braided.stream(right.frame()).groupBy("k").apply(Total, SCHEMA).name("other")
    captured = [Capture(), Capture(), Capture()]
    writers = [
        stream.writeStream.foreachBatch(capture)
        for stream, capture in zip((even, tens, other), captured, strict=True)
    ]
    query = braided.start(*writers)
    query.processAllAvailable()
    right.add([(1, "k0")])
    query.processAllAvailable()
    query.stop()
    assert Counter(captured[0].rows()) == Counter(totals([r for r in ROWS if r[1] % 2 == 0]))
    assert Counter(captured[1].rows()) == Counter(totals([(k, v * 10) for k, v in ROWS]))
    assert Counter(captured[2].rows()) == Counter(totals([*ROWS[:10], ("k0", 1)]))


def test_an_operator_of_two_inputs_equals_a_native_join(lab: Lab) -> None:
    left, right = lab.feed(SCHEMA, "left"), lab.feed("w long, name string", "right")
    flow = braided.connect(
        braided.stream(left.frame(maxFilesPerTrigger=1)).groupBy("k"),
        braided.stream(right.frame(maxFilesPerTrigger=1)).groupBy(F.lower("name")),
    ).apply(Match, "k string, v long, last string")
    lefts = [(f"k{i % 3}", i % 11) for i in range(50)]
    rights = [(i % 11, f"K{i % 4}") for i in range(40)]
    # Both inputs are there before the first batch, so that it has rows of both.
    left.add(lefts[::2])
    right.add(rights[::2])
    with lab.running(flow, channels=2) as query:
        query.processAllAvailable()
        query.rescale(5)
        left.add(lefts[1::2])
        right.add(rights[1::2])
        query.processAllAvailable()
    a = lab.spark.createDataFrame(lefts, SCHEMA)
    b = lab.spark.createDataFrame(rights, "w long, name string")
    native = a.join(b, (F.lower(b.name) == a.k) & (a.v == b.w)).select("k", "v").collect()
    assert Counter((k, v) for k, v, _ in lab.rows()) == Counter(map(tuple, native))
    # Within a batch the left rows of a key come first.
    assert {last for _, _, last in lab.output()[0]} == {"right"}


def test_two_inputs_are_refused_where_they_do_not_fit(lab: Lab) -> None:
    rows = braided.stream(lab.feed(SCHEMA).frame())
    with pytest.raises(DefinitionError, match="types must be the same"):
        braided.connect(rows.groupBy("k"), rows.groupBy("v"))
    with pytest.raises(DefinitionError, match="Total has no onLeft"):
        braided.connect(rows.groupBy("k"), rows.groupBy("k")).apply(Total, SCHEMA)
    with pytest.raises(DefinitionError, match="two inputs"):
        rows.groupBy("k").apply(Match, SCHEMA)


GRAPH = "node long, neighbour long, label long"


@pytest.mark.parametrize("channels", [1, 4])
def test_feedback_finds_connected_components(lab: Lab, channels: int) -> None:
    edges = [(1, 2), (2, 3), (7, 8), (5, 5), (8, 9), (9, 10), (10, 11), (4, 3), (20, 21)]
    feed = lab.feed(GRAPH)
    feed.add([row for a, b in edges for row in ((a, b, None), (b, a, None))])
    flow = (
        braided.stream(feed.frame())
        .groupBy("node")
        .apply(Component, f"{GRAPH}, component long")
        .feedback("component IS NULL")
        .select("node", "component")
    )
    lab.run(flow, channels=channels)
    found: dict[int, int] = {}
    for node, component in lab.rows():
        assert component < found.get(node, 1 << 60)
        found[node] = component
    assert found == components(edges)
    assert any(manifest.carry for manifest in manifests_of(lab.checkpoint).values())
    assert not manifests_of(lab.checkpoint)[max(manifests_of(lab.checkpoint))].carry


def components(edges: list[tuple[int, int]]) -> dict[int, int]:
    """By SciPy: every node and the smallest of its component."""
    ends = np.array(edges)
    nodes = np.unique(ends)
    places = np.searchsorted(nodes, ends)
    graph = coo_matrix((np.ones(len(edges)), (places[:, 0], places[:, 1])), [len(nodes)] * 2)
    _, labels = connected_components(graph, directed=False)
    return {
        int(node): int(nodes[labels == label][0]) for node, label in zip(nodes, labels, strict=True)
    }


def test_feedback_is_refused_where_the_rows_do_not_fit(lab: Lab) -> None:
    rows = braided.stream(lab.feed(GRAPH).frame())
    flow = rows.groupBy("node").apply(Component, "node long, component long")
    with pytest.raises(DefinitionError, match="'neighbour' bigint"):
        lab.start(flow.feedback("component IS NULL"), "noop")
    with pytest.raises(DefinitionError, match="feedback"):
        rows.feedback("node > 1")
    with pytest.raises(DefinitionError, match="the flow has 'Component'"):
        lab.start(flow.feedback("component IS NULL", to="other"), "noop")


def test_rows_that_explode_keep_an_order_before_the_next_operator(lab: Lab) -> None:
    class Sequence(braided.Operator):
        seen: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            self.seen.append(row.n)
            yield row.k, row.n

    feed = lab.feed(SCHEMA)
    feed.add(ROWS, files=2)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Total, SCHEMA).name("first")
    flow = flow.select(F.lit("all").alias("k"), F.explode(F.sequence("v", F.col("v") + 5)))
    flow = flow.toDF("k", "n").groupBy("k").apply(Sequence, "k string, n long")
    lab.run(flow, channels=3)
    (seen,) = [fields["seen"] for fields in lab.state(flow, "Sequence").values()]
    runs = [seen[i : i + 6] for i in range(0, len(seen), 6)]
    assert all(run == list(range(run[0], run[0] + 6)) for run in runs)


def test_a_star_inside_an_expression_between_operators_is_refused(lab: Lab) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Total, SCHEMA).name("first")
    packed = flow.select("k", F.to_json(F.struct("*")).alias("json"))
    again = packed.groupBy("k").apply(Total, SCHEMA)
    with pytest.raises(UnsupportedError, match="name the columns"):
        lab.start(again, "noop")
    lab.start(packed, "noop").stop()  # at the end of a flow it sees the flow's own columns


def test_one_query_has_one_checkpoint_and_one_path_per_sink(lab: Lab) -> None:
    flow = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k").apply(Total, SCHEMA)

    def writer(path: str, checkpoint: str) -> Any:
        made = flow.writeStream.format("parquet").option("path", lab.out / path)
        return made.option("checkpointLocation", str(lab.home / checkpoint))

    with pytest.raises(DefinitionError, match="checkpointLocation different values"):
        braided.start(writer("a", "one"), writer("b", "two"))
    with pytest.raises(DefinitionError, match="two writers write to"):
        braided.start(writer("a", "one"), writer("a", "one"))
    with pytest.raises(DefinitionError, match="one or more"):
        braided.start()


@pytest.mark.parametrize("outer", [False, True])
def test_the_example_join_equals_sparks_stream_stream_join(
    lab: Lab, tmp_path: Path, outer: bool
) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "joins.py"))
    start = datetime(2024, 1, 1)
    schema = "id long, time timestamp, value double"
    feeds = [lab.feed(schema, "left"), lab.feed(schema, "right")]

    def frame(side: int) -> DataFrame:
        return feeds[side].frame().withWatermark("time", "10 seconds")

    def at(second: int) -> datetime:
        return (start + timedelta(seconds=second)).replace(tzinfo=UTC)

    joined = braided.connect(
        braided.stream(frame(0)).groupBy("id"), braided.stream(frame(1)).groupBy("id")
    ).apply(
        example["IntervalJoin"].with_(seconds=5, outer=outer),
        "id long, time timestamp, paid_for double, payment double",
        timeMode="EventTime",
    )
    left, right = frame(0).alias("l"), frame(1).alias("r")
    close = F.expr(
        "l.id = r.id AND r.time >= l.time - INTERVAL 5 SECONDS "
        "AND r.time <= l.time + INTERVAL 5 SECONDS"
    )
    native = (
        left.join(right, close, "leftOuter" if outer else "inner")
        .selectExpr("l.id", "l.time", "l.value AS paid_for", "r.value AS payment")
        .writeStream.format("memory")
        .queryName(f"native_join_{outer}")
        .option("checkpointLocation", str(tmp_path / "native"))
        .start()
    )
    query = lab.start(joined, channels=2)
    random = Random(3)
    try:
        for batch in range(5):
            base = 12 * batch
            for feed in feeds:
                # Up to 14 seconds back: some rows are late from the second batch on.
                rows = [
                    (random.randrange(4), at(base + random.randrange(-14, 12)), float(n))
                    for n in range(20)
                ]
                # Both sides come equally far, so that the watermark, which goes by the one that is
                # behind, is the same whether or not a batch comes between the two.
                feed.add([*rows, (4, at(base + 11), 0.0)])
            query.processAllAvailable()
            native.processAllAvailable()
            query.rescale(1 + batch)
        for feed in feeds:
            feed.add([(99, at(500), 0.0)])
        query.processAllAvailable()
        native.processAllAvailable()
    finally:
        query.stop()
        native.stop()
    lines = lab.spark.read.parquet(str(lab.out)).where("id < 99").collect()
    expected = lab.spark.table(f"native_join_{outer}").where("id < 99").collect()
    assert expected and Counter(map(tuple, lines)) == Counter(map(tuple, expected))
    assert any(row.payment is None for row in lines) == outer


def test_native_stateful_steps_may_stand_upstream(lab: Lab) -> None:
    schema = "k string, v long, t timestamp"
    feed = lab.feed(schema)
    rows = feed.frame().withWatermark("t", "1 hour")
    windows = rows.dropDuplicates(["k", "v"]).groupBy(F.window("t", "10 seconds"), "k").count()
    flow = braided.stream(windows.selectExpr("k", "count AS v")).groupBy("k").apply(Total, SCHEMA)
    writer = flow.writeStream.format("noop").outputMode("update")
    captured = Capture()
    query = writer.foreachBatch(captured).option("checkpointLocation", str(lab.checkpoint)).start()
    try:
        moment = datetime(2024, 1, 1, tzinfo=UTC)
        feed.add([("a", 1, moment), ("a", 1, moment), ("a", 2, moment), ("b", 1, moment)])
        query.processAllAvailable()
        query.rescale(3)
        feed.add([("a", 2, moment), ("a", 3, moment + timedelta(seconds=20))])
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(captured.rows()) == [("a", 2), ("a", 3), ("b", 1)]

"""What `groupBy` takes, which keys are one key, and where their rows go."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import braided
from braided.control.routing.table import RoutingTable
from braided.errors import DefinitionError, UnsupportedError
from braided.flow.route import GroupingKeys, Route, first_order, sequence
from braided.tasks.stage import StageInput
from support.stream_harness import Lab, timers_of


def counting() -> type[braided.Operator]:
    # Made in a function: such a class travels to the workers as a whole.
    class Count(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            yield row

    return Count


def counts(lab: Lab, flow: braided.Stream, operator: str | None = None) -> dict[Any, int]:
    return {key: fields["rows"] for key, fields in lab.state(flow, operator).items()}


def canonical(value: Any) -> Any:
    """A value as Spark compares it: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple | list | dict):
        return tuple(map(canonical, value.values() if isinstance(value, dict) else value))
    return value


NAN, DAY = float("nan"), dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
TYPES: dict[str, dict[str, list[Any]]] = {
    "numbers": {
        "tinyint": [-128, 127, 0, None],
        "smallint": [-32768, 5, None],
        "int": [-(2**31), 7, None],
        "bigint": [-(2**63), 2**63 - 1, 0, None],
        "float": [0.0, -0.0, NAN, 1.5, math.inf, None],
        "double": [-0.0, 0.0, NAN, -NAN, 0.1, -math.inf, None],
        "decimal(30,4)": [Decimal("1.5000"), Decimal("-99999999999999999999.0001"), None],
    },
    "texts and times": {
        "string": ["", "a", "ä", "a\x00", None],
        "binary": [b"", b"\x00\xff", None],
        "boolean": [True, False, None],
        "date": [DAY, dt.date(1900, 1, 1), None],
        "timestamp": [NOON, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None],
        "timestamp_ntz": [NOON, dt.datetime(1600, 1, 1), None],
    },
    "composites": {
        "struct<a:int,b:string>": [{"a": 1, "b": None}, {"a": None, "b": "x"}, None],
        "array<int>": [[], [1, None], [1], None],
        "struct<p:array<double>,q:struct<r:date>>": [
            {"p": [NAN, -0.0], "q": {"r": DAY}},
            {"p": [NAN, 0.0], "q": {"r": DAY}},
            {"p": None, "q": None},
        ],
    },
}


@pytest.mark.parametrize("group", TYPES)
def test_keys_of_every_groupable_type_have_sparks_equality(lab: Lab, group: str) -> None:
    # One operator per type, chained: every row passes by all of them.
    columns = [(f"c{i}", kind, values) for i, (kind, values) in enumerate(TYPES[group].items())]
    feed = lab.feed(", ".join(f"{name} {kind}" for name, kind, _ in columns))
    flow = braided.stream(feed.frame())
    for name, _, _ in columns:
        flow = flow.groupBy(name).apply(counting(), feed.schema).name(name)
    height = max(len(values) for _, _, values in columns)
    rows = [tuple(values[i % len(values)] for _, _, values in columns) for i in range(height)]
    with lab.running(flow, channels=3) as query:
        feed.add(rows, files=2)
        query.processAllAvailable()
        query.rescale(2)
        feed.add(rows)
        query.processAllAvailable()
    assert Counter(map(canonical, lab.rows())) == Counter(map(canonical, rows * 2))
    for position, (name, _, _) in enumerate(columns):
        expected = Counter(repr(canonical(row[position])) for row in rows * 2)
        found = {repr(canonical(key[0])): n for key, n in counts(lab, flow, name).items()}
        assert found == expected, name


def test_groups_by_names_columns_expressions_and_several_of_them(lab: Lab) -> None:
    feed = lab.feed("k string, c int, s struct<a:int>")
    rows = [(k, c, {"a": c % 2}) for k in ("x", None) for c in range(4)]
    feed.add(rows)
    source = feed.frame()
    before = braided.stream(source)
    flow = before.groupBy("k", F.col("c")).apply(counting(), feed.schema).name("name-column")
    flow = flow.groupBy(["k"]).apply(counting(), feed.schema).name("list")
    flow = flow.groupBy(F.col("c") % 3, "k").apply(counting(), feed.schema).name("expression")
    flow = flow.groupBy("s.a").apply(counting(), feed.schema).name("nested")
    flow = flow.groupBy(F.upper("k").alias("K2")).apply(counting(), feed.schema).name("function")
    lab.run(flow, channels=2)
    assert counts(lab, flow, "name-column") == {(k, c): 1 for k, c, _ in rows}
    assert counts(lab, flow, "list") == {("x",): 4, (None,): 4}
    assert counts(lab, flow, "expression") == Counter((c % 3, k) for k, c, _ in rows)
    assert counts(lab, flow, "nested") == {(0,): 4, (1,): 4}
    assert counts(lab, flow, "function") == {("X",): 4, (None,): 4}


def test_keys_whose_hashes_are_equal_are_called_once_per_batch(lab: Lab) -> None:
    """Spark's hash passes over nulls and over where an array ends."""

    class Tables(braided.Operator):
        calls: int = 0

        def onBatch(self, rows: pa.Table) -> Iterator[Any]:
            self.calls += 1
            for row in rows.to_pylist():
                yield row["a"], row["b"], row["c"], row["n"]

    class Lists(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield Row(a=key[0], b=key[1], c=key[2], numbers=sorted(row.n for row in rows))

        def close(self) -> None:
            pass

    columns = "a int, b int, c array<array<int>>"
    keys = [(1, None, [[1], [2]]), (None, 1, [[1], [2]]), (1, None, [[1, 2]])]
    hashes = lab.spark.createDataFrame(keys, columns).selectExpr("xxhash64(a, b, c)")
    assert hashes.distinct().count() == 1
    rows = [(*keys[n % 3], n) for n in range(300)]
    expected = [(*key, list(range(i, 300, 3))) for i, key in enumerate(keys)]

    def by_number(row: tuple[Any, ...]) -> int:
        return int(row[3][0])

    def listed(stream: braided.Stream) -> Any:
        lists = f"{columns}, numbers array<int>"
        return stream.groupBy("a", "b", "c").transformWithState(Lists(), lists, "Append", "None")

    feed = lab.feed(f"{columns}, n int")
    feed.add(rows, files=2)
    tables = braided.stream(feed.frame()).groupBy("a", "b", "c").apply(Tables, feed.schema)
    flow = listed(tables)
    lab.run(flow, channels=2)
    assert [fields["calls"] for fields in lab.state(flow, "Tables").values()] == [1, 1, 1]
    assert sorted(lab.rows(), key=by_number) == expected
    static = listed(braided.stream(lab.spark.createDataFrame(rows, feed.schema)))
    assert sorted(map(tuple, static.collect()), key=by_number) == expected


def test_groups_by_columns_taken_from_the_dataframe_or_the_stream(lab: Lab) -> None:
    feed = lab.feed("k string, c int")
    feed.add([("x", c) for c in range(6)])
    source = feed.frame()
    flow = braided.stream(source).groupBy(source.k).apply(counting(), feed.schema).name("plain")
    flow = flow.groupBy(flow.c).apply(counting(), feed.schema).name("stream")
    flow = flow.groupBy(flow["c"] % 2).apply(counting(), feed.schema).name("expression")
    lab.run(flow)
    assert counts(lab, flow, "plain") == {("x",): 6}
    assert counts(lab, flow, "stream") == {(c,): 1 for c in range(6)}
    assert counts(lab, flow, "expression") == {(0,): 3, (1,): 3}


def test_groups_by_an_expression_over_columns_of_the_dataframe(lab: Lab) -> None:
    feed = lab.feed("k string, c int")
    feed.add([("x", c) for c in range(6)])
    source = feed.frame()
    flow = braided.stream(source).groupBy(source.c % 2).apply(counting(), feed.schema)
    lab.run(flow)
    assert counts(lab, flow) == {(0,): 3, (1,): 3}


def test_keys_longer_than_lmdb_allows_are_kept_apart(lab: Lab) -> None:
    class Late(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> None:
            self.rows += 1
            self.setTimer(1_000 if self.rows == 1 else 4_000_000_000_000)

        def onTimer(self, fired: dt.datetime) -> Iterator[tuple[str, int]]:
            yield self.key.k, self.rows

    keys = ["p" * 470 + "1", "p" * 510 + "1", "p" * 510 + "2", "ü" * 5_000]
    feed = lab.feed("k string")
    flow = braided.stream(feed.frame()).groupBy("k").apply(Late, "k string, n int")
    with lab.running(flow, channels=2) as query:
        feed.add([(k,) for k in keys])
        query.processAllAvailable()
        query.rescale(5)
        feed.add([(k,) for k in keys])
        query.processAllAvailable()
    assert Counter(lab.rows()) == Counter((k, 1) for k in keys)
    assert counts(lab, flow) == {(k,): 2 for k in keys}
    assert timers_of(lab.checkpoint, flow) == {(k,): (4_000_000_000_000,) for k in keys}


def test_rows_of_a_key_follow_the_order_column_across_input_partitions(lab: Lab) -> None:
    class Sequence(braided.Operator):
        seen: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            self.seen.append(row.seq)
            yield row

    feed = lab.feed("k string, seq bigint")
    rows = [("ab"[i % 2], 1_000 - i) for i in range(60)]  # newest first, dealt out to files
    feed.add(rows, files=4)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Sequence, feed.schema).name("first")
    flow = flow.groupBy(F.lit(1)).apply(Sequence, feed.schema).name("second")
    lab.run(flow, channels=3, orderBy="seq", orderPreserving=True)
    for letter, remainder in (("a", 0), ("b", 1)):
        expected = sorted(seq for k, seq in rows if k == letter)
        assert lab.state(flow, "first")[(letter,)]["seen"] == expected, remainder
    assert lab.state(flow, "second")[(1,)]["seen"] == sorted(seq for _, seq in rows)
    assert lab.rows() == sorted(rows, key=lambda row: row[1])


def test_map_keys_and_collated_keys_are_refused(lab: Lab) -> None:
    feed = lab.feed("m map<string,int>, s string")
    stream = braided.stream(feed.frame())
    with pytest.raises(Exception, match=r"(?i)map"):
        stream.groupBy("m")
    collated = braided.stream(feed.frame().selectExpr("s COLLATE UTF8_LCASE AS s"))
    with pytest.raises(UnsupportedError, match=r"collation_key\(s\)"):
        collated.groupBy("s")
    with pytest.raises(DefinitionError, match="at least one column"):
        stream.groupBy()


def test_rows_without_a_value_in_the_order_column_come_first(lab: Lab) -> None:
    class Positions(braided.Operator):
        n: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.n += 1
            yield row.k, row.seq, self.n

    feed = lab.feed("k string, seq bigint")
    feed.add([("a", 2), ("a", None), ("a", 1)])
    seen = braided.stream(feed.frame()).groupBy("k").apply(Positions, "k string, seq bigint, n int")
    lab.run(seen, channels=2, orderBy="seq", orderPreserving=True)
    assert lab.rows() == [("a", None, 1), ("a", 1, 2), ("a", 2, 3)]


def test_times_without_a_zone_are_ordered_exactly_where_the_clock_is_put_forward(
    spark: SparkSession,
) -> None:
    day, usual = dt.datetime(2025, 3, 9), spark.conf.get("spark.sql.session.timeZone")
    times = [day + dt.timedelta(minutes=m, microseconds=m % 2) for m in range(60, 300, 15)]
    times += [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]
    frame = spark.createDataFrame([(t,) for t in times], "t timestamp_ntz")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        order, _ = sequence(frame.schema, "t")
        found = frame.selectExpr("t", f"{order} AS o").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", usual)
    epoch, microsecond = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)
    assert [row.o for row in found] == [(row.t - epoch) // microsecond for row in found]


def test_a_table_of_many_slots_is_one_literal_and_leads_to_its_channels(
    spark: SparkSession,
) -> None:
    slots, channels = 8192, 7
    owners = (np.arange(slots) * 31 % channels).astype(np.int32)
    table = RoutingTable(3, channels, owners)
    # Adaptive execution, which queries of Braided's run without, would join small partitions.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        route = Route(GroupingKeys(("id",)), slots, 2)
        order = first_order(["monotonically_increasing_id()"])
        rows = StageInput(spark.range(20_000).toDF("id"), table, order, False, False)
        routed = route.apply(rows)
        slot = F.expr(f"pmod(xxhash64(id), {slots})")
        found = routed.select(slot.alias("slot"), F.spark_partition_id()).collect()
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert len({slot for slot, _ in found}) > 7000
    assert all(channel == owners[slot] for slot, channel in found)
    # Every rule of a plan looks at every node: their number must not grow with the slots.
    plan = routed._jdf.queryExecution().analyzed().toString()
    assert "element_at([0,3,6,2," in plan

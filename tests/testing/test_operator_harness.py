"""Operators in tests without Spark: rows, timers and clocks in, rows and state out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import braided
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
    OperatorDefinitionError,
    OperatorError,
    OutputSchemaError,
    StateValueError,
)
from braided.testing import OperatorHarness
from braided.testing.ddl import parse_schema

NOON = datetime(2024, 5, 1, 12)


@dataclass
class Seen:
    value: float
    at: datetime


class Threshold(braided.Operator):
    limit: braided.Param[float] = 10.0
    stored: float = 0.0
    last: Seen | None = None

    def onRow(self, row: Any) -> Iterator[Any]:
        self.last = Seen(row.value, self.batchTime)
        if row.value < 0:
            raise ValueError("below zero")
        if abs(row.value - self.stored) > self.limit:
            self.stored = row.value
            yield {"id": row.id, "value": row.value}


def rows(*pairs: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"id": id, "value": value} for id, value in pairs]


def test_rows_go_through_the_operator_in_their_order_whatever_their_key() -> None:
    harness = OperatorHarness(Threshold, key="id", now=NOON)
    given = harness.process(rows(("b", 12.0), ("a", 20.0), ("b", 13.0), ("b", 30.0), ("c", 1.0)))
    assert given == [Row(id="b", value=12.0), Row(id="a", value=20.0), Row(id="b", value=30.0)]
    assert harness.state("b") == {"stored": 30.0, "last": Seen(30.0, NOON)}
    assert harness.process(rows(("b", 31.0))) == []
    assert harness.process([Row(id="a", value=41.0)]) == [Row(id="a", value=41.0)]
    assert sorted(harness.keys()) == [Row(id="a"), Row(id="b"), Row(id="c")]
    assert harness.state("nobody") is None


def test_parameters_are_set_on_the_class() -> None:
    harness = OperatorHarness(Threshold.with_(limit=0.5), key="id")
    assert harness.process(rows(("a", 1.0))) == [Row(id="a", value=1.0)]


def test_an_operator_that_raises_is_named_and_nothing_of_the_batch_stays() -> None:
    harness = OperatorHarness(Threshold, key="id")
    harness.process(rows(("a", 20.0)))
    before = harness.state("a")
    with pytest.raises(OperatorError, match=r"'Threshold' raised ValueError: below zero") as caught:
        harness.process(rows(("a", 40.0), ("a", -1.0)))
    assert "Row(id='a', value=-1.0)" in str(caught.value)
    assert harness.state("a") == before
    assert harness.process(rows(("a", 40.0))) == [Row(id="a", value=40.0)]


def test_a_value_that_cannot_be_stored_fails_as_it_would_live() -> None:
    class Bad(braided.Operator):
        total: int = 0

        def onRow(self, row: Any) -> None:
            self.total = "much"  # type: ignore[assignment]

    with pytest.raises(StateValueError, match=r"^Bad\.total holds 'much'") as caught:
        OperatorHarness(Bad, key="id").process([{"id": 1}])
    _check_located(caught.value, "key:   Row(id=1)", "row:   Row(id=1)", 'self.total = "much"')


def _check_located(error: Exception, *parts: str) -> None:
    """What is wrong stands in the first line, then with what, and where the code is."""
    first, *others = str(error).splitlines()
    assert "which does not fit" in first or "expected" in first or "returned" in first
    for part in (*parts, 'File "', ", line "):
        assert any(part in line for line in others), (part, str(error))


def test_output_is_checked_against_a_schema_that_is_given() -> None:
    harness = OperatorHarness(Threshold, key="id", schema="id string, value double")
    assert harness.process(rows(("a", 20.0))) == [Row(id="a", value=20.0)]
    with pytest.raises(OutputSchemaError, match="output column 'value': expected int") as caught:
        OperatorHarness(Threshold, key="id", schema="id string, value int").process(
            rows(("a", 20.5))
        )
    _check_located(caught.value, "key:   Row(id='a')", "20.5", "yield {")

    class Single(braided.Operator):
        def onRow(self, row: Any) -> Any:
            return "x"

    with pytest.raises(OutputSchemaError, match=r"Single\.onRow returned str") as caught:
        OperatorHarness(Single, key="id", schema="id string").process([{"id": "a"}])
    _check_located(caught.value, "key:   Row(id='a')", "row:   Row(id='a')", 'return "x"')

    class Seventh(braided.Operator):
        def onRow(self, row: Any) -> Iterator[Any]:
            yield (row.id, "x" if row.id == 7 else row.id)

    # Rows of many keys are encoded at once: the key is that of the row, not the last one.
    with pytest.raises(OutputSchemaError, match="output column 'n': expected int") as caught:
        OperatorHarness(Seventh, key="id", schema="id int, n int").process(
            [{"id": id} for id in range(40)]
        )
    _check_located(caught.value, "key:   Row(id=7)", "row:   (7, 'x')", "yield (row.id, ")


def test_an_operator_that_cannot_travel_is_refused() -> None:
    lock = threading.Lock()

    class Local(braided.Operator):
        def onRow(self, row: Any) -> None:
            lock.acquire()

    with pytest.raises(OperatorDefinitionError, match="can't be sent to the workers"):
        OperatorHarness(Local, key="id").process([{"id": 1}])


class Silence(braided.Operator):
    seen: int = 0

    def onRow(self, row: Any) -> None:
        self.seen += 1
        for timer in self.timers():
            self.deleteTimer(timer)
        start = self.batchTime if self.watermark is None else self.watermark
        self.setTimer(start + timedelta(hours=1))

    def onTimer(self, fired: datetime) -> Iterator[Any]:
        yield self.key.id, fired, self.seen
        self.forget()


def test_timers_fire_when_time_comes() -> None:
    harness = OperatorHarness(Silence, key="id", now=NOON)
    harness.process([{"id": "a"}, {"id": "b"}])
    assert harness.timers("a") == [NOON + timedelta(hours=1)]
    assert harness.advanceTime(timedelta(minutes=30)) == []
    harness.process([{"id": "b"}])
    assert harness.advanceTime(NOON + timedelta(hours=1)) == [
        Row("a", NOON + timedelta(hours=1), 1)
    ]
    assert harness.state("a") is None
    assert harness.timers("a") == []
    fired = harness.advanceTime(timedelta(hours=1))
    assert fired == [Row("b", NOON + timedelta(hours=1.5), 2)]
    with pytest.raises(DefinitionError, match="can't go back"):
        harness.advanceTime(NOON)


def test_timers_fire_by_the_watermark_in_event_time() -> None:
    harness = OperatorHarness(Silence, key="id", timeMode="EventTime", now=NOON)
    harness.advanceWatermark(NOON)
    harness.process([{"id": "a"}])
    assert harness.advanceTime(timedelta(days=3)) == []
    assert harness.advanceWatermark(timedelta(hours=1)) == [Row("a", NOON + timedelta(hours=1), 1)]
    with pytest.raises(DefinitionError, match="timeMode is 'Never'"):
        OperatorHarness(Silence, key="id", timeMode="Never")


def test_arrow_and_keys_of_several_columns() -> None:
    class Highest(braided.Operator):
        highest: int = 0

        def onBatch(self, table: pa.Table) -> Iterator[Any]:
            self.highest = max(self.highest, pc.max(table["n"]).as_py())
            yield table.slice(0, 1)
            yield {"n": self.highest}

    harness = OperatorHarness(Highest, key=["a", "b"], input="a int, b string, n int")
    given = harness.process([(1, "x", 5), (2, "x", 9), (1, "x", 7)])
    assert given == [Row(a=1, b="x", n=5), Row(n=7), Row(a=2, b="x", n=9), Row(n=9)]
    assert harness.state(1, "x") == {"highest": 7}
    with pytest.raises(DefinitionError, match="a key is a, b"):
        harness.state(1)


def test_the_schema_of_rows_grows_with_them() -> None:
    class Count(braided.Operator):
        names: list[str] = []  # noqa: RUF012

        def onRow(self, row: Any) -> None:
            self.names = list(row.__fields__)

    harness = OperatorHarness(Count, key="id")
    harness.process([{"id": 1, "x": None}])
    harness.process([{"id": 1, "x": 2.5, "y": [1]}, {"id": 2}])
    assert harness.state(1) == {"names": ["id", "x", "y"]}
    with pytest.raises(DefinitionError, match="no column 'id'"):
        OperatorHarness(Count, key="id").process([{"x": 1}])
    with pytest.raises(DefinitionError, match="no column names"):
        OperatorHarness(Count, key="id").process([(1, 2)])


def test_lookups_are_opened_once_per_batch_and_closed() -> None:
    calls: list[str] = []

    class Lookup(braided.Operator):
        def onOpen(self) -> dict[str, int]:
            calls.append("open")
            return {"a": 1}

        def onRow(self, row: Any) -> Iterator[Any]:
            yield {"known": self.opened[row.id]}

        def onClose(self) -> None:
            calls.append("close")

    harness = OperatorHarness(Lookup, key="id")
    assert harness.process([{"id": "a"}, {"id": "a"}]) == [Row(known=1), Row(known=1)]
    with pytest.raises(OperatorError, match="KeyError"):
        harness.process([{"id": "b"}])
    assert calls == ["open", "close"] * 2


def test_a_restart_shows_how_state_goes_on_with_another_class() -> None:
    class Sum(braided.Operator):
        total: int = 0

        def onRow(self, row: Any) -> None:
            self.total += row.n

    class Mean(braided.Operator):
        sum: float = braided.renamed("total", default=0.0)
        count: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.count += 1
            yield {"mean": (self.sum + row.n) / self.count}

    class Text(braided.Operator):
        total: str = ""

        def onRow(self, row: Any) -> None: ...

    harness = OperatorHarness(Sum, key="id")
    harness.process([{"id": 1, "n": 3}])
    with pytest.raises(CheckpointMismatchError, match="int became str"):
        harness.restart(Text)
    harness.restart(Mean)
    assert harness.state(1) == {"sum": 3.0, "count": 0}
    assert harness.process([{"id": 1, "n": 1}]) == [Row(mean=4.0)]
    for _ in range(40):  # past full manifests
        harness.process([{"id": 1, "n": 1}])
    assert harness.state(1) == {"sum": 3.0, "count": 41}


def test_keys_that_are_too_long_for_a_place_of_their_own() -> None:
    harness = OperatorHarness(Threshold, key="id")
    long = "x" * 1000
    harness.process(rows((long, 20.0)))
    assert harness.state(long) == {"stored": 20.0, "last": Seen(20.0, datetime(2024, 1, 1))}
    assert harness.keys() == [Row(id=long)]


def test_schemas_are_read_without_spark() -> None:
    assert parse_schema("a int NOT NULL, `b ``c` decimal(10, 2), m map<string,array<bigint>>") == (
        StructType(
            [
                StructField("a", IntegerType(), False),
                StructField("b `c", DecimalType(10, 2)),
                StructField("m", MapType(StringType(), ArrayType(LongType()))),
            ]
        )
    )
    nested = parse_schema("s struct<x: int, y: struct<z string>>, d decimal")
    assert nested.simpleString() == "struct<s:struct<x:int,y:struct<z:string>>,d:decimal(10,0)>"
    for wrong in ("a", "a nothing", "a array<int", "a int b int", "a int,", "!"):
        with pytest.raises(DefinitionError, match="is not understood"):
            parse_schema(wrong)


def test_decimals_and_nested_values_come_as_they_would_live() -> None:
    class Price(braided.Operator):
        best: Decimal = Decimal(0)

        def onRow(self, row: Any) -> Iterator[Any]:
            self.best = max(self.best, *row.offers)
            yield {"best": self.best}

    harness = OperatorHarness(
        Price, key="id", input="id int, offers array<decimal(10,2)>", schema="best decimal(10,2)"
    )
    assert harness.process([(1, [Decimal("1.50"), Decimal("2.25")])]) == [Row(best=Decimal("2.25"))]


class Visits(braided.ColumnOperator):
    gap: braided.Param[timedelta] = timedelta(minutes=30)
    clicks: pa.int64() = 0
    pages: pa.list_(pa.string()) = []  # noqa: RUF012

    def onRows(self, state: pa.Table, rows: pa.Table, index: Any) -> Any:
        clicks = state["clicks"].to_numpy() + np.bincount(index)
        pages = state["pages"].to_pylist()
        for key, page in zip(index, rows["page"].to_pylist(), strict=True):
            pages[key] = [*pages[key], page]
        due = np.full(len(clicks), self.batchTime + self.gap)
        return {"clicks": clicks, "pages": pages, "due": due}

    def onDue(self, state: pa.Table, due: pa.ChunkedArray) -> Any:
        gone = {"user": self.keys["user"], "clicks": state["clicks"]}
        return {"remove": np.ones(len(due), bool)}, gone


class LongVisits(Visits):
    clicks: pa.int64() = braided.renamed("hits", default=0)
    since: pa.string() = "before"


def test_columnar_operators_have_state_times_and_new_versions() -> None:
    harness = OperatorHarness(Visits, key="user", schema="user string, clicks long", now=NOON)
    rows = [{"user": "u", "page": "/"}, {"user": "v", "page": "/"}, {"user": "u", "page": "/a"}]
    assert harness.process(rows) == []
    assert harness.state("u") == {"clicks": 2, "pages": ["/", "/a"]}
    assert harness.timers("u") == [NOON + timedelta(minutes=30)]
    assert sorted(key.user for key in set(harness.keys())) == ["u", "v"]
    harness.restart(LongVisits)
    harness.advanceTime(timedelta(minutes=20))
    assert harness.process([{"user": "v", "page": "/b"}]) == []
    assert harness.state("v") == {"clicks": 2, "pages": ["/", "/b"], "since": "before"}
    assert harness.advanceTime(timedelta(minutes=10)) == [Row(user="u", clicks=2)]
    assert harness.state("u") is None and harness.timers("u") == []
    with pytest.raises(CheckpointMismatchError, match="none of the fields"):

        class Other(braided.ColumnOperator):
            other: pa.int64() = 0

            def onRows(self, state: Any, rows: Any, index: Any) -> None:
                """Nothing."""

        harness.restart(Other)
    with pytest.raises(DefinitionError, match="many rows as a whole"):
        OperatorHarness(Visits, key="user", onError="divert")


def test_an_error_of_a_columnar_operator_leaves_everything_as_it_was() -> None:
    class Fails(braided.ColumnOperator):
        n: pa.int64() = 0

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            if -1 in rows["v"].to_pylist():
                return {"n": ["one"] * len(state)}
            return {"n": state["n"].to_numpy() + np.bincount(index)}

    harness = OperatorHarness(Fails, key="k")
    harness.process([{"k": "a", "v": 1}])
    with pytest.raises(StateValueError, match=r"'Fails'.*'n'.*int64") as caught:
        harness.process([{"k": "a", "v": -1}])
    _check_located(caught.value, "key:   Row(k='a')", "'v': -1", "return {")
    assert harness.state("a") == {"n": 1}

"""Rows in and rows out: the values Spark gives, and output that must fit its schema."""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from braided.errors import OutputSchemaError, UnsupportedError
from braided.spark.arrow_types import to_arrow_schema
from braided.tasks.output import OutputEncoder
from braided.tasks.rows import RowFactory


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def one(kind: DataType, nullable: bool = True) -> StructType:
    return StructType([StructField("value", kind, nullable)])


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


POINT = StructType([StructField("x", LongType()), StructField("at", TimestampType())])
moments = st.datetimes(dt.datetime(1902, 1, 1), dt.datetime(2200, 1, 1))
letters = st.text("abc\u00e9\u4e2d", max_size=5)
points = st.builds(lambda x, at: Row(x=x, at=at), st.none() | ints(64), st.none() | moments)

# A Spark type, and values of it as a user gives them out. Local times that exist only once.
KINDS: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), ints(8)),
    (ShortType(), ints(16)),
    (IntegerType(), ints(32)),
    (LongType(), ints(64)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), letters),
    (BinaryType(), st.binary(max_size=5)),
    (DecimalType(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (DateType(), st.dates()),
    (TimestampType(), moments),
    (TimestampNTZType(), st.datetimes()),
    (DayTimeIntervalType(), st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
    (ArrayType(LongType()), st.lists(st.none() | ints(64), max_size=3)),
    (ArrayType(StringType()), st.lists(letters, max_size=3)),
    (MapType(StringType(), DoubleType()), st.dictionaries(letters, st.floats(allow_nan=False))),
    (POINT, points),
]


@settings(deadline=None)
@given(st.data())
def test_what_goes_out_comes_in_again(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(KINDS))
    column = data.draw(st.lists(st.none() | values, max_size=6))
    schema = one(kind)
    batch = OutputEncoder(schema, "op").encode([(value,) for value in column])
    assert batch.schema.types == to_arrow_schema(schema).types
    rows = RowFactory(schema).rows(batch)
    assert [row.value for row in rows] == column
    assert [type(row.value) for row in rows] == [type(value) for value in column]


@settings(deadline=None)
@given(st.data())
def test_rows_hold_what_spark_itself_gives(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(KINDS))
    column = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    schema = one(kind)
    batch = OutputEncoder(schema, "op").encode([(value,) for value in column])
    expected = ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)
    assert RowFactory(schema).rows(batch) == expected


# --- rows -------------------------------------------------------------------------------------

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("value", DoubleType()),
        StructField("count", StringType()),
    ]
)
BATCH = pa.record_batch(
    [pa.array([1, None]), pa.array([0.5, math.nan]), pa.array(["a", None])],
    names=["id", "value", "count"],
)


def test_a_row_is_a_row_in_every_way() -> None:
    row, other = RowFactory(SCHEMA).rows(BATCH)
    assert isinstance(row, Row)
    assert (row.id, row.value, row["count"], row[0]) == (1, 0.5, "a", 1)
    assert other.id is None
    assert row == Row(id=1, value=0.5, count="a")
    assert row.asDict() == {"id": 1, "value": 0.5, "count": "a"}
    assert repr(row) == "Row(id=1, value=0.5, count='a')"
    assert "value" in row
    assert "other" not in row
    assert callable(row.count)  # a method of Row hides the column, as in Spark
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError):
        _ = row.missing
    with pytest.raises(Exception, match="READ_ONLY"):
        row.value = 1  # type: ignore[attr-defined]


def test_odd_column_names_are_kept() -> None:
    names = ["a b", "a", "a", "class", "__x"]
    schema = StructType([StructField(name, LongType()) for name in names])
    batch = pa.RecordBatch.from_arrays([pa.array([i]) for i in range(5)], names=names)
    row = RowFactory(schema).rows(batch)[0]
    assert (row["a b"], row.a, row["class"], row["__x"]) == (0, 1, 3, 4)
    assert tuple(row) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("kind", [YearMonthIntervalType(), CalendarIntervalType()])
def test_columns_without_a_python_value_are_refused(kind: DataType) -> None:
    with pytest.raises(UnsupportedError, match="'value'"):
        RowFactory(one(kind))
    with pytest.raises(UnsupportedError, match="'value'"):
        OutputEncoder(one(kind), "op")


def test_timestamps_are_local_times_also_when_clocks_change(zone: str) -> None:
    hour_us = 3600 * 1_000_000
    starts = [
        dt.datetime(2024, 3, 10, tzinfo=dt.UTC),  # New York: an hour is left out
        dt.datetime(2024, 11, 3, tzinfo=dt.UTC),  # and repeated
        dt.datetime(2024, 4, 6, tzinfo=dt.UTC),  # Lord Howe: half an hour is repeated
        dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
    ]
    us = [
        int(start.timestamp()) * 1_000_000 + step * 97_000_001
        for start in starts
        for step in range(1000)
    ]
    assert us[999] - us[0] > 24 * hour_us
    batch = pa.record_batch([pa.array([*us, None], pa.timestamp("us", "UTC"))], names=["value"])
    rows = RowFactory(one(TimestampType())).rows(batch)
    expected = [TimestampType().fromInternal(value) for value in [*us, None]]
    got = [row.value for row in rows]
    assert got == expected
    assert [v and v.fold for v in got] == [v and v.fold for v in expected]
    back = OutputEncoder(one(TimestampType()), "op").encode(rows)
    assert back.column(0).equals(batch.column(0))


# --- output -----------------------------------------------------------------------------------

ENCODER = OutputEncoder(
    StructType(
        [
            StructField("id", LongType(), nullable=False),
            StructField("name", StringType()),
            StructField("small", ByteType()),
        ]
    ),
    "matcher",
)


@pytest.mark.parametrize(
    "row",
    [
        (1, "a", 2),
        [1, "a", 2],
        {"name": "a", "small": 2, "id": 1},
        Row(small=2, name="a", id=1),
        Row(1, "a", 2),
        (np.int64(1), np.str_("a"), np.int8(2)),
    ],
    ids=str,
)
def test_rows_of_every_kind_are_taken(row: Any) -> None:
    assert ENCODER.encode([row]).to_pylist() == [{"id": 1, "name": "a", "small": 2}]
    assert ENCODER.encode([(1, "a", 2), row]).num_rows == 2


def test_no_rows_are_an_empty_batch_of_the_schema() -> None:
    assert ENCODER.encode([]).num_rows == 0
    assert ENCODER.encode([]).schema == ENCODER.arrow_schema


def test_a_name_left_out_is_null() -> None:
    assert ENCODER.encode([{"id": 1}]).to_pylist() == [{"id": 1, "name": None, "small": None}]


BAD_ROWS: list[tuple[Any, list[str]]] = [
    (("x", "a", 1), ["'id'", "bigint", "'x' of type str"]),
    ((1.0, "a", 1), ["'id'", "bigint", "1.0 of type float"]),
    ((True, "a", 1), ["'id'", "bigint", "True of type bool"]),
    ((Decimal(1), "a", 1), ["'id'", "Decimal"]),
    ((2**63, "a", 1), ["'id'", "bigint", "of type int"]),
    ((1, "a", 128), ["'small'", "tinyint", "128 of type int"]),
    ((1, 5, 1), ["'name'", "string", "5 of type int"]),
    ((1, b"a", 1), ["'name'", "string", "b'a' of type bytes"]),
    ((None, "a", 1), ["'id'", "null", "bigint"]),
    ({"name": "a"}, ["'id'", "null"]),
    ((1, "a"), ["row of 2 values", "struct<id:bigint,name:string,small:tinyint>"]),
    ((1, "a", 1, 2), ["row of 4 values"]),
    ({"id": 1, "nmae": "a"}, ["unknown column 'nmae'"]),
    (Row(id=1, name="a", small=1, more=1), ["unknown column 'more'"]),
    (5, ["5 of type int", "not a row"]),
    ("abc", ["'abc' of type str", "not a row"]),
    (None, ["None", "not a row"]),
]


@pytest.mark.parametrize(("row", "says"), BAD_ROWS, ids=str)
def test_a_row_that_does_not_fit_is_refused_by_name(row: Any, says: list[str]) -> None:
    with pytest.raises(OutputSchemaError) as caught:
        ENCODER.encode([(1, "a", 1), row, (2, "b", 2)])
    for part in ["'matcher'", *says]:
        assert part in str(caught.value)


BAD_VALUES: list[tuple[DataType, Any]] = [
    (TimestampType(), 5),
    (TimestampType(), "2020-01-01"),
    (TimestampType(), dt.date(2020, 1, 1)),
    (TimestampNTZType(), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (DateType(), 5),
    (DateType(), dt.datetime(2020, 1, 1)),
    (DoubleType(), "1"),
    (DoubleType(), True),
    (BooleanType(), 1),
    (BinaryType(), "a"),
    (DecimalType(4, 2), 1.5),
    (DecimalType(4, 2), Decimal("123.45")),
    (DayTimeIntervalType(), 5),
    (ArrayType(LongType()), 5),
    (ArrayType(LongType()), ["a"]),
    (ArrayType(LongType(), containsNull=False), [None]),
    (MapType(StringType(), LongType()), [1]),
    (POINT, (1,)),
    (POINT, {"x": "a"}),
]


@pytest.mark.parametrize(("kind", "value"), BAD_VALUES, ids=str)
def test_a_value_of_another_type_is_refused(kind: DataType, value: Any) -> None:
    with pytest.raises(OutputSchemaError, match=r"'op', output column 'value'") as caught:
        OutputEncoder(one(kind), "op").encode([(None,), (value,)])
    assert kind.simpleString() in str(caught.value)
    assert f"of type {type(value).__name__}" in str(caught.value)


def test_ints_are_fine_in_a_double_column() -> None:
    batch = OutputEncoder(one(DoubleType()), "op").encode([(1,), (0.5,), (2**60 + 1,), (None,)])
    assert batch.column(0).to_pylist() == [1.0, 0.5, float(2**60), None]


def test_input_rows_can_be_given_out_again() -> None:
    rows = RowFactory(SCHEMA).rows(BATCH)
    encoder = OutputEncoder(SCHEMA, "op")
    assert encoder.encode(rows).column(0).equals(BATCH.column(0))
    turned = StructType(SCHEMA.fields[::-1])
    assert OutputEncoder(turned, "op").encode(rows).column(2).equals(BATCH.column(0))


# --- Arrow output -----------------------------------------------------------------------------


def test_tables_are_matched_by_name_and_cast() -> None:
    table = pa.table(
        {"small": pa.array([1], pa.int64()), "name": ["a"], "id": pa.array([7], pa.int32())}
    )
    (batch,) = ENCODER.encode_arrow(table)
    assert batch.schema == ENCODER.arrow_schema
    assert batch.to_pylist() == [{"id": 7, "name": "a", "small": 1}]
    assert ENCODER.encode_arrow(batch)[0].equals(batch)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"id": [1], "name": ["a"]}), "columns"),
        (pa.table({"id": [1], "name": ["a"], "small": [300]}), "'small'"),
        (pa.table({"id": ["x"], "name": ["a"], "small": [3]}), "'id'"),
        (pa.table({"id": pa.array([None], pa.int64()), "name": ["a"], "small": [3]}), "null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: pa.Table, says: str) -> None:
    with pytest.raises(OutputSchemaError, match=says):
        ENCODER.encode_arrow(table)


def test_a_detached_row_is_not_changed_later() -> None:
    reused: dict[str, Any] = {"id": 1}
    kept = ENCODER.detach(reused)
    reused["id"] = 2
    assert kept == {"id": 1}
    row = [1, "a", 1]
    kept = ENCODER.detach(row)
    row[0] = 2
    assert tuple(kept) == (1, "a", 1)
    window = [1]
    encoder = OutputEncoder(one(ArrayType(LongType())), "op")
    kept = encoder.detach((window,))
    window.append(2)
    assert encoder.encode([kept]).column(0).to_pylist() == [[1]]
    same = (1, "a", 1)
    assert ENCODER.detach(same) is same

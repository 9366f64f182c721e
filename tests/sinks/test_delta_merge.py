"""Rows that replace others in a Delta table: which files are read, by the type of the key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braided.sinks.delta_log import DeltaLog
from braided.sinks.table_log import BatchRows
from braided.store.durable.local_store import LocalStore
from braided.store.durable.location import Location

MOMENTS = [
    dt.datetime(1, 1, 1, 0, 0, 0, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2024, 2, 29, 12, 0, 0, 123_456),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
TEXTS = ["", "it's a \\ and a \n and a \x00", 'q"`$1 {x} --', "z" * 64]


def integers(bits: int) -> list[int]:
    return [-(2 ** (bits - 1)), -1, 3, 2 ** (bits - 1) - 1]


Kind = tuple[DataType, pa.DataType, list[Any]]
TOLD: dict[str, Kind] = {
    "byte": (ByteType(), pa.int8(), integers(8)),
    "short": (ShortType(), pa.int16(), integers(16)),
    "int": (IntegerType(), pa.int32(), integers(32)),
    "long": (LongType(), pa.int64(), integers(64)),
    "string": (StringType(), pa.string(), TEXTS),
    "date": (DateType(), pa.date32(), [each.date() for each in MOMENTS]),
    "timestamp": (
        TimestampType(),
        pa.timestamp("us", "UTC"),
        [each.replace(tzinfo=dt.UTC) for each in MOMENTS[1:3]],
    ),
    "timestamp_ntz": (TimestampNTZType(), pa.timestamp("us"), MOMENTS[1:3]),
}
"""Types of which the ends of a column rule files out, and keys of which each is in another file."""

OTHERS: dict[str, Kind] = {
    "any moment": (TimestampNTZType(), pa.timestamp("us"), MOMENTS),
    "long text": (StringType(), pa.string(), ["a" * 300, "b" * 300]),
    "decimal": (
        DecimalType(38, 2),
        pa.decimal128(38, 2),
        [Decimal("-1.25"), Decimal("9" * 36 + ".99"), Decimal("9" * 36 + ".98")],
    ),
    "double": (DoubleType(), pa.float64(), [0.1, -0.0, float("inf"), float("nan")]),
    "float": (FloatType(), pa.float32(), [0.5, -0.0, float("-inf"), float("nan")]),
    "binary": (BinaryType(), pa.binary(), [b"", b"\xff\x00"]),
    "boolean": (BooleanType(), pa.bool_(), [True, False]),
}


class Table:
    """A table of keys of one type, and a number for each."""

    def __init__(self, home: Path, kind: Kind, *partition_by: str) -> None:
        self.path, (spark, arrow, _) = home / "t", kind
        self.columns = StructType([StructField("k", spark), StructField("n", LongType())])
        self.arrow = pa.schema([("k", arrow), ("n", pa.int64())])
        self.log = DeltaLog(Location.of(str(self.path)), {})
        self.log.create(self.columns, partition_by)
        self.batches = 0

    def put(self, keys: list[Any], n: int) -> int:
        """Gives keys a number; says how many files were read for that."""
        file = f"braided-0/{self.batches}-x/part.parquet"
        (self.path / file).parent.mkdir(parents=True)
        table = pa.Table.from_pylist([{"k": key, "n": n} for key in keys], self.arrow)
        pq.write_table(table, self.path / file)
        files = [{"path": file}]
        store = LocalStore(str(self.path))
        assert self.log.publish(BatchRows(self.batches, files, self.columns, ("k",), store), "us")
        self.batches += 1
        [entry] = DeltaTable(str(self.path)).history(1)
        read: int = entry["operationMetrics"]["num_target_files_scanned"]
        return read

    def rows(self) -> dict[str, int]:
        found = self._rows()
        assert len({repr(row["k"]) for row in found}) == len(found)
        return {repr(row["k"]): row["n"] for row in found}

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        return found


@pytest.mark.parametrize("name", [*TOLD, *OTHERS])
def test_a_key_is_looked_for_in_the_files_that_may_have_it(tmp_path: Path, name: str) -> None:
    kind = {**TOLD, **OTHERS}[name]
    table, keys = Table(tmp_path, kind), [*kind[2], None]
    for n, key in enumerate(keys):
        table.put([key], n)
    expected = {repr(key): n for n, key in enumerate(keys)}
    before = table.rows()
    assert len(before) == len(expected)
    for n, key in enumerate(keys, 100):
        read = table.put([key], n)
        assert read == 1 or name not in TOLD, key
    assert table.numbers() == list(range(100, 100 + len(keys)))
    # Several keys, and null with others.
    assert table.put(keys, 200) == len(keys)
    assert table.rows() == dict.fromkeys(before, 200)


@pytest.mark.parametrize("name", [*TOLD, "boolean"])
def test_partitions_that_have_none_of_the_keys_are_left_alone(tmp_path: Path, name: str) -> None:
    kind = {**TOLD, **OTHERS}[name]
    table, keys = Table(tmp_path, kind, "k"), kind[2]
    table.put([*keys, None], 0)
    ends = [keys[0], keys[-1]]  # between which the others are
    read = table.put(ends, 1)
    assert table.log.partition_by == ["k"]
    if name in TOLD:
        # Of an empty text it is not known whether a partition has it or null.
        assert read == len(ends) + ("" in ends)
    assert table.numbers() == [0] * (len(keys) - 1) + [1] * 2


def test_of_many_partitions_the_ends_are_told(tmp_path: Path) -> None:
    kind = TOLD["long"]
    table = Table(tmp_path, kind, "k")
    table.put([*range(150), 1000], 0)
    assert table.put(list(range(20, 140)), 1) == 120
    assert table.numbers() == [0] * 31 + [1] * 120

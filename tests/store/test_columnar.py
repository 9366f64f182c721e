"""Records of columnar operators: what is written is read, also by later versions of the fields."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorDefinitionError,
    OperatorError,
    StateValueError,
)
from braided.store.columnar.arrow_types import described, refusal, type_of
from braided.store.columnar.fields import ColumnCodec, ColumnField, StoredRecords, evolve
from braided.store.columnar.packing import _ends
from support.cases import cases

_DAY = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
_TIME = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
_int32 = st.integers(-(2**31), 2**31 - 1)

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): _int32,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): _DAY,
    pa.timestamp("us"): _TIME,
    pa.timestamp("us", "UTC"): _TIME.map(lambda time: time.replace(tzinfo=dt.UTC)),
    pa.duration("us"): st.timedeltas(dt.timedelta(-999), dt.timedelta(999)),
    pa.decimal128(9, 2): st.decimals(-99999, 99999, places=2),
    pa.list_(pa.float32(), 3): st.lists(
        st.none() | st.floats(width=32, allow_nan=False), min_size=3, max_size=3
    ),
    pa.list_(pa.int16(), 9): st.lists(st.none() | st.integers(-5, 5), min_size=9, max_size=9),
    pa.list_(pa.int32()): st.lists(st.none() | _int32, max_size=11),
    pa.list_(pa.date32()): st.lists(st.none() | _DAY, max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=3), max_size=3),
    pa.list_(pa.list_(pa.int64())): st.lists(
        st.none() | st.lists(st.integers(0, 9), max_size=2), max_size=3
    ),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "b": st.none() | st.lists(st.text(max_size=2))}
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[Any]]]:
    """Types of some fields, and rows of values."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=10))
    rows = draw(
        st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in kinds)), min_size=1, max_size=9)
    )
    return kinds, [list(row) for row in rows]


def codec_of(kinds: list[pa.DataType], **more: Any) -> ColumnCodec:
    fields = [ColumnField(f"f{i}", kind, None) for i, kind in enumerate(kinds)]
    return ColumnCodec("Op", fields, **more)


def arrays_of(kinds: list[pa.DataType], rows: list[list[Any]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]


@settings(max_examples=cases(300))
@given(tables(), st.data())
def test_what_is_written_is_read_and_equal_states_have_equal_records(
    table: tuple[list[pa.DataType], list[list[Any]]], data: st.DataObject
) -> None:
    kinds, rows = table
    codec, arrays = codec_of(kinds), arrays_of(kinds, rows)
    # As slices of something larger, which is how columns of a chunk come.
    cut = data.draw(st.integers(0, len(rows) - 1))
    arrays, rows = [array.slice(cut) for array in arrays], rows[cut:]
    packed = codec.write(arrays, len(rows))
    records = packed.tolist()
    found, unchanged = codec.read(records)
    for array, column in zip(arrays, found, strict=True):
        column.validate(full=True)
        assert column.equals(array)
    assert not packed.differs(unchanged).any()
    assert codec.write(found, len(rows)).tolist() == records
    # One by one they are the same as all at once.
    for i, record in enumerate(records):
        assert codec.write([array.slice(i, 1) for array in arrays], 1).tolist() == [record]
    others = codec.write([array.take(pa.array([0] * len(rows))) for array in arrays], len(rows))
    assert packed.differs(others).tolist() == [record != records[0] for record in records]
    mask = packed.differs(others)
    assert packed.chosen(mask) == [r for r, each in zip(records, mask, strict=True) if each]


@given(tables())
def test_what_a_checkpoint_says_is_enough_to_read_records(
    table: tuple[list[pa.DataType], list[list[Any]]],
) -> None:
    kinds, rows = table
    codec, arrays = codec_of(kinds), arrays_of(kinds, rows)
    stored = StoredRecords("Op", [codec.describe()])
    assert stored.schema.types == kinds
    for array, column in zip(
        arrays, stored.decode(codec.write(arrays, len(rows)).tolist()), strict=True
    ):
        assert column.equals(array)


def test_nan_and_signed_zeros_are_kept_as_they_are() -> None:
    codec = codec_of([pa.float64()])
    records = codec.write([pa.array([math.nan, -0.0, 0.0, None])], 4).tolist()
    assert len(set(records)) == 4
    [column], _ = codec.read(records)
    assert math.isnan(column[0].as_py()) and str(column[1]) == "-0.0" and not column[3].is_valid


def test_a_key_without_a_record_has_defaults() -> None:
    fields = [
        ColumnField("n", pa.int64(), 7),
        ColumnField("names", pa.list_(pa.string()), ["a"]),
        ColumnField("weights", pa.list_(pa.float32(), 2), [0.5, 1]),
    ]
    codec = ColumnCodec("Op", fields)
    columns, unchanged = codec.read([None, codec.fresh])
    assert [column.to_pylist() for column in columns] == [[7, 7], [["a"]] * 2, [[0.5, 1.0]] * 2]
    assert unchanged.tolist() == [codec.fresh] * 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.uint8(), "signed"),
        (pa.float16(), "float32"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("us", "Europe/Berlin"), "UTC"),
        (pa.large_string(), "pa.string"),
        (pa.map_(pa.string(), pa.int64()), "structs"),
        (pa.list_(pa.list_(pa.int8(), 2)), "without a size"),
        (pa.list_(pa.string(), 2), "without a size"),
        (pa.list_(pa.float32(), 0), "nothing"),
        (pa.struct([]), "nothing"),
        (pa.dictionary(pa.int32(), pa.string()), "Spark"),
    ],
)
def test_types_that_spark_has_not_are_refused(kind: pa.DataType, said: str) -> None:
    assert said in (refusal(kind) or "")
    with pytest.raises(OperatorDefinitionError, match=r"Op\.x"):
        ColumnCodec("Op", [ColumnField("x", kind, None)])


@pytest.mark.parametrize("kind", VALUES)
def test_descriptions_lead_back_to_types(kind: pa.DataType) -> None:
    assert type_of(described(kind)) == kind


# --- changes of fields ------------------------------------------------------------------------


def fields(**kinds: Any) -> list[ColumnField]:
    return [
        ColumnField(name, *(kind if isinstance(kind, tuple) else (kind, None)))
        for name, kind in kinds.items()
    ]


def changed(
    before: list[ColumnField], after: list[ColumnField], upgrade: Any = None
) -> tuple[ColumnCodec, ColumnCodec]:
    """The codec of then, and that of now on the same checkpoint."""
    old = ColumnCodec("Op", before)
    now = ColumnCodec("Op", after, upgrade)
    return old, now.at(evolve(now, "Op", [old.describe()]))


def test_fields_can_be_added_dropped_moved_renamed_and_widened() -> None:
    before = fields(gone=pa.string(), n=pa.int32(), x=pa.float32(), d=pa.decimal128(5, 2))
    after = [
        *fields(d=pa.decimal128(9, 3), new=(pa.list_(pa.int64()), [3])),
        ColumnField("count", pa.int64(), 0, earlier=("n",)),
        *fields(x=pa.float64()),
    ]
    old, now = changed(before, after)
    was = old.write(
        [
            pa.array(["a", None]),
            pa.array([1, None], pa.int32()),
            pa.array([0.5, None], pa.float32()),
            pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)),
        ],
        2,
    ).tolist()
    columns, unchanged = now.read([was[0], None, was[1]])
    assert [column.to_pylist() for column in columns] == [
        [Decimal("1.250"), None, None],
        [[3], [3], [3]],
        [1, 0, None],
        [0.5, None, None],
    ]
    assert [record[0] for record in unchanged.tolist()] == [2, 2, 2]
    # Whoever looks without the class sees nulls for what was added.
    shown = StoredRecords("Op", evolve(now, "Op", [old.describe()]))
    assert shown.decode([was[0]])[1].to_pylist() == [None]


def test_changes_that_would_lose_values_are_refused() -> None:
    for before, after, said in [
        (fields(n=pa.int64()), fields(n=pa.int32()), "n: int64 became int32"),
        (fields(n=pa.int64()), fields(n=pa.float64()), "n: int64 became double"),
        (fields(w=pa.list_(pa.int8(), 2)), fields(w=pa.list_(pa.int8(), 3)), "w: fixed"),
        (fields(a=pa.int8()), fields(b=pa.int8()), "as if it were another"),
    ]:
        with pytest.raises(CheckpointMismatchError, match=said):
            changed(before, after)


def test_upgrade_is_given_old_columns_and_returns_new_ones() -> None:
    def upgrade(old: pa.Table) -> Any:
        assert old.column_names == ["cents", "name"]
        return {"euros": [cents / 100 for cents in old["cents"].to_pylist()]}

    before = fields(cents=pa.int64(), name=pa.string())
    old, now = changed(before, fields(name=pa.string(), euros=pa.float64()), upgrade)
    records = old.write([pa.array([250, 100]), pa.array(["a", "b"])], 2).tolist()
    columns, _ = now.read(records)
    assert [column.to_pylist() for column in columns] == [["a", "b"], [2.5, 1.0]]


@pytest.mark.parametrize(
    ("upgrade", "error", "said"),
    [
        (lambda old: {"euros": ["x"]}, StateValueError, "does not fit the field's type double"),
        (lambda old: {"euros": [1.0, 2.0]}, StateValueError, "a row for each of the 1"),
        (lambda old: {"other": [1.0]}, StateValueError, "columns of the class's fields"),
        (lambda old: old["nothing"], OperatorError, "upgrade raised KeyError"),
    ],
)
def test_what_upgrade_does_wrong_is_told(upgrade: Any, error: Any, said: str) -> None:
    old, now = changed(fields(cents=pa.int64()), fields(euros=pa.float64()), upgrade)
    records = old.write([pa.array([250])], 1).tolist()
    with pytest.raises(error, match=said):
        now.read(records)


def test_records_that_are_damaged_or_from_the_future_are_not_misread() -> None:
    for kinds in ([pa.int64()], [pa.int64(), pa.string()]):
        codec = codec_of(kinds)
        values = [pa.array([5]), pa.array(["abc"])][: len(kinds)]
        [record] = codec.write(values, 1).tolist()
        for wrong in (record[:-1], record + b"x", record[:1]):
            with pytest.raises(CheckpointMismatchError, match="does not fit its fields"):
                codec.read([record, wrong])
        with pytest.raises(CheckpointVersionError, match="version 9"):
            codec.read([b"\x09" + record[1:]])


def test_columns_that_arrow_can_not_hold_are_refused_before_their_offsets_wrap() -> None:
    assert _ends(np.array([3, 0, 4])).tolist() == [0, 3, 3, 7]
    assert _ends(np.array([2**31 - 1]))[-1] == 2**31 - 1
    with pytest.raises(StateValueError, match="2147483652 bytes or items"):
        _ends(np.array([2**31 - 1, 5]))

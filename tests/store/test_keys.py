"""Key bytes: one per key under Spark's equality, and readable again."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided.errors import UnsupportedError
from braided.store.slots.keys import (
    SUFFIX_BYTES_MAX,
    KeyCodec,
    record_key,
    suffix,
    timer_bound,
    timer_key,
    timer_ms,
    timer_parts,
    unwrap,
    wrap,
)

# The first text that Hypothesis draws builds its table of characters, which takes seconds.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ODD_FLOATS = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5]
floats64 = st.sampled_from(ODD_FLOATS) | st.floats()
floats32 = st.sampled_from(ODD_FLOATS) | st.floats(width=32)
cents = st.decimals(Decimal("-1e30"), Decimal("1e30"), places=2, allow_nan=False)
text = st.text(st.characters(codec="utf-8"), max_size=6)

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), floats32),
    (pa.float64(), floats64),
    (pa.bool_(), st.booleans()),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.binary(), st.binary(max_size=6)),
    (pa.large_binary(), st.binary(max_size=6)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.time64("ns"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6))),
    (pa.decimal128(38, 2), cents),
    (pa.null(), st.none()),
]


def _nest(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    def lists(entry: tuple[pa.DataType, st.SearchStrategy[Any]]) -> Any:
        kind, values = entry
        return pa.list_(kind), st.lists(st.none() | values, max_size=3)

    def structs(entries: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> Any:
        fields = [(f"f{i}", kind) for i, (kind, _) in enumerate(entries)]
        values = {f"f{i}": st.none() | v for i, (_, v) in enumerate(entries)}
        return pa.struct(fields), st.fixed_dictionaries(values)

    return inner.map(lists) | st.lists(inner, min_size=1, max_size=3).map(structs)


kinds = st.recursive(st.sampled_from(SCALARS), _nest, max_leaves=4)


@st.composite
def key_columns(draw: st.DrawFn) -> list[pa.Array]:
    entries = draw(st.lists(kinds, min_size=1, max_size=3))
    rows = draw(st.integers(1, 8))
    columns = []
    for kind, values in entries:
        few = draw(st.lists(st.none() | values, min_size=1, max_size=3))  # so that keys repeat
        chosen = st.lists(st.sampled_from(few), min_size=rows + 2, max_size=rows + 2)
        columns.append(pa.array(draw(chosen), kind))
    skip = draw(st.integers(0, 2))
    return [column.slice(skip, rows) for column in columns]  # slices are where offsets go wrong


def _spark_key(value: Any) -> Any:
    """An oracle for Spark's equality: hashable, and equal when Spark says so."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", value + 0.0)
    if isinstance(value, dict):
        return ("struct", *(_spark_key(v) for v in value.values()))
    if isinstance(value, list):
        return ("list", *(_spark_key(v) for v in value))
    return (type(value).__name__, value)


def _codec(columns: list[pa.Array]) -> KeyCodec:
    return KeyCodec(pa.schema([(f"c{i}", column.type) for i, column in enumerate(columns)]))


def _oracle(columns: list[pa.Array]) -> list[Any]:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [tuple(map(_spark_key, row)) for row in rows]


@unhurried
@given(key_columns())
def test_bytes_are_equal_exactly_when_spark_calls_the_keys_equal(columns: list[pa.Array]) -> None:
    encoded, keys = _codec(columns).encode_batch(columns), _oracle(columns)
    for i, one in enumerate(keys):
        for j, other in enumerate(keys):
            assert (encoded[i] == encoded[j]) == (one == other)


@unhurried
@given(key_columns())
def test_keys_decode_to_the_columns_they_came_from(columns: list[pa.Array]) -> None:
    codec = _codec(columns)
    encoded = codec.encode_batch(columns)
    decoded = codec.decode_batch(encoded)
    for back, column in zip(decoded, columns, strict=True):
        back.validate(full=True)
        assert back.type == column.type
    assert _oracle(decoded) == _oracle(columns)
    assert codec.encode_batch(decoded) == encoded
    assert all(len(codec.decode(key)) == len(columns) for key in encoded)


@unhurried
@given(key_columns())
def test_changes_mark_where_a_new_key_starts(columns: list[pa.Array]) -> None:
    keys = _oracle(columns)
    expected = [True] + [keys[i] != keys[i - 1] for i in range(1, len(keys))]
    assert _codec(columns).changes(columns).tolist() == expected


def test_every_nan_is_one_key() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_1234))[0]
    column = pa.array(np.array([math.nan, odd, -math.nan]))
    codec = _codec([column])
    assert len(set(codec.encode_batch([column]))) == 1
    assert codec.changes([column]).tolist() == [True, False, False]


def test_no_rows_have_no_keys() -> None:
    for kind, _ in SCALARS:
        column = pa.array([], kind)
        codec = _codec([column])
        assert codec.encode_batch([column]) == []
        assert codec.changes([column]).tolist() == []
        assert codec.decode_batch([])[0].type == kind


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("m", pa.map_(pa.string(), pa.int64()))]),
        pa.list_(pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_map_keys_are_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedError, match=r"'attributes'.*map"):
        KeyCodec(pa.schema([("attributes", kind)]))


def test_types_without_a_python_value_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'i'"):
        KeyCodec(pa.schema([("i", pa.month_day_nano_interval())]))


# --- suffixes ---------------------------------------------------------------------------------

lengths = st.sampled_from([0, 1, 32, 470, 471, 472, 478, 479, 480, 481, 5000])
keys_of_any_length = st.builds(lambda n, fill: bytes([fill]) * n, lengths, st.integers(0, 255))
times = st.integers(-(2**63), 2**63 - 1)


@unhurried
@given(keys_of_any_length, st.binary())
def test_a_record_is_found_with_its_full_key(key: bytes, value: bytes) -> None:
    place, is_long = record_key(key)
    assert len(place) <= SUFFIX_BYTES_MAX
    assert (place, is_long) == suffix(b"k", key)
    stored = wrap(key, value) if is_long else value
    assert unwrap(place, stored) == (key, value)
    assert place[:1] == (b"K" if is_long else b"k")


@unhurried
@given(times, keys_of_any_length)
def test_a_timer_tells_its_time_and_full_key(ms: int, key: bytes) -> None:
    place, stored = timer_key(ms, key)
    assert len(place) <= SUFFIX_BYTES_MAX
    assert place[:1] == b"t"
    assert timer_ms(place) == ms
    assert timer_parts(place, stored) == (ms, key)


@unhurried
@given(times, keys_of_any_length, times, keys_of_any_length)
def test_timers_are_ordered_by_time(ms: int, key: bytes, later: int, other: bytes) -> None:
    if ms < later:
        assert timer_key(ms, key)[0] < timer_bound(later) <= timer_key(later, other)[0]


def test_long_keys_with_equal_starts_have_places_of_their_own() -> None:
    places = {record_key(b"x" * 1000 + bytes([i]))[0] for i in range(256)}
    assert len(places) == 256
    assert suffix(b"k", b"x" * 500, b"before")[0].startswith(b"Kbefore")

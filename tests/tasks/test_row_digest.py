"""The digest of rows: it tells rows apart, and nothing else."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.tasks.row_digest import RowDigest

ITEMS = pa.struct([("n", pa.int32()), ("s", pa.string())])
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-3, 3)),
    (pa.int8(), st.integers(-3, 3)),
    (pa.float64(), st.sampled_from([0.0, 1.5, float("inf")])),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    (pa.string(), st.text("aä", max_size=3)),
    (pa.large_binary(), st.binary(max_size=3)),
    (pa.decimal128(30, 2), st.sampled_from([Decimal("1.50"), Decimal("-99999999999.00")])),
    (pa.timestamp("us", "UTC"), st.just(dt.datetime(2024, 2, 29, tzinfo=dt.UTC))),
    (pa.date32(), st.just(dt.date(2024, 2, 29))),
    (pa.list_(pa.list_(pa.int32())), st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2)),
    (ITEMS, st.fixed_dictionaries({"n": st.integers(0, 1), "s": st.text("ab", max_size=1)})),
    (
        pa.map_(pa.string(), ITEMS),
        st.lists(st.tuples(st.text("ab", max_size=1), st.just({"n": 1, "s": None})), max_size=2),
    ),
]


def digest(*chunks: pa.RecordBatch) -> str:
    made = RowDigest()
    for chunk in chunks:
        made.add(chunk)
    return made.hexdigest()


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda value: str(value)[:30])
def test_slices_are_equal_exactly_when_their_rows_are(
    kind: pa.DataType, values: st.SearchStrategy[Any]
) -> None:
    @given(st.lists(st.none() | values, min_size=4, max_size=9), st.integers(0, 3), st.data())
    def check(items: list[Any], size: int, data: st.DataObject) -> None:
        whole = pa.record_batch({"a": pa.array(items, kind)})
        begin, other = (data.draw(st.integers(0, len(items) - size)) for _ in range(2))
        part, alike = whole.slice(begin, size), whole.slice(other, size)
        assert digest(part) == digest(pa.record_batch({"a": pa.array(items, kind)[begin:][:size]}))
        assert digest(part) == digest(pa.record_batch({"a": pa.array(part["a"].to_pylist(), kind)}))
        assert (digest(part) == digest(alike)) == (part["a"].to_pylist() == alike["a"].to_pylist())

    check()


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda value: str(value)[:30])
def test_chunks_do_not_count(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    """An attempt that gives out the same rows in other chunks is no other one."""

    @given(st.lists(st.none() | values, max_size=20), st.lists(st.integers(0, 20), max_size=5))
    def check(items: list[Any], cuts: list[int]) -> None:
        whole = pa.record_batch({"a": pa.array(items, kind), "b": list(range(len(items)))})
        bounds = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
        parts = [whole.slice(a, b - a) for a, b in pairwise(bounds)]
        alone = [
            pa.record_batch({"a": pa.array(p["a"].to_pylist(), kind), "b": p["b"]}) for p in parts
        ]
        assert digest(*parts) == digest(*alone) == digest(whole)
        if len(items) > 1:
            turned = whole.take(pa.array([*range(1, len(items)), 0]))
            assert digest(turned) != digest(whole)
            assert digest(whole.slice(1)) != digest(whole)

    check()


def test_what_lies_under_a_null_does_not_count() -> None:
    def under(value: Any, kind: pa.DataType) -> pa.RecordBatch:
        _, *data = pa.array([value, value], kind).buffers()
        missing = pa.array([1, None]).buffers()[0]
        return pa.record_batch({"a": pa.Array.from_buffers(kind, 2, [missing, *data])})

    for kind, one, other in ((pa.int32(), 1, 2), (pa.string(), "ab", "cd")):
        first, second = under(one, kind), under(other, kind)
        both = [pa.record_batch({"a": batch["a"][1:]}) for batch in (first, second)]
        assert digest(both[0]) == digest(both[1])
        assert digest(first) != digest(second)


def test_rows_are_told_from_columns_and_values_from_each_other() -> None:
    one, two = pa.array([1, 2]), pa.array([3, 4])
    rows = pa.record_batch({"a": one, "b": two})
    assert digest(rows) != digest(pa.record_batch({"a": two, "b": one}))
    texts = pa.record_batch({"a": ["ab", "c"]}), pa.record_batch({"a": ["a", "bc"]})
    assert digest(texts[0]) != digest(texts[1])

"""Merging partial results, against plain Python over all values at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braided.errors import UnsupportedError
from braided.store.aggregates.columns import Column, RecordCodec, field_of
from braided.store.aggregates.merge import ColumnGroup, Merger, SumOverflow
from support.cases import cases

Batches = list[list[Any]]


def merged(
    rule: str, kinds: list[pa.DataType], batches: list[tuple[Any, ...]], name: str = "x"
) -> tuple[Any, ...]:
    """The state of one key after these partial results, each through a record and back.

    A neighbour that is new in every batch goes along: keys are merged many at a time.
    """
    merger = Merger([ColumnGroup(rule, len(kinds), name)], kinds)
    codec = RecordCodec(merger.fields)
    record: bytes | None = None
    shown: tuple[Any, ...] = ()
    for partial in batches:
        rows = [partial, partial]
        arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
        # Columns of a chunk may start anywhere in their buffers.
        arrays = [pa.concat_arrays([a.slice(0, 1), a]).slice(1) for a in arrays]
        new = [f.read(array) for f, array in zip(merger.fields, arrays, strict=True)]
        columns = merger.merge(codec.decode([record, None]), new)
        record, fresh = codec.encode(columns)
        assert codec.decode([fresh])[0].valid.tolist() == new[0].valid[:1].tolist()
        again = codec.decode([record])
        shown = tuple(
            f.write(column)[0].as_py() for f, column in zip(merger.fields, again, strict=True)
        )
    return shown


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Batches]:
    return st.lists(st.lists(st.none() | values, max_size=4), min_size=1, max_size=5)


def known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def everything(batches: Batches) -> list[Any]:
    return known([value for batch in batches for value in batch])


@given(some(st.integers(-(2**40), 2**40)))
def test_sums_of_nothing_are_null_and_others_are_sums(batches: Batches) -> None:
    partials = [(sum(known(b)) if known(b) else None,) for b in batches]
    expected = sum(everything(batches)) if everything(batches) else None
    assert merged("add_checked", [pa.int64()], partials) == (expected,)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_sums_beyond_64_bits_are_refused_or_wrap(a: int, b: int) -> None:
    total = a + b
    wrapped = (total + 2**63) % 2**64 - 2**63
    assert merged("add", [pa.int64()], [(a,), (b,)]) == (wrapped,)
    if total == wrapped:
        assert merged("add_checked", [pa.int64()], [(a,), (b,)]) == (total,)
    else:
        with pytest.raises(SumOverflow, match=r"sum\(x\) does not fit into int64") as raised:
            merged("add_checked", [pa.int64()], [(a,), (b,)], "sum(x)")
        assert raised.value.row == 0


@given(
    st.integers(1, 38).flatmap(
        lambda p: st.tuples(
            st.just(p),
            st.lists(st.integers(1 - 10**p, 10**p - 1), min_size=2, max_size=4),
        )
    )
)
def test_sums_of_decimals_keep_to_their_precision(case: tuple[int, list[int]]) -> None:
    precision, numbers = case
    kind = pa.decimal128(precision, 0)
    partials = [(Decimal(n),) for n in numbers]
    total, fits = 0, True
    for n in numbers:
        total += n
        fits = fits and abs(total) < 10**precision
    if fits:
        assert merged("add_decimals_checked", [kind], partials) == (Decimal(total),)
    else:
        with pytest.raises(SumOverflow):
            merged("add_decimals_checked", [kind], partials)
    counted = [(*partial, 1) for partial in partials]
    kept = (Decimal(total) if fits else None, len(numbers))
    assert merged("add_decimals", [kind, pa.int64()], counted) == kept


def test_a_batch_whose_sum_of_decimals_overflowed_makes_the_sum_null_for_good() -> None:
    kinds = [pa.decimal128(5, 0), pa.int64()]
    batches = [(Decimal(1), 1), (None, 3), (Decimal(2), 1), (None, 0)]
    assert merged("add_decimals", kinds, batches[:1] + batches[3:]) == (Decimal(1), 1)
    assert merged("add_decimals", kinds, batches) == (None, 5)


MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
ORDERED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "int": (pa.int32(), st.integers(-5, 5), lambda v: v),
    "bool": (pa.bool_(), st.booleans(), lambda v: v),
    "double": (
        pa.float64(),
        st.sampled_from([-math.inf, -1.5, 0.0, 2.5, math.inf, math.nan]),
        lambda v: (math.isnan(v), 0.0 if math.isnan(v) else v),
    ),
    "text": (pa.string(), st.text("aß√\U0001f600", max_size=3), str.encode),
    "bytes": (pa.binary(), st.binary(max_size=2), lambda v: v),
    "decimal": (
        pa.decimal128(38, 2),
        st.integers(1 - 10**37, 10**37 - 1).map(lambda n: Decimal(n) / 1),
        lambda v: v,
    ),
    "date": (pa.date32(), st.dates(date(1960, 1, 1), date(2030, 1, 1)), lambda v: v),
    "time": (
        pa.timestamp("us", "UTC"),
        st.integers(-(10**6), 10**6).map(lambda s: MOMENT + timedelta(seconds=s)),
        lambda v: v,
    ),
    "list": (
        pa.list_(pa.int64()),
        st.lists(st.none() | st.integers(0, 3), max_size=3),
        lambda v: [(-1 if item is None else item) for item in v],
    ),
    "struct": (
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        st.builds(
            lambda a, b: {"a": a, "b": b},
            st.none() | st.sampled_from([1.0, math.nan]),
            st.sampled_from(["", "b"]),
        ),
        lambda v: (
            (0, 0) if v["a"] is None else (1, 2 if math.isnan(v["a"]) else 1),
            v["b"],
        ),
    ),
}


@pytest.mark.parametrize("kind", ORDERED)
@settings(max_examples=cases(40))
@given(data=st.data())
def test_least_and_greatest_are_in_sparks_order(kind: str, data: st.DataObject) -> None:
    arrow, values, rank = ORDERED[kind]
    if kind == "decimal":
        values = st.integers(-(10**20), 10**20).map(lambda n: Decimal(n).scaleb(-2))
    batches = data.draw(some(values))
    for rule, pick in (("min", min), ("max", max)):
        partials = [(pick(known(b), key=rank) if known(b) else None,) for b in batches]
        all_values = everything(batches)
        expected = pick(all_values, key=rank) if all_values else None
        found = merged(rule, [arrow], partials)[0]
        if expected is None:
            assert found is None
        else:
            assert rank(found) == rank(expected)


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 3)), max_size=6))
def test_by_an_order_the_last_of_equals_counts(pairs: list[tuple[int, int | None]]) -> None:
    kinds = [pa.int64(), pa.int64()]
    ranked = [pair for pair in pairs if pair[1] is not None]
    batches: list[tuple[Any, ...]] = [
        pair if pair[1] is not None else (None, None) for pair in pairs
    ]
    batches = batches or [(None, None)]
    for rule, pick in (("max_by", max), ("min_by", min)):
        expected: tuple[Any, ...] = (None, None)
        if ranked:
            best = pick(pair[1] for pair in ranked)
            expected = [pair for pair in ranked if pair[1] == best][-1]
        assert merged(rule, kinds, batches) == expected


@given(st.lists(st.tuples(st.none() | st.text(max_size=2), st.booleans()), min_size=1, max_size=5))
def test_first_and_last_are_of_batches_that_had_rows(batches: list[tuple[Any, bool]]) -> None:
    kinds = [pa.string(), pa.bool_()]
    partials = [(value if there else None, there) for value, there in batches]
    there = [value for value, present in batches if present]
    assert merged("first", kinds, partials)[0] == (there[0] if there else None)
    assert merged("last", kinds, partials)[0] == (there[-1] if there else None)


@given(some(st.floats(-1e6, 1e6)))
def test_moments_are_those_of_all_values(batches: Batches) -> None:
    partials = []
    for batch in batches:
        values = known(batch)
        mean = statistics.fmean(values) if values else 0.0
        partials.append((float(len(values)), mean, sum((v - mean) ** 2 for v in values)))
    n, mean, squares = merged("moments", [pa.float64()] * 3, partials)
    values = everything(batches)
    assert n == len(values)
    if values:
        assert mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
        assert squares / n == pytest.approx(statistics.pvariance(values), rel=1e-9, abs=1e-3)


ITEMS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.inf])),
    "struct": (
        pa.struct([("a", pa.decimal128(20, 2)), ("b", pa.list_(pa.string()))]),
        st.builds(
            lambda a, b: {"a": Decimal(a).scaleb(-2), "b": b},
            st.integers(-(10**15), 10**15),
            st.none() | st.lists(st.text(max_size=1), max_size=2),
        ),
    ),
}


@pytest.mark.parametrize("kind", ITEMS)
@settings(max_examples=cases(40))
@given(data=st.data())
def test_lists_follow_each_other_and_sets_unite(kind: str, data: st.DataObject) -> None:
    arrow, values = ITEMS[kind]
    batches = data.draw(st.lists(st.lists(values, max_size=20), min_size=1, max_size=4))
    items = [item for batch in batches for item in batch]
    found = merged("list", [pa.list_(arrow)], [(batch,) for batch in batches])[0]
    assert list(map(repr, found)) == list(map(repr, items))  # -0.0 is not 0.0 here
    united = merged("union", [pa.list_(arrow)], [(batch,) for batch in batches])[0]
    assert {repr(item) for item in united} == {repr(item) for item in items}


def test_long_lists_keep_their_items() -> None:
    batches = [(list(range(n)),) for n in (0, 3, 70_000, 20, 16)]
    found = merged("list", [pa.list_(pa.int64())], batches)[0]
    assert found == [item for (batch,) in batches for item in batch]


def test_sketches_of_batches_are_sketches_of_all() -> None:
    from datasketches import hll_sketch, kll_doubles_sketch

    def counted(values: range) -> bytes:
        sketch = hll_sketch(11)
        for value in values:
            sketch.update(value)
        return bytes(sketch.serialize_updatable())

    def ranked(values: range) -> bytes:
        sketch = kll_doubles_sketch(400)
        for value in values:
            sketch.update(float(value))
        return bytes(sketch.serialize())

    parts = [range(0, 4000), range(2000, 9000), range(0)]
    (distinct,) = merged("hll", [pa.binary()], [(counted(part),) for part in parts])
    assert hll_sketch.deserialize(distinct).get_estimate() == pytest.approx(9000, rel=0.08)
    (ranks,) = merged("kll", [pa.binary()], [(ranked(part),) for part in parts[:1] * 3])
    assert kll_doubles_sketch.deserialize(ranks).get_quantile(0.25) == pytest.approx(1000, abs=100)


def test_what_chance_decides_on_is_left_out_of_a_comparison() -> None:
    from datasketches import kll_doubles_sketch

    def ranked(values: Iterable[int]) -> bytes:
        sketch = kll_doubles_sketch(8)
        for value in values:
            sketch.update(float(value))
        return bytes(sketch.serialize())

    parts = (ColumnGroup("kll", 1, "percentile_approx(v)"), ColumnGroup("add", 1, "count(v)"))
    merger = Merger(parts, [pa.binary(), pa.int64()])
    assert merger.is_random and not Merger(parts[1:], [pa.int64()]).is_random

    def traits(a: Iterable[int], b: Iterable[int], count: int) -> list[str]:
        def columns(values: Iterable[int], counted: int) -> list[Column]:
            arrays = pa.array([ranked(values)], pa.binary()), pa.array([counted], pa.int64())
            return [f.read(x) for f, x in zip(merger.fields, arrays, strict=True)]

        merged = merger.merge(columns(a, 0), columns(b, count))
        return [str(column.values) for column in merger.traits(merged)]

    # A hundred values in a sketch of eight: no two of a dozen merges keep the same.
    (once,) = {tuple(traits(range(50), range(50, 100), 1)) for _ in range(12)}
    for a, b, count in [
        (range(50), range(50, 100), 2),  # another count in the column beside it
        (range(50), range(50, 99), 1),  # fewer values
        (range(50), [*range(50, 99), 200], 1),  # another maximum
    ]:
        assert tuple(traits(a, b, count)) != once
    # As long as a sketch keeps all values, they count, in any order.
    assert traits([1, 2], [3], 1) == traits([3], [2, 1], 1) != traits([1, 2], [4], 1)


def test_values_that_have_no_place_in_a_record_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"max\(m\): values of Arrow type map"):
        field_of(pa.list_(pa.map_(pa.string(), pa.int64())), "max(m)")

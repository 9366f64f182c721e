"""Records of typed state fields: what goes in comes out, what can't is refused by name."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, Optional

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorDefinitionError,
    StateValueError,
)
from braided.store.records.codec import StateCodec
from braided.store.records.state_fields import Field


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Order:
    price: Decimal
    size: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass(eq=False)
class Opaque:
    value: int = 0


class Quote(msgspec.Struct):
    bid: float
    ask: float


class Custom:
    pass


class Op(SimpleNamespace):
    """Stands in for an operator instance: a thing with attributes."""


def codec_of(kind: Any, default: Any) -> StateCodec:
    return StateCodec("Op", [Field("value", kind, default)])


def round_trip(kind: Any, default: Any, value: Any) -> Any:
    codec = codec_of(kind, default)
    op = Op(value=value)
    raw = codec.dump(op, ())
    back = Op()
    assert codec.load(back, raw) == ()
    return back.value


# The first text that Hypothesis draws builds its table of characters, which takes seconds.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

naive = st.datetimes()
aware = st.datetimes(timezones=st.just(dt.UTC))
finite = st.floats(allow_nan=False)
ints = st.integers(-(2**63), 2**63 - 1)
trees = st.recursive(
    st.builds(Tree, ints),
    lambda inner: st.builds(Tree, ints, st.lists(inner, max_size=3)),
    max_leaves=8,
)

STORABLE: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (bool, False, st.booleans()),
    (int, 0, ints),
    (float, 0.0, finite),
    (str, "", st.text()),
    (bytes, b"", st.binary()),
    (dt.datetime, dt.datetime(2020, 1, 1), naive | aware),
    (dt.date, dt.date(2020, 1, 1), st.dates()),
    (dt.time, dt.time(), st.times()),
    (dt.timedelta, dt.timedelta(), st.timedeltas()),
    (Decimal, Decimal(0), st.decimals(allow_nan=False)),
    (uuid.UUID, uuid.UUID(int=0), st.uuids()),
    (Side, Side.BUY, st.sampled_from(Side)),
    (Literal["a", 1], "a", st.sampled_from(["a", 1])),
    (Optional[int], None, st.none() | ints),  # noqa: UP045
    (int | str | None, None, st.none() | ints | st.text()),
    (list[int], [], st.lists(ints)),
    (tuple[int, str], (0, ""), st.tuples(ints, st.text())),
    (tuple[float, ...], (), st.lists(finite).map(tuple)),
    (set[str], set(), st.sets(st.text())),
    (set[tuple[int, str]], set(), st.sets(st.tuples(ints, st.text()))),
    (frozenset[int], frozenset(), st.frozensets(ints)),
    (dict[str, int], {}, st.dictionaries(st.text(), ints)),
    (dict[int, list[str]], {}, st.dictionaries(ints, st.lists(st.text()))),
    (dict[tuple[int, str], float], {}, st.dictionaries(st.tuples(ints, st.text()), finite)),
    (dict[dt.date, int], {}, st.dictionaries(st.dates(), ints)),
    (dict[str, set[int]], {}, st.dictionaries(st.text(), st.sets(ints))),
    (Point, Point(0, 0.0), st.builds(Point, ints, finite)),
    (dict[Point, int], {}, st.dictionaries(st.builds(Point, ints, finite), ints)),
    (Order, Order(Decimal(0)), st.builds(Order, st.decimals(allow_nan=False), ints)),
    (list[Order], [], st.lists(st.builds(Order, st.decimals(allow_nan=False), ints))),
    (Tree, Tree(0), trees),
    (Quote, Quote(0, 0), st.builds(Quote, finite, finite)),
]


@unhurried
@given(st.data())
def test_every_storable_type_comes_back_as_it_was(data: st.DataObject) -> None:
    kind, default, values = data.draw(st.sampled_from(STORABLE))
    value = data.draw(values)
    back = round_trip(kind, default, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("kind", [entry[0] for entry in STORABLE], ids=str)
def test_the_description_is_json_and_stable(kind: Any) -> None:
    default = next(entry[1] for entry in STORABLE if entry[0] is kind)
    description = codec_of(kind, default).describe()
    assert json.loads(description)["fields"][0]["name"] == "value"
    assert description == codec_of(kind, default).describe()


def test_descriptions_tell_types_apart() -> None:
    described = {codec_of(kind, default).describe() for kind, default, _ in STORABLE}
    # Optional[int] is int | None; all others differ.
    assert len(described) == len(STORABLE)


def test_floats_keep_nan_and_the_sign_of_zero() -> None:
    assert math.isnan(round_trip(float, 0.0, math.nan))
    assert math.copysign(1, round_trip(float, 0.0, -0.0)) == -1
    assert round_trip(float, 0.0, -math.inf) == -math.inf
    nested = round_trip(dict[str, float], {}, {"a": math.nan})
    assert math.isnan(nested["a"])


def test_an_int_in_a_float_field_becomes_a_float() -> None:
    value = round_trip(float, 0.0, 3)
    assert value == 3.0
    assert type(value) is float
    assert round_trip(float, 0.0, 2**53 + 1) == float(2**53)


def test_a_time_with_a_zone_keeps_its_instant() -> None:
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=zone)
    assert round_trip(dt.datetime, moment, moment) == moment


@unhurried
@given(st.lists(st.text(), unique=True))
def test_dicts_keep_the_order_of_insertion(keys: list[str]) -> None:
    assert list(round_trip(dict[str, int], {}, dict.fromkeys(keys, 1))) == keys


@unhurried
@given(st.lists(st.text(), unique=True), st.randoms())
def test_equal_sets_have_equal_records(members: list[str], random: Any) -> None:
    codec = codec_of(set[str], set())
    first = codec.dump(Op(value=set(members)), ())
    random.shuffle(members)
    assert codec.dump(Op(value=set(members)), ()) == first


@unhurried
@given(st.sets(st.integers(-(2**63), 2**63 - 1)))
def test_timers_travel_with_the_record(timers: set[int]) -> None:
    codec = codec_of(int, 0)
    pending = tuple(sorted(timers))
    assert codec.load(Op(), codec.dump(Op(value=1), pending)) == pending


def test_an_operator_without_fields_has_a_record_for_its_timers() -> None:
    codec = StateCodec("Op", [])
    assert codec.load(Op(), codec.dump(Op(), (5, 6))) == (5, 6)
    assert codec.load(Op(), None) == ()
    assert codec.dump(Op(), ()) == codec.fresh


def test_a_mutable_default_is_never_shared() -> None:
    codec = codec_of(dict[str, list[int]], {"a": [1]})
    one, other = Op(), Op()
    codec.load(one, None)
    one.value["a"].append(2)
    one.value["b"] = []
    codec.load(other, None)
    assert other.value == {"a": [1]}


def test_a_key_with_defaults_has_the_fresh_record() -> None:
    codec = StateCodec("Op", [Field("a", float, math.nan), Field("b", set[str], {"y", "x"})])
    op = Op()
    codec.load(op, None)
    assert codec.dump(op, ()) == codec.fresh


def test_numpy_scalars_are_stored_as_their_values() -> None:
    for kind, default, value in [
        (int, 0, np.int32(7)),
        (float, 0.0, np.float32(0.5)),
        (float, 0.0, np.float64(0.1)),
        (bool, False, np.bool_(True)),
        (dict[int, float], {}, {np.int64(1): np.float64(2.5)}),
        (list[float], [], [np.float64(1.5), math.nan]),
    ]:
        back = round_trip(kind, default, value)
        if not isinstance(value, list):
            assert back == value
        assert type(back) in (int, float, bool, dict, list)


BAD_VALUES: list[tuple[Any, Any, Any, str]] = [
    (int, 0, "7", "str"),
    (int, 0, 7.0, "float"),
    (int, 0, True, "bool"),
    (int, 0, None, "NoneType"),
    (int, 0, 2**64, "64 bits"),
    (int, 0, -(2**63) - 1, "64 bits"),
    (float, 0.0, "x", "str"),
    (float, 0.0, 2**70, "64 bits"),
    (float, 0.0, Decimal(1), "Decimal"),
    (str, "", b"x", "bytes"),
    (str, "", "\ud800", "surrogates"),
    (bytes, b"", "x", "str"),
    (bool, False, 1, "int"),
    (dt.datetime, dt.datetime(2020, 1, 1), "2020-01-01T00:00:00", "str"),
    (dt.date, dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), "datetime"),
    (Decimal, Decimal(0), "1.5", "str"),
    (Decimal, Decimal(0), 1.5, "float"),
    (Side, Side.BUY, "buy", "str"),
    (Literal["a"], "a", "b", "str"),
    (list[int], [], (1, 2), "tuple"),
    (list[int], [], [1, "2"], r"value\[1\]"),
    (tuple[int, int], (0, 0), [1, 2], "list"),
    (tuple[int, int], (0, 0), (1,), "tuple"),
    (set[int], set(), [1], "list"),
    (set[int], set(), {"a"}, "str"),
    (dict[str, int], {}, {"a": "b"}, r"value\['a'\]"),
    (dict[str, int], {}, {1: 1}, "key"),
    (dict[str, int], {}, defaultdict(int), "plain dict"),
    (dict[str, int], {}, Counter("aab"), "plain dict"),
    (dict[str, int], {}, OrderedDict(a=1), "plain dict"),
    (Order, Order(Decimal(0)), Order(Decimal(0), "1"), r"value\.size"),  # type: ignore[arg-type]
    (Order, Order(Decimal(0)), {"price": Decimal(0)}, "dict"),
    (Point, Point(0, 0.0), (0, 0.0), "tuple"),
    (int, 0, np.zeros(3), "ndarray"),
    (list[float], [], np.zeros(1), "ndarray"),
    (int | None, None, "x", "str"),
]


@pytest.mark.parametrize(("kind", "default", "value", "says"), BAD_VALUES)
def test_a_value_that_does_not_fit_is_refused_by_name(
    kind: Any, default: Any, value: Any, says: str
) -> None:
    codec = codec_of(kind, default)
    with pytest.raises(StateValueError, match=says) as caught:
        codec.dump(Op(value=value), ())
    assert "Op.value" in str(caught.value)


PLAIN = {"i": (int, 0), "f": (float, 0.0), "s": (str, ""), "b": (bool, False)}


@pytest.mark.parametrize("timers", [(), (5,)])
def test_numbers_and_text_are_told_by_their_types(timers: tuple[int, ...]) -> None:
    codec = StateCodec("Op", [Field(name, *field) for name, field in PLAIN.items()])
    good = {"i": 2**64 - 1, "f": -0.0, "s": "\x00é", "b": True}
    for i in (2**64 - 1, -(2**63), 7):
        back = Op()
        assert codec.load(back, codec.dump(Op(**good | {"i": i}), timers)) == timers
        assert vars(back) == good | {"i": i}
        assert [type(value) for value in vars(back).values()] == [int, float, str, bool]
        assert math.copysign(1, back.f) == -1
    for name, value in [("i", True), ("i", "7"), ("i", 2**64), ("f", "x"), ("s", 1), ("b", 1)]:
        with pytest.raises(StateValueError, match=rf"Op\.{name} "):
            codec.dump(Op(**good | {name: value}), timers)


def test_the_error_names_the_field_its_type_and_the_value() -> None:
    codec = StateCodec("Matcher", [Field("count", int, 0), Field("names", dict[str, int], {})])
    with pytest.raises(StateValueError) as caught:
        codec.dump(Op(count=1, names={"x": "many"}), ())
    message = str(caught.value)
    assert "Matcher.names['x']" in message
    assert "'many' of type str" in message
    assert "dict[str, int]" in message


def test_a_value_that_contains_itself_is_refused() -> None:
    tree = Tree(0)
    tree.children.append(tree)
    with pytest.raises(StateValueError, match=r"Op\.value"):
        codec_of(Tree, Tree(0)).dump(Op(value=tree), ())


def test_a_deleted_field_is_refused() -> None:
    with pytest.raises(StateValueError, match=r"Op\.value was deleted"):
        codec_of(int, 0).dump(Op(), ())


def test_a_class_without_equality_is_stored() -> None:
    assert round_trip(Opaque, Opaque(), Opaque(5)).value == 5


UNSTORABLE: list[tuple[Any, Any, str]] = [
    (Any, None, "any type"),
    (object, None, "object"),
    (Custom, None, "Custom"),
    (complex, 0j, "complex"),
    (np.ndarray, None, "ndarray"),
    (Callable[[int], int], None, "Callable"),
    (list, [], "any type"),
    (dict, {}, "any type"),
    (list[Any], [], "any type"),
    (dict[str, object], {}, "object"),
    (defaultdict[str, int], defaultdict(int), "defaultdict"),
    (set[list[int]], set(), "tuple or frozenset"),  # type: ignore[type-var]
    (dict[Order, int], {}, "dict key"),
    (str | bytes, "", "str-like"),
    (msgspec.Raw, msgspec.Raw(b""), "Raw"),
]


@pytest.mark.parametrize(
    ("kind", "default", "says"), UNSTORABLE, ids=[str(kind) for kind, _, _ in UNSTORABLE]
)
def test_a_type_that_cannot_be_stored_is_refused_by_name(
    kind: Any, default: Any, says: str
) -> None:
    with pytest.raises(OperatorDefinitionError, match=says) as caught:
        codec_of(kind, default)
    assert "Op.value" in str(caught.value)


def test_the_refusal_names_the_part_of_a_nested_type() -> None:
    @dataclass
    class Outer:
        inner: list[Custom]

    Outer.__annotations__["inner"] = list[Custom]
    with pytest.raises(OperatorDefinitionError, match=r"Outer\.inner: Custom is not a type"):
        codec_of(Outer, None)


@pytest.mark.parametrize(
    ("kind", "default"),
    [(int, "x"), (int, None), (float, "0"), (list[int], ()), (dict[str, int], {"a": None})],
)
def test_a_default_that_does_not_fit_is_refused(kind: Any, default: Any) -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Op\.value.*default"):
        codec_of(kind, default)


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(CheckpointVersionError, match="version 9"):
        codec_of(int, 0).load(Op(), b"\x09\x92\x00\x90")


def test_a_record_of_other_fields_is_refused() -> None:
    raw = codec_of(str, "").dump(Op(value="text"), ())
    with pytest.raises(CheckpointMismatchError, match="does not fit"):
        codec_of(int, 0).load(Op(), raw)

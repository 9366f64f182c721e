"""Fields that change between starts: old records are read as they were meant, or refused."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from types import SimpleNamespace as Op
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorError,
    StateValueError,
)
from braided.store.records.codec import Field, StateCodec
from braided.store.records.old_records import evolve

History = tuple[str, ...]


def codec_of(*fields: Field, upgrade: Callable[[dict[str, Any]], Any] | None = None) -> StateCodec:
    return StateCodec("Op", fields, upgrade)


def started(codec: StateCodec, history: History = ()) -> tuple[StateCodec, History]:
    """What a start on a checkpoint with this history gives."""
    after = evolve(codec, "op", history) if history else (codec.describe(),)
    return codec.at(after), after


def changed(old: StateCodec, new: StateCodec, **values: Any) -> Any:
    """A key's fields, stored by one version and read by the next."""
    before, history = started(old)
    after, _ = started(new, history)
    op = Op()
    assert after.load(op, before.dump(Op(**values), (7, 9))) == (7, 9)
    return op


# --- any chain of changes ---------------------------------------------------------------------

small = st.integers(-(2**40), 2**40)
# Each family is a line of types; every one of them holds all values of those before it.
FAMILIES: list[tuple[list[Any], Any, st.SearchStrategy[Any]]] = [
    ([int, float, float | None], 1, small),
    ([int, int | None, int | str | None], 2, small),
    ([str, str | None], "x", st.text(max_size=3)),
    ([list[int], list[float], list[float | None]], [3], st.lists(small, max_size=3)),
    ([tuple[int, str], tuple[float, str | None]], (4, "y"), st.tuples(small, st.just("z"))),
    ([tuple[int, int], tuple[int, ...], tuple[float, ...]], (1, 2), st.tuples(small, small)),
    ([set[int], set[int] | None], {5}, st.sets(small, max_size=3)),
    (
        [dict[str, list[int]], dict[str, list[float]]],
        {},
        st.dictionaries(st.text(max_size=2), st.lists(small, max_size=2)),
    ),
    ([Literal["a"], Literal["a", "b"], str], "a", st.just("a")),
]


class Model:
    """Fields by name as plain values: (family, width, default)."""

    def __init__(self) -> None:
        self.fields: dict[str, tuple[int, int]] = {}
        self.renamed: dict[str, str] = {}
        self.made = 0

    def codec(self) -> StateCodec:
        found = []
        for name, (family, width) in self.fields.items():
            kinds, default, _ = FAMILIES[family]
            earlier = (self.renamed[name],) if name in self.renamed else ()
            found.append(Field(name, kinds[width], default, earlier))
        return codec_of(*found)

    def change(self, data: st.DataObject, keys: list[dict[str, Any]]) -> None:
        """One change of the class, and what it means for each key."""
        self.renamed = {}
        what = data.draw(st.sampled_from(["add", "drop", "widen", "move", "rename"]))
        names = list(self.fields)
        name = data.draw(st.sampled_from(names))
        if what == "add" or (what == "drop" and len(names) == 1):
            # A name that was dropped may come back, as another field.
            new = data.draw(st.sampled_from([f"f{n}" for n in range(8) if f"f{n}" not in names]))
            family = data.draw(st.integers(0, len(FAMILIES) - 1))
            self.fields[new] = (family, 0)
            for key in keys:
                key[new] = FAMILIES[family][1]
        elif what == "drop":
            del self.fields[name]
            for key in keys:
                key.pop(name, None)
        elif what == "widen":
            family, width = self.fields[name]
            most = len(FAMILIES[family][0]) - 1
            self.fields[name] = (family, min(width + data.draw(st.integers(1, 2)), most))
        elif what == "move":
            self.fields = {n: self.fields[n] for n in data.draw(st.permutations(names))}
        else:
            new = data.draw(st.sampled_from([f"f{n}" for n in range(8) if f"f{n}" not in names]))
            self.renamed = {new: name}
            self.fields = {new if n == name else n: kind for n, kind in self.fields.items()}
            for key in keys:
                key[new] = key.pop(name)

    def value(self, data: st.DataObject, name: str) -> Any:
        return data.draw(FAMILIES[self.fields[name][0]][2])


@given(st.data())
def test_records_of_all_versions_read_as_they_were_meant(data: st.DataObject) -> None:
    model = Model()
    model.fields = {"f0": (0, 0), "f1": (data.draw(st.integers(0, len(FAMILIES) - 1)), 0)}
    keys: list[dict[str, Any]] = []
    records: list[bytes] = []
    codec, history = started(model.codec())
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 2))):  # keys that are new at this version
            keys.append({name: model.value(data, name) for name in model.fields})
            records.append(codec.dump(Op(**keys[-1]), (len(keys),)))
        for number in range(len(keys)):  # and some that are touched at it
            if data.draw(st.booleans()):
                op = Op()
                timers = codec.load(op, records[number])
                name = data.draw(st.sampled_from(list(model.fields)))
                keys[number][name] = model.value(data, name)
                setattr(op, name, keys[number][name])
                records[number] = codec.dump(op, timers)
        model.change(data, keys)
        codec, history = started(model.codec(), history)
    for number, (key, record) in enumerate(zip(keys, records, strict=True), 1):
        op = Op()
        assert codec.load(op, record) == (number,)
        assert vars(op) == key
        again = codec.dump(op, (number,))
        assert again[0] == codec.version
        assert codec.is_unchanged(record, again)
        op = Op()
        codec.load(op, again)
        assert vars(op) == key


# --- what is refused --------------------------------------------------------------------------


class Side(enum.Enum):
    BUY = "buy"


class MoreSides(enum.Enum):
    SELL = "sell"
    BUY = "buy"


class OtherSides(enum.Enum):
    BUY = "purchase"


class Swapped(enum.Enum):
    BUY = "sell"
    SELL = "buy"


@dataclass
class Order:
    price: int
    size: int = 1


@dataclass
class MoreOrder:
    note: str = ""
    price: int = 0
    size: int = 1
    tags: list[str] = field(default_factory=list)


class Point(NamedTuple):
    x: int


class MorePoint(NamedTuple):
    x: int
    y: int = 5


class MisplacedPoint(NamedTuple):
    y: int
    x: int


class Config(TypedDict):
    a: int


class MoreConfig(TypedDict, total=False):
    a: int
    b: int


class Quote(msgspec.Struct, array_like=True):
    bid: int


class MoreQuote(msgspec.Struct, array_like=True):
    bid: int
    ask: int = 9


class MapQuote(msgspec.Struct):
    bid: int


def order(**fields: Any) -> Any:
    made = make_dataclass(
        "Order", [(name, kind, field(default=0)) for name, kind in fields.items()]
    )
    return made


NESTED: list[tuple[Any, Any, Any, Any]] = [
    (Order, MoreOrder, Order(3), MoreOrder("", 3, 1, [])),
    (list[Order], list[MoreOrder], [Order(3)], [MoreOrder("", 3)]),
    (
        dict[str, Order] | None,
        dict[str, MoreOrder] | None,
        {"a": Order(3)},
        {"a": MoreOrder("", 3)},
    ),
    (Point, MorePoint, Point(1), MorePoint(1, 5)),
    (Config, MoreConfig, {"a": 1}, {"a": 1}),
    (Quote, MoreQuote, Quote(1), MoreQuote(1, 9)),
    (Side, MoreSides, Side.BUY, MoreSides.BUY),
    (Side, Side | None, Side.BUY, Side.BUY),
]


@pytest.mark.parametrize(("old", "new", "stored", "read"), NESTED, ids=str)
def test_nested_classes_may_get_more(old: Any, new: Any, stored: Any, read: Any) -> None:
    op = changed(
        codec_of(Field("value", old, stored)), codec_of(Field("value", new, read)), value=stored
    )
    assert op.value == read
    assert type(op.value) is type(read)


REFUSED: list[tuple[Any, Any, Any, Any, str]] = [
    (float, 0.0, int, 0, "float became int"),
    (int, 0, str, "", "int became str"),
    (int | None, None, int, 0, "None became int"),
    (list[str], [], list[int], [], "str became int"),
    (list[int], [], tuple[int, ...], (), r"list\[int\] became tuple\[int, \.\.\.\]"),
    (dict[str, int], {}, dict[int, int], {}, "str became int"),
    (Literal["a", "b"], "a", Literal["a"], "a", "literal 'b' is gone"),
    (Side, Side.BUY, str, "", "Side became str"),
    (MoreSides, MoreSides.BUY, Side, Side.BUY, r"Side\.SELL \('sell'\) is gone"),
    (Side, Side.BUY, OtherSides, OtherSides.BUY, r"OtherSides\.BUY \('buy'\) is gone"),
    (MoreSides, MoreSides.BUY, Swapped, Swapped.BUY, r"SELL was 'sell' and is 'buy'"),
    (MoreOrder, MoreOrder(), Order, Order(0), r"Order\.note is gone"),
    (Order, Order(0), order(price=int, size=float), None, r"Order\.size: int became float"),
    (Order, Order(0), order(price=int, amount=int), None, r"Order\.size is gone"),
    (Point, Point(0), MisplacedPoint, MisplacedPoint(0, 0), r"stored by place"),
    (Quote, Quote(0), MapQuote, MapQuote(0), r"encoded in another way"),
    (Order, Order(0), Point, Point(0), "Order became Point"),
]


@pytest.mark.parametrize(("old", "was", "new", "default", "says"), REFUSED, ids=str)
def test_a_change_that_may_lose_something_is_refused_with_the_way_out(
    old: Any, was: Any, new: Any, default: Any, says: str
) -> None:
    default = new() if default is None else default
    _, history = started(codec_of(Field("value", old, was)))
    with pytest.raises(CheckpointMismatchError, match=f"'op'.*value: .*{says}") as caught:
        started(codec_of(Field("value", new, default)), history)
    assert "def upgrade(cls, old)" in str(caught.value)


def test_a_new_nested_field_without_a_default_is_refused() -> None:
    @dataclass
    class Bare:
        price: int
        size: int
        note: str

    _, history = started(codec_of(Field("value", Order, Order(0))))
    with pytest.raises(CheckpointMismatchError, match=r"Bare\.note is new and has no default"):
        started(codec_of(Field("value", Bare, Bare(0, 0, ""))), history)


def test_an_operator_with_none_of_the_stored_fields_is_taken_for_another() -> None:
    _, history = started(codec_of(Field("a", int, 0), Field("b", list[int], [])))
    with pytest.raises(
        CheckpointMismatchError, match=r"a: int, b: list\[int\]\), as if it were another"
    ):
        started(codec_of(Field("c", int, 0)), history)
    _, empty = started(codec_of())
    started(codec_of(Field("c", int, 0)), empty)


def test_an_int_that_is_no_float_is_refused_when_it_is_read() -> None:
    old, new = codec_of(Field("n", int, 0)), codec_of(Field("n", float, 0.0))
    assert changed(old, new, n=2**53).n == 2.0**53
    with pytest.raises(CheckpointMismatchError, match=r"Op\.n holds 9007199254740993"):
        changed(old, new, n=2**53 + 1)
    lists = codec_of(Field("n", dict[int, list[int]], {}))
    wider = codec_of(Field("n", dict[int, list[float]] | None, {}))
    # A key stays an int, however large.
    assert changed(lists, wider, n={2**53 + 1: [1]}).n == {2**53 + 1: [1.0]}
    with pytest.raises(CheckpointMismatchError, match="9007199254740993"):
        changed(lists, wider, n={1: [2**53 + 1]})


# --- names ------------------------------------------------------------------------------------


def test_a_chain_of_renames_is_followed_for_records_that_were_never_touched() -> None:
    codec, history = started(codec_of(Field("x", int, 0)))
    record = codec.dump(Op(x=5), ())
    _, history = started(codec_of(Field("y", int, 0, ("x",))), history)
    codec, history = started(codec_of(Field("z", float, 0.0, ("y",)), Field("x", int, 8)), history)
    op = Op()
    codec.load(op, record)
    assert vars(op) == {"z": 5.0, "x": 8}  # the new x is not the old one


def test_a_start_that_skipped_a_version_needs_all_names_the_field_had() -> None:
    _, history = started(codec_of(Field("x", int, 0), Field("n", int, 0)))
    with pytest.raises(CheckpointMismatchError, match=r"z says it was 'y'.*it has x, n"):
        started(codec_of(Field("z", int, 0, ("y",)), Field("n", int, 0)), history)
    codec = codec_of(Field("z", int, 0, ("y", "x")), Field("n", int, 0))
    assert changed(codec_of(Field("x", int, 0), Field("n", int, 0)), codec, x=3, n=4).z == 3


def test_a_rename_that_was_done_or_never_needed_is_no_change() -> None:
    fields = codec_of(Field("z", int, 0, ("y",)))
    _, history = started(fields)
    assert started(fields, history)[1] == history
    _, older = started(codec_of(Field("n", int, 0)))
    started(codec_of(Field("n", int, 0), Field("z", int, 0, ("y",))), older)


def test_going_back_is_a_change_like_any_other() -> None:
    narrow, wide = codec_of(Field("n", int, 0)), codec_of(Field("n", int, 0), Field("m", str, ""))
    _, one = started(narrow)
    _, two = started(wide, one)
    codec, three = started(narrow, two)  # drops m
    assert len(three) == 3
    assert json.loads(three[0]) == json.loads(three[2])
    op = Op()
    codec.load(op, wide.at(two).dump(Op(n=4, m="x"), ()))
    assert vars(op) == {"n": 4}
    _, float_too = started(codec_of(Field("n", float, 0.0)), three)
    with pytest.raises(CheckpointMismatchError, match="float became int"):
        started(narrow, float_too)


def test_a_change_is_judged_against_records_of_every_version() -> None:
    _, one = started(codec_of(Field("n", str, ""), Field("m", int, 0)))
    hook = codec_of(Field("n", int, 0), Field("m", int, 0), upgrade=lambda old: old)
    _, two = started(hook, one)
    with pytest.raises(
        CheckpointMismatchError, match=r"str became int \(in records of version 1\)"
    ):
        started(codec_of(Field("n", int, 0), Field("m", int, 0), Field("k", int, 0)), two)


# --- the upgrade hook -------------------------------------------------------------------------


def test_upgrade_makes_new_fields_from_old_ones() -> None:
    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        old["euros"] = old.pop("cents") / 100
        old["side"] = MoreSides(old["side"])
        old["price"] = old["order"]["price"]
        return old

    op = changed(
        codec_of(
            Field("cents", int, 0),
            Field("side", Side, Side.BUY),
            Field("order", Order, Order(0)),
            Field("kept", list[Order], []),
        ),
        codec_of(
            Field("kept", list[Order], []),
            Field("euros", float, 0.0),
            Field("side", MoreSides, MoreSides.SELL),
            Field("price", int, 0),
            Field("new", int, 6),
            upgrade=upgrade,
        ),
        cents=250,
        side=Side.BUY,
        order=Order(3),
        kept=[Order(4)],
    )
    assert vars(op) == {
        "kept": [Order(4)],
        "euros": 2.5,
        "side": MoreSides.BUY,
        "price": 3,
        "new": 6,
    }


def test_upgrade_is_not_called_for_records_of_now() -> None:
    calls: list[Any] = []

    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        calls.append(old)
        return {"n": len(old["n"])}

    old, history = started(codec_of(Field("n", str, "")))
    new, history = started(codec_of(Field("n", int, 0), upgrade=upgrade), history)
    op = Op()
    new.load(op, old.dump(Op(n="abc"), ()))
    new.load(op, new.dump(op, ()))
    new.load(Op(), None)
    assert (op.n, calls) == (3, [{"n": "abc"}])


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"n": "x"}, StateValueError, r"Op\.upgrade returned 'x' for n.*'n': 'abc'"),
        ({"nn": 1}, StateValueError, r"Op\.upgrade returned 'nn', which is no field"),
        (None, StateValueError, "returns a dict"),
        (KeyError("no"), OperatorError, r"Op\.upgrade raised KeyError.*'n': 'abc'"),
    ],
)
def test_what_upgrade_gives_is_checked(given: Any, error: type[Exception], says: str) -> None:
    def upgrade(old: dict[str, Any]) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    with pytest.raises(error, match=says):
        changed(
            codec_of(Field("n", str, "")), codec_of(Field("n", int, 0), upgrade=upgrade), n="abc"
        )


# --- records ----------------------------------------------------------------------------------


def test_a_record_of_no_known_version_is_refused() -> None:
    _, history = started(codec_of(Field("n", int, 0)))
    codec, _ = started(codec_of(Field("n", float, 0.0)), history)
    for number in (0, 3, 9):
        with pytest.raises(
            CheckpointVersionError, match=f"version {number}, the checkpoint knows 2"
        ):
            codec.load(Op(), bytes([number]) + b"\x92\x00\x90")
    with pytest.raises(CheckpointMismatchError, match="can't be read"):
        codec.load(Op(), b"\x01\x90")
    with pytest.raises(CheckpointMismatchError, match="can't be read"):
        codec.load(Op(), b"\x01\x92\xa1x\x90")


def test_there_are_255_versions() -> None:
    one, two = codec_of(Field("n", int, 0)), codec_of(Field("n", int, 0), Field("m", int, 0))
    _, history = started(one)
    for number in range(254):
        codec, history = started(two if number % 2 == 0 else one, history)
    assert codec.version == 255
    assert codec.load(Op(), codec.dump(Op(n=1, m=2), ())) == ()
    with pytest.raises(CheckpointMismatchError, match="255 versions"):
        started(one if len(codec.fields) == 2 else two, history)

"""Stored records become Arrow columns by their description alone, and go back."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from braided.errors import CheckpointVersionError, UnsupportedError
from braided.store.records.codec import Field, StateCodec
from braided.store.records.stored_fields import StoredFields, shape_of


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Stop:
    name: str
    at: dt.datetime | None = None
    tags: set[str] = field(default_factory=set)


@dataclass
class Tree:
    label: str
    children: list[Tree] = field(default_factory=list)


ZONED = dt.datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=dt.UTC)
LOCAL = ZONED.astimezone().replace(tzinfo=None)
CASES: list[tuple[Any, Any, pa.DataType, Any]] = [
    (bool, True, pa.bool_(), True),
    (int, -(2**63), pa.int64(), -(2**63)),
    (float, 1.5, pa.float64(), 1.5),
    (float, 3, pa.float64(), 3.0),
    (str, "ä", pa.string(), "ä"),
    (bytes, b"\x00\xff", pa.binary(), b"\x00\xff"),
    (bytearray, bytearray(b"x"), pa.binary(), b"x"),
    (dt.datetime, LOCAL, pa.timestamp("us", "UTC"), ZONED),
    (dt.date, dt.date(2024, 2, 29), pa.date32(), dt.date(2024, 2, 29)),
    (dt.time, dt.time(1, 2, 3), pa.string(), "01:02:03"),
    (dt.timedelta, dt.timedelta(1, 2, 3), pa.duration("us"), dt.timedelta(1, 2, 3)),
    (decimal.Decimal, decimal.Decimal("1.2300"), pa.string(), "1.2300"),
    (uuid.UUID, uuid.UUID(int=7), pa.string(), str(uuid.UUID(int=7))),
    (Colour, Colour.BLUE, pa.string(), "b"),
    (Literal[1, 2], 2, pa.int64(), 2),
    (int | None, None, pa.int64(), None),
    (int | None, 4, pa.int64(), 4),
    (list[int | None], [1, None], pa.list_(pa.int64()), [1, None]),
    (set[int], {1, 2}, pa.list_(pa.int64()), [1, 2]),
    (frozenset[str], frozenset("a"), pa.list_(pa.string()), ["a"]),
    (tuple[int, ...], (1, 2), pa.list_(pa.int64()), [1, 2]),
    (tuple[int, str], (1, "a"), pa.struct({"_1": pa.int64(), "_2": pa.string()}),
     {"_1": 1, "_2": "a"}),
    (dict[str, int], {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (dict[tuple[int, int], int], {(1, 2): 3},
     pa.map_(pa.struct({"_1": pa.int64(), "_2": pa.int64()}), pa.int64()),
     [({"_1": 1, "_2": 2}, 3)]),
    (Point, Point(1, 2.0), pa.struct({"x": pa.int64(), "y": pa.float64()}), {"x": 1, "y": 2.0}),
    (Stop, Stop("s", LOCAL, {"t"}),
     pa.struct({"name": pa.string(), "at": pa.timestamp("us", "UTC"),
                "tags": pa.list_(pa.string())}),
     {"name": "s", "at": ZONED, "tags": ["t"]}),
    (int | str, "a", pa.string(), '"a"'),
    (dict[int | None, int], {None: 1}, pa.string(), "[[null, 1]]"),
]  # fmt: skip


def codec_of(kind: Any, value: Any) -> StateCodec:
    return StateCodec("Op", [Field("f", kind, value)])


@pytest.mark.parametrize(("kind", "value", "arrow", "shown"), CASES)
def test_a_value_of_every_type_is_shown_as_sparks_own(
    kind: Any, value: Any, arrow: pa.DataType, shown: Any
) -> None:
    codec = codec_of(kind, value)
    fields = StoredFields("op", [codec.describe()])
    values, timers = fields.read(codec.dump(SimpleNamespace(f=value), (5,)))
    assert fields.type == pa.struct({"f": arrow})
    assert fields.column([values]).to_pylist() == [{"f": shown}]
    assert timers == (5,)


@pytest.mark.parametrize(
    ("kind", "value"), [case[:2] for case in CASES if case[0] != dict[int | None, int]]
)
def test_what_is_shown_can_be_stored_again(kind: Any, value: Any) -> None:
    codec = codec_of(kind, value)
    fields = StoredFields("op", [codec.describe()])
    values, _ = fields.read(codec.dump(SimpleNamespace(f=value), ()))
    [shown] = fields.column([values]).to_pylist()
    shape = shape_of(json.loads(codec.describe())["fields"][0]["type"])
    back = msgspec.convert(shape.from_arrow(shown["f"]), kind)
    assert back == value
    assert type(back) is type(value) or kind is float


def test_a_type_inside_of_itself_is_text_from_there_on() -> None:
    tree = Tree("a", [Tree("b", [Tree("c")])])
    codec = codec_of(Tree, tree)
    fields = StoredFields("op", [codec.describe()])
    values, _ = fields.read(codec.dump(SimpleNamespace(f=tree), ()))
    [shown] = fields.column([values]).to_pylist()
    assert [json.loads(child)["label"] for child in shown["f"]["children"]] == ["b"]


def test_an_operator_without_fields_is_shown_as_empty() -> None:
    codec = StateCodec("Op", [])
    fields = StoredFields("op", [codec.describe()])
    values, timers = fields.read(codec.dump(SimpleNamespace(), (1, 2)))
    assert (fields.column([values]).to_pylist(), timers) == (["{}"], (1, 2))


def test_a_key_that_is_not_there_is_null() -> None:
    fields = StoredFields("op", [codec_of(int, 1).describe()])
    assert fields.column([None, (1,)]).to_pylist() == [None, {"f": 1}]


def test_an_int_beyond_bigint_is_named() -> None:
    codec = codec_of(int, 0)
    fields = StoredFields("op", [codec.describe()])
    values, _ = fields.read(codec.dump(SimpleNamespace(f=2**63), ()))
    with pytest.raises(UnsupportedError, match=r"'op': a stored value of field 'f' .* int64"):
        fields.column([values])


def test_records_of_earlier_versions_are_matched_by_the_numbers_of_fields() -> None:
    old = json.dumps({"fields": [{"name": "a", "type": "int", "id": 0},
                                 {"name": "b", "type": "str", "id": 1}]})  # fmt: skip
    new = json.dumps({"fields": [{"name": "c", "type": "float", "id": 2},
                                 {"name": "renamed", "type": "float", "id": 0}]})  # fmt: skip
    fields = StoredFields("op", [old, new])
    first = b"\x01" + msgspec.msgpack.encode((7, "gone", ()))
    second = b"\x02" + msgspec.msgpack.encode((1.5, 8.0, ()))
    rows = [fields.read(first)[0], fields.read(second)[0]]
    assert fields.column(rows).to_pylist() == [
        {"c": None, "renamed": 7.0},
        {"c": 1.5, "renamed": 8.0},
    ]
    with pytest.raises(CheckpointVersionError, match="version 3, the checkpoint knows 2"):
        fields.read(b"\x03" + second[1:])

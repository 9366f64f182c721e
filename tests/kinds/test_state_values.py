"""Values of state variables as bytes and back, by their Spark schema."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row

from braided.kinds.processor.state_values import key_codec, value_codec
from braided.testing.ddl import parse_schema

NAMED = parse_schema("name string")


@pytest.mark.parametrize("value", [("x",), ["x"], Row(name="x"), {"name": "x"}])
def test_a_value_may_be_a_tuple_a_list_a_row_or_a_dict(value: Any) -> None:
    values, keys = value_codec("s", [NAMED], 1), key_codec("s", NAMED)
    assert values.decode(values.encode(value)) == ("x",)
    assert keys.decode(keys.encode(value)) == ("x",)


@pytest.mark.parametrize("value", ["x", {"x"}, iter("x")])
def test_what_can_be_iterated_is_taken_for_its_items_as_in_spark(value: Any) -> None:
    values = value_codec("s", [NAMED], 1)
    assert values.decode(values.encode(value)) == ("x",)


@pytest.mark.parametrize("value", [5, None])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"not iterable: state 's' takes tuples.* \({value},\)"):
        value_codec("s", [NAMED], 1).encode(value)
    with pytest.raises(PySparkRuntimeError, match=r"3 values .* text .* counts as its characters"):
        value_codec("s", [NAMED], 1).encode("xyz")


def test_a_number_is_no_bytes() -> None:
    codec = value_codec("s", [parse_schema("data binary")], 1)
    assert codec.decode(codec.encode((bytearray(b"x"),))) == (b"x",)
    with pytest.raises(PySparkRuntimeError, match="'data' takes binary, not 5 of type int"):
        codec.encode((5,))


def test_what_is_read_is_a_tuple_with_lists_inside() -> None:
    codec = value_codec("s", [parse_schema("n long, many array<long>")], 1)
    read = codec.decode(codec.encode((1, [2, None])))
    assert type(read) is tuple and type(read[1]) is list
    assert read == (1, [2, None])


@pytest.mark.parametrize(("kind", "bits"), [("byte", 7), ("short", 15), ("int", 31), ("long", 63)])
def test_a_number_that_is_too_large_is_refused(kind: str, bits: int) -> None:
    codec = value_codec("s", [parse_schema(f"s string, n {kind}")], 1)
    for most in ((1 << bits) - 1, -1 << bits):
        assert codec.decode(codec.encode(("", most))) == ("", most)
    for more in (1 << bits, (-1 << bits) - 1):
        with pytest.raises(PySparkRuntimeError, match="out of range"):
            codec.encode(("", more))

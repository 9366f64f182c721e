"""Scripts for the three kinds of state: every method, every type, and values that expire."""

from __future__ import annotations

from collections import namedtuple
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from support.processors.scenario import Script, Variable

__all__ = ["EXPIRING", "IN_PANDAS", "IN_ROWS"]

NEVER_MS = 3_600_000
AT_ONCE_MS = 1
"""The batch that writes a value still sees it; every later one comes a millisecond later."""

_COUNT = StructType([StructField("n", LongType(), True)])
_DEEP = StructType(
    [
        StructField("name", StringType()),
        StructField(
            "inner",
            StructType(
                [
                    StructField("flag", BooleanType()),
                    StructField("points", ArrayType(StructType([StructField("x", IntegerType())]))),
                ]
            ),
        ),
        StructField("tags", ArrayType(ArrayType(StringType()))),
        StructField("by", MapType(StringType(), ArrayType(IntegerType()))),
    ]
)
_EVERYTHING = (
    "b boolean, t tinyint, s smallint, i int, l bigint, f float, d double, c decimal(20,4), "
    "x string, y binary, day date, ts timestamp, local timestamp_ntz"
)
_FULL = (
    True,
    -128,
    -32768,
    2**31 - 1,
    -(2**63),
    1.5,
    0.1,
    Decimal("1234567890123456.7891"),
    "žluťoučký \x00 🐎",
    b"\x00\xff",
    date(1969, 12, 31),
    datetime(2024, 2, 29, 23, 59, 59, 999999),
    datetime(1900, 1, 1, 0, 0, 0, 1),
)
_POINT = namedtuple("_POINT", "x y")


def value(schema, *batches, name, ttl_ms=None):
    return Script(name, Variable("value", schema, ttl_ms=ttl_ms), batches)


def lists(schema, *batches, name, ttl_ms=None):
    return Script(name, Variable("list", schema, ttl_ms=ttl_ms), batches)


def maps(key_schema, schema, *batches, name, ttl_ms=None):
    return Script(name, Variable("map", schema, key_schema, ttl_ms), batches)


_LOOK = (("exists",), ("get",))
_SEE = (("exists",), ("iterator",), ("keys",), ("values",))

_VALUES = (
    value(
        "n int",
        (("update", range(3, 4)), ("get",), ("update", b"a"), ("get",)),
        (("update", np.array([5])), ("get",)),
        name="value, iterables for tuples",
    ),
    value(
        "a string, b string",
        (("update", "xy"), ("get",)),
        name="value, a text for its characters",
    ),
    value(
        "n long, s string",
        (*_LOOK, ("update", (1, "a")), *_LOOK),
        (*_LOOK, ("update", (2, None)), ("update", (3, "c")), ("get",)),
        (("clear",), *_LOOK, ("clear",), ("update", (4, "d")), ("get",)),
        _LOOK,
        name="value, every method, DDL",
    ),
    value(
        _COUNT,
        (("update", (7,)), ("clear",), *_LOOK),
        (*_LOOK, ("update", (8,)), ("get",)),
        (("clear",), *_LOOK),
        (*_LOOK,),
        name="value, cleared in the batch that wrote it, StructType",
    ),
    value(
        "n int, s string, d double",
        (("update", (None, None, None)), *_LOOK),
        (*_LOOK, ("update", (None, "", float("nan"))), ("get",)),
        (*_LOOK, ("update", (0, None, float("-inf"))), ("get",)),
        (("get",),),
        name="value, nulls in all fields",
    ),
    value(
        _EVERYTHING,
        (("update", _FULL), ("get",)),
        (("get",), ("update", (None,) * len(_FULL)), ("get",)),
        (("get",), ("update", _FULL)),
        (("get",),),
        name="value, every type",
    ),
    value(
        _DEEP,
        (("update", ("a", (True, [(1,), (None,)]), [["x"], [], None], {"k": [1, None]})), ("get",)),
        (("get",), ("update", ("b", None, None, {})), ("get",)),
        (("get",), ("update", ("c", Row(flag=None, points=[Row(x=3)]), [], None)), ("get",)),
        (("get",),),
        name="value, nested",
    ),
    value(
        "p struct<x: int, y: string>",
        (("update", (_POINT(1, "a"),)), ("get",)),
        (("get",), ("update", (Row(x=2, y="b"),)), ("get",)),
        (("get",), ("update", ({"x": 3, "y": "c"},)), ("get",)),
        (("get",),),
        name="value, a struct as named tuple, Row and dict",
    ),
    value(
        "s string, y binary",
        (("update", lambda: ("x" * 2_000_000, b"\x07" * 500_000)), ("exists",)),
        (("get",), ("update", lambda: ("y" * 300_000, None))),
        (("get",),),
        name="value, megabytes",
    ),
    value(
        "a decimal(38,18), b decimal(5,0), c decimal(10,2)",
        (
            (
                "update",
                (
                    Decimal("12345678901234567890.123456789012345678"),
                    Decimal(-99999),
                    Decimal("1.5"),
                ),
            ),
            ("get",),
        ),
        (("get",), ("update", (Decimal("0"), Decimal("-0"), Decimal("1E+3"))), ("get",)),
        (("get",),),
        name="value, decimals of other scales",
    ),
    value(
        "m map<string, struct<a: int, b: array<date>>>, e map<string, string>",
        (("update", ({"k": (1, [date(2024, 1, 1), None])}, {})), ("get",)),
        (("get",), ("update", ({"z": (None, None), "a": (2, [])}, {"n": None}))),
        (("get",), ("update", (None, {"2": "b"})), ("get",)),
        (("get",),),
        name="value, maps of structs",
    ),
    value(
        "i int, l long, d double",
        (("update", [1, 2, 3.0]), ("get",)),
        (("get",), ("update", Row(i=4, l=5, d=6.5)), ("get",)),
        (("get",), ("update", (np.int32(7), np.int64(8), np.float64(0.5))), ("get",)),
        (("get",),),
        name="value, given as list, Row and numpy scalars",
    ),
)

_LISTS = (
    lists(
        "n int, s string",
        (
            *_LOOK,
            ("appendValue", (1, "a")),
            *_LOOK,
            ("appendList", [(2, "b"), (3, None)]),
            ("get",),
        ),
        (("get",), ("put", [(9, "z"), (8, "y")]), *_LOOK, ("appendValue", (7, "x")), ("get",)),
        (
            ("first",),
            ("pairs",),
            ("clear",),
            *_LOOK,
            ("clear",),
            ("appendValue", (5, "n")),
            ("get",),
        ),
        _LOOK,
        name="list, every method",
    ),
    lists(
        "s string",
        (("appendValue", "a"), ("appendList", "bc"), ("get",)),
        (("put", ["d", frozenset("e")]), ("get",)),
        name="list, characters and other iterables for tuples",
    ),
    lists(
        "n int",
        (("appendList", [(n,) for n in range(250)]), ("get",), ("pairs",)),
        (("appendList", [(n,) for n in range(250, 501)]), ("first",)),
        (("get",), ("pairs",)),
        name="list, longer than a page",
    ),
    lists(
        _DEEP,
        (("put", [("a", (None, []), [], {}), ("b", None, None, None)]), ("get",)),
        (("appendValue", ("c", (True, [(1,)]), [["x", None]], {"k": []})), ("get",)),
        (("get",),),
        name="list, nested",
    ),
    lists(
        "n int, s string",
        (("appendValue", (None, None)), ("appendList", [(None, "a"), (1, None)]), ("get",)),
        (*_LOOK, ("put", [(None, None)]), *_LOOK),
        (*_LOOK,),
        name="list, nulls in the elements",
    ),
    lists(
        "n int",
        (
            ("put", [(1,), (2,)]),
            ("put", [(3,)]),
            ("get",),
            ("clear",),
            ("appendValue", (4,)),
            ("get",),
        ),
        (("appendValue", (5,)), ("put", [(6,)]), ("appendValue", (7,)), ("get",)),
        (("get",), ("clear",)),
        _LOOK,
        name="list, put after append after clear",
    ),
    lists(
        _EVERYTHING,
        (("appendList", [_FULL, (None,) * len(_FULL)]), ("get",)),
        (("appendValue", _FULL), ("get",)),
        name="list, every type",
    ),
    lists(
        "n int, s string",
        (("appendValue", (1, "same")), ("appendValue", (1, "same")), ("get",)),
        (("appendList", [(1, "same")] * 3), ("get",)),
        (("get",), ("put", lambda: [(2, "x" * 200_000)] * 3)),
        (("get",),),
        name="list, equal elements and large ones",
    ),
)

_MAPS = (
    maps(
        "key string",
        "s string",
        (("updateValue", "a", "x"), ("updateValue", "b", {"y"}), ("getValue", "a"), *_SEE),
        (("containsKey", "b"), ("removeKey", "a"), ("removeKey", "c"), *_SEE),
        (("updateValue", lambda: (c for c in "d"), np.array(["z"])), ("getValue", ("d",))),
        name="map, characters and other iterables for tuples",
    ),
    maps(
        "key string",
        "n int, s string",
        (
            *_SEE,
            ("getValue", ("a",)),
            ("containsKey", ("a",)),
            ("updateValue", ("a",), (1, "x")),
            *_SEE,
        ),
        (
            ("getValue", ("a",)),
            ("containsKey", ("a",)),
            ("updateValue", ("b",), (2, None)),
            ("updateValue", ("a",), (3, "y")),
            *_SEE,
        ),
        (
            ("removeKey", ("a",)),
            ("removeKey", ("nobody",)),
            ("getValue", ("a",)),
            ("containsKey", ("b",)),
            *_SEE,
        ),
        (("clear",), *_SEE, ("clear",), ("updateValue", ("c",), (4, "")), *_SEE),
        name="map, every method",
    ),
    maps(
        "a int, b struct<x: date, y: array<string>>",
        "n long",
        (
            ("updateValue", (1, (date(2024, 1, 1), ["p", None])), (1,)),
            ("updateValue", (1, (date(2024, 1, 1), [])), (2,)),
            *_SEE,
        ),
        (
            ("getValue", (1, (date(2024, 1, 1), ["p", None]))),
            ("containsKey", (1, (date(2024, 1, 1), []))),
        ),
        (
            ("removeKey", (1, (date(2024, 1, 1), []))),
            ("containsKey", (1, None)),
            ("updateValue", (1, None), (3,)),
            *_SEE,
        ),
        (*_SEE,),
        name="map, keys of several fields, nested",
    ),
    maps(
        "k string",
        _DEEP,
        (
            ("updateValue", ("a",), ("n", (True, [(1,), (2,)]), [["x"]], {"k": [1]})),
            ("getValue", ("a",)),
        ),
        (("updateValue", ("b",), (None, None, None, None)), *_SEE),
        (("getValue", ("b",)), ("getValue", ("a",))),
        name="map, nested values",
    ),
    maps(
        "k string",
        "n int",
        (("updateValue", ("",), (None,)), ("updateValue", (None,), (1,)), *_SEE),
        (
            ("containsKey", ("",)),
            ("containsKey", (None,)),
            ("getValue", (None,)),
            ("getValue", ("",)),
        ),
        (("removeKey", (None,)), *_SEE),
        (("removeKey", ("",)), *_SEE),
        name="map, null as key and in values",
    ),
    maps(
        "n int",
        "n int",
        (*(("updateValue", (n,), (n * n,)) for n in range(-60, 70)), ("keys",)),
        (*(("removeKey", (n,)) for n in range(-60, 0, 2)), ("keys",), ("values",)),
        (("iterator",), ("getValue", (-1,)), ("getValue", (-2,))),
        (("clear",), *_SEE),
        name="map, more entries than a page",
    ),
    maps(
        "y binary, c decimal(10,2), ts timestamp, d double",
        _EVERYTHING,
        (("updateValue", (b"\x00", Decimal("1.50"), datetime(2024, 1, 1), 0.5), _FULL), *_SEE),
        (
            ("getValue", (b"\x00", Decimal("1.50"), datetime(2024, 1, 1), 0.5)),
            ("containsKey", (b"", Decimal("1.5"), None, None)),
        ),
        (*_SEE,),
        name="map, every type",
    ),
    maps(
        "k string",
        "n int",
        (
            ("updateValue", ("a",), (1,)),
            ("removeKey", ("a",)),
            ("exists",),
            ("updateValue", ("a",), (2,)),
            ("getValue", ("a",)),
        ),
        (
            ("removeKey", ("a",)),
            ("updateValue", ("b",), (3,)),
            ("clear",),
            ("updateValue", ("c",), (4,)),
            *_SEE,
        ),
        (*_SEE, ("clear",)),
        (*_SEE,),
        name="map, removed and written again",
    ),
)

IN_ROWS = {
    "value": _VALUES,
    "list": _LISTS,
    "map": _MAPS,
}

_FROM_PANDAS = (
    value(
        "n int, ts timestamp, xs array<int>",
        (("update", (np.int64(3), pd.Timestamp("2024-01-01 00:00:01"), [np.int32(1)])), ("get",)),
        (("get",),),
        name="value, pandas' own scalars",
    ),
    lists(
        "f float, s string",
        (("appendList", [(np.float32(0.5), "a"), (np.float64(2.25), None)]), ("get",)),
        (("put", [(float("nan"), "n"), (None, "n")]), ("get",)),
        (("get",),),
        name="list, numpy floats and NaN",
    ),
    maps(
        "n long",
        "m map<string, int>",
        (("updateValue", (np.int64(1),), ({"a": np.int64(5)},)), *_SEE),
        (("getValue", (1,)), ("containsKey", (np.int16(1),)), ("removeKey", (np.int64(1),)), *_SEE),
        name="map, numpy keys",
    ),
)


def _picked(*names: str) -> tuple[Script, ...]:
    every = {script.name: script for kind in IN_ROWS.values() for script in kind}
    return tuple(every[name] for name in names)


IN_PANDAS = {
    "all kinds": (
        *_FROM_PANDAS,
        *_picked(
            "value, every method, DDL",
            "value, every type",
            "value, nested",
            "list, every method",
            "list, longer than a page",
            "list, every type",
            "map, every method",
            "map, keys of several fields, nested",
            "map, nested values",
        ),
    ),
}

_AGAIN = (("get",), ("exists",))

EXPIRING = (
    value(
        "n int",
        (("update", (1,)), *_LOOK),
        _LOOK,
        (("update", (2,)), *_LOOK),
        _LOOK,
        name="value that expires",
        ttl_ms=AT_ONCE_MS,
    ),
    value(
        "n int",
        (("update", (1,)), *_LOOK),
        _LOOK,
        (("update", (2,)), *_LOOK),
        (("clear",), *_LOOK),
        name="value that lives long",
        ttl_ms=NEVER_MS,
    ),
    value(
        "n int, s string",
        (("update", (1, "a")),),
        _LOOK,
        (("clear",), *_LOOK),
        _LOOK,
        name="value that expires, then cleared",
        ttl_ms=AT_ONCE_MS,
    ),
    lists(
        "n int",
        (("put", [(1,), (2,)]), *_LOOK),
        (*_LOOK, ("appendValue", (3,)), *_LOOK),
        (*_LOOK, ("put", [(4,)]), *_LOOK),
        _LOOK,
        name="list that expires",
        ttl_ms=AT_ONCE_MS,
    ),
    lists(
        "n int",
        (("appendList", [(1,), (2,)]), *_LOOK),
        (("appendValue", (3,)), *_LOOK),
        (("first",), ("pairs",), ("clear",), *_LOOK),
        _LOOK,
        name="list that lives long",
        ttl_ms=NEVER_MS,
    ),
    maps(
        "k string",
        "n int",
        (("updateValue", ("a",), (1,)), *_SEE),
        (
            ("getValue", ("a",)),
            ("containsKey", ("a",)),
            *_SEE,
            ("updateValue", ("b",), (2,)),
            *_SEE,
        ),
        (("removeKey", ("b",)), *_SEE),
        _SEE,
        name="map that expires",
        ttl_ms=AT_ONCE_MS,
    ),
    maps(
        "k string",
        "n int",
        (("updateValue", ("a",), (1,)), *_SEE),
        (("updateValue", ("b",), (2,)), *_SEE),
        (("removeKey", ("a",)), *_SEE),
        (("clear",), *_SEE),
        name="map that lives long",
        ttl_ms=NEVER_MS,
    ),
)

"""The Arrow types that a field of a columnar operator may have, and how a checkpoint tells them.

They are those that Spark has too, so that state can be shown as rows, and those only that mean the
same in every version of Arrow. A description is JSON and never changes:

    "int64", "float32", "string", ...        ["decimal", precision, scale]
    ["list", item]                           ["vector", item, size]: a list of a fixed size
    ["struct", [[name, type], ...]]
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

__all__ = ["JsonType", "described", "is_plain", "refusal", "type_of", "widens"]

JsonType: TypeAlias = Any

_SIMPLE: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "duration": pa.duration("us"),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}
_WITHOUT_WIDTH = ("bool", "string", "binary")

_WIDER: dict[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64", "float32", "float64"),
    "int16": ("int32", "int64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "float32": ("float64",),
    "date": (),
}
"""What holds every value of a type exactly."""


def refusal(kind: pa.DataType, nested: bool = False) -> str | None:
    """Why values of this type can't be kept, or None."""
    if kind in _NAMES or pa.types.is_decimal128(kind):
        return None
    if pa.types.is_fixed_size_list(kind):
        if nested or not is_plain(kind.value_type):
            return (
                "a list of a fixed size is kept at the top, of numbers or times; use "
                "pa.list_(item) without a size"
            )
        if not kind.list_size:
            return "a list of size 0 has nothing to keep; use pa.list_(item) without a size"
        return None
    if pa.types.is_list(kind):
        return refusal(kind.value_type, nested=True)
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return "a struct without fields has nothing to keep"
        return next(filter(None, (refusal(child.type, nested=True) for child in kind)), None)
    return f"use one that Spark has too{_instead(kind)}"


def _instead(kind: pa.DataType) -> str:
    for is_kind, instead in (
        (pa.types.is_unsigned_integer, "a signed integer that is wide enough"),
        (pa.types.is_timestamp, 'pa.timestamp("us", tz="UTC"), or pa.timestamp("us")'),
        (pa.types.is_duration, 'pa.duration("us")'),
        (pa.types.is_date64, "pa.date32()"),
        (pa.types.is_large_string, "pa.string()"),
        (pa.types.is_large_binary, "pa.binary()"),
        (pa.types.is_large_list, "pa.list_(item)"),
        (pa.types.is_float16, "pa.float32()"),
        (pa.types.is_map, "a list of structs of key and value"),
    ):
        if is_kind(kind):
            return f": {instead}"
    return ""


def is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow and numpy lay out values of this type alike, side by side."""
    return kind in _NAMES and _NAMES[kind] not in _WITHOUT_WIDTH


def described(kind: pa.DataType) -> JsonType:
    """A type that is not refused, as a checkpoint tells it."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal128(kind):
        return ["decimal", kind.precision, kind.scale]
    if pa.types.is_fixed_size_list(kind):
        return ["vector", described(kind.value_type), kind.list_size]
    if pa.types.is_list(kind):
        return ["list", described(kind.value_type)]
    return ["struct", [[child.name, described(child.type)] for child in kind]]


def type_of(kind: JsonType) -> pa.DataType:
    """The type of a description."""
    if isinstance(kind, str):
        return _SIMPLE[kind]
    name, *parts = kind
    if name == "decimal":
        return pa.decimal128(*parts)
    if name == "vector":
        return pa.list_(type_of(parts[0]), parts[1])
    if name == "list":
        return pa.list_(type_of(parts[0]))
    return pa.struct([(child, type_of(inner)) for child, inner in parts[0]])


def widens(old: JsonType, new: JsonType) -> bool:
    """Whether every value of the old type is one of the new type, exactly."""
    if old == new:
        return True
    if isinstance(old, str) and isinstance(new, str):
        return new in _WIDER.get(old, ())
    if isinstance(old, str) or isinstance(new, str):
        return False
    if old[0] == new[0] == "decimal":
        return bool(new[2] >= old[2] and new[1] - new[2] >= old[1] - old[2])
    if old[0] == new[0] == "vector":
        return bool(old[2] == new[2] and widens(old[1], new[1]))
    return bool(old[0] == new[0] == "list" and widens(old[1], new[1]))

"""Tells when one list, set, dict or object is in two places of a key's state.

Python would change both places at once, but storage keeps two copies, so that the results would
depend on where batches end. Only types that can be changed matter, and only where two of them
could be one: with a single dict of plain lists there is nothing to look for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import msgspec.inspect as mi

__all__ = ["sharing_check"]

_IMMUTABLE = (
    *(mi.NoneType, mi.BoolType, mi.IntType, mi.FloatType, mi.StrType, mi.BytesType),
    *(mi.DateTimeType, mi.DateType, mi.TimeType, mi.TimeDeltaType, mi.DecimalType, mi.UUIDType),
    *(mi.EnumType, mi.LiteralType),
)
_FLAT, _NESTED = 1, 2

Check = Callable[[Mapping[str, Iterable[Any]]], str | None]


def sharing_check(types: Mapping[str, Any]) -> Check | None:
    """A function that names the two places by their dicts, for values of these types.

    It is given the values of each dict. None when nothing can be shared.
    """
    depths = {name: _depth(mi.type_info(kind), frozenset()) for name, kind in types.items()}
    changing = {name: depth for name, depth in depths.items() if depth}
    if not changing or (len(changing) == 1 and _NESTED not in changing.values()):
        return None

    def check(values: Mapping[str, Iterable[Any]]) -> str | None:
        seen: dict[int, str] = {}
        for name, depth in changing.items():
            for value in values[name]:
                for part in _changeable(value) if depth == _NESTED else (value,):
                    if id(part) in seen:
                        return f"{seen[id(part)]} and {name}" if seen[id(part)] != name else name
                    seen[id(part)] = name
        return None

    return check


def _depth(info: mi.Type, inside: frozenset[type]) -> int:
    """0: can't be changed; 1: can, and holds nothing that can; 2: holds something that can."""
    while isinstance(info, mi.Metadata):
        info = info.type
    if isinstance(info, _IMMUTABLE):
        return 0
    if isinstance(info, mi.UnionType):
        return max(_depth(part, inside) for part in info.types)
    if isinstance(info, mi.TupleType):
        return _held(map(lambda part: _depth(part, inside), info.item_types), False)
    if isinstance(info, mi.VarTupleType):
        return _held([_depth(info.item_type, inside)], False)
    if isinstance(info, mi.ListType):
        return _held([_depth(info.item_type, inside)], True)
    if isinstance(info, mi.DictType):
        return _held([_depth(info.value_type, inside)], True)
    if isinstance(info, mi.DataclassType | mi.StructType | mi.TypedDictType | mi.NamedTupleType):
        if info.cls in inside:
            return _NESTED
        parts = [_depth(part.type, inside | {info.cls}) for part in info.fields]
        return _held(parts, not isinstance(info, mi.NamedTupleType))
    return 0 if isinstance(info, mi.FrozenSetType) else _FLAT  # members of sets are immutable


def _held(parts: Iterable[int], changeable: bool) -> int:
    return _NESTED if any(parts) else _FLAT if changeable else 0


def _changeable(value: Any) -> Iterator[Any]:
    """Everything in a value that can be changed, the value itself included, again if met again."""
    waiting, opened = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, str | bytes | int | float | None):
            continue
        inner = _inside(part)
        if inner is None:
            continue
        if not isinstance(part, tuple):
            yield part
            if id(part) in opened:  # shared, or in itself
                continue
            opened.add(id(part))
        waiting.extend(inner)


def _inside(part: Any) -> Iterable[Any] | None:
    """What a container or object holds; None for a value without parts that can't be changed."""
    if isinstance(part, list | tuple):
        return part
    if isinstance(part, dict):
        return part.values()
    if isinstance(part, set | bytearray):
        return ()
    if dataclasses.is_dataclass(part):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    if isinstance(part, msgspec.Struct):
        return [getattr(part, name) for name in part.__struct_fields__]
    return None

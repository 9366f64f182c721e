"""What a state field may hold: types that come back from storage as they went in.

msgspec can encode far more than it can give back unchanged: `Any` loses its classes, a
`defaultdict` its factory, a custom class everything. So a field's type is walked when the
operator is defined, and a value that fails to fit is walked against it to name the very part that
is wrong.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable
from typing import Any, cast

import msgspec.inspect as mi
import numpy as np

__all__ = [
    "SCALAR_TYPES",
    "JsonType",
    "bare",
    "classes",
    "clear_caches",
    "describe",
    "misfit",
    "python_type",
    "refusal",
    "type_text",
]

JsonType = Any  # a str, or a list of str and such lists

_SCALARS: dict[type[mi.Type], tuple[str, type]] = {
    mi.NoneType: ("None", type(None)),
    mi.BoolType: ("bool", bool),
    mi.IntType: ("int", int),
    mi.FloatType: ("float", float),
    mi.StrType: ("str", str),
    mi.BytesType: ("bytes", bytes),
    mi.ByteArrayType: ("bytearray", bytearray),
    mi.DateTimeType: ("datetime", dt.datetime),
    mi.DateType: ("date", dt.date),
    mi.TimeType: ("time", dt.time),
    mi.TimeDeltaType: ("timedelta", dt.timedelta),
    mi.DecimalType: ("Decimal", decimal.Decimal),
    mi.UUIDType: ("UUID", uuid.UUID),
}
SCALAR_TYPES = {name: None if name == "None" else python for name, python in _SCALARS.values()}
_COLLECTIONS: dict[type[mi.Type], tuple[str, type]] = {
    mi.ListType: ("list", list),
    mi.SetType: ("set", set),
    mi.FrozenSetType: ("frozenset", frozenset),
    mi.VarTupleType: ("tuple", tuple),
}
_RECORD = mi.DataclassType | mi.NamedTupleType | mi.StructType | mi.TypedDictType
_RECORDS: dict[type[mi.Type], str] = {
    mi.DataclassType: "dataclass",
    mi.NamedTupleType: "namedtuple",
    mi.StructType: "struct",
    mi.TypedDictType: "typeddict",
}


def bare(info: mi.Type) -> mi.Type:
    """The type without the wrapper msgspec puts around one that carries extra JSON schema."""
    while isinstance(info, mi.Metadata):
        info = info.type
    return info


def type_text(hint: Any) -> str:
    """A type as the user wrote it, near enough: `int`, `dict[str, int]`, `int | None`."""
    if isinstance(hint, type) and not hasattr(hint, "__args__"):
        return hint.__qualname__.rsplit("<locals>.", 1)[-1]
    return str(hint).replace("typing.", "")


def python_type(info: mi.Type) -> type | None:
    """The exact type that values have; None if there may be several."""
    info = bare(info)
    if isinstance(info, mi.UnionType | mi.LiteralType | mi.EnumType):
        return None  # an Enum may give its members classes of their own
    if isinstance(info, mi.DictType | mi.TypedDictType):
        return dict
    if isinstance(info, mi.TupleType):
        return tuple
    if isinstance(info, mi.DataclassType | mi.NamedTupleType | mi.StructType):
        return info.cls
    entry = _SCALARS.get(type(info)) or _COLLECTIONS.get(type(info))
    return entry[1] if entry else None


def classes(info: mi.Type) -> set[type]:
    """The user's classes that the type is made of."""
    user_classes: set[type] = set()
    pending = [info]
    while pending:
        part = bare(pending.pop())
        if isinstance(part, mi.EnumType):
            user_classes.add(part.cls)
        elif isinstance(part, mi.UnionType):
            pending.extend(part.types)
        elif isinstance(part, mi.TupleType):
            pending.extend(part.item_types)
        elif isinstance(part, mi.DictType):
            pending.extend((part.key_type, part.value_type))
        elif isinstance(part, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
            pending.append(part.item_type)
        elif isinstance(part, _RECORD) and part.cls not in user_classes:
            user_classes.add(part.cls)
            pending.extend(field.type for field in part.fields)
    return user_classes


def clear_caches(kinds: Iterable[type]) -> None:
    """Take off what msgspec keeps on Enums and dataclasses: pickle fails on a class with it.

    Decoders made before have their own reference.
    """
    for cls in kinds:
        if "__msgspec_cache__" in vars(cls):
            del cls.__msgspec_cache__  # type: ignore[attr-defined]


# --- may this type be stored? -----------------------------------------------------------------


def refusal(info: mi.Type) -> str | None:
    """Why a type can't be stored, or None when it can."""
    return _refusal(info, False, set())


def _refusal(info: mi.Type, hashable: bool, seen: set[type]) -> str | None:
    info = bare(info)
    kind = type(info)
    if kind in _SCALARS:
        if hashable and kind is mi.ByteArrayType:
            return "a bytearray can't be a dict key or a set member; use bytes"
        return None
    if isinstance(info, mi.EnumType | mi.LiteralType):
        return None
    if isinstance(info, mi.AnyType):
        return (
            "its values could be of any type and would not come back from storage as they were; "
            "say what it holds, for example dict[str, int]"
        )
    if isinstance(info, mi.UnionType):
        return _first(_refusal(part, hashable, seen) for part in info.types)
    if hashable and isinstance(info, mi.ListType | mi.SetType | mi.DictType):
        return "a list, set or dict can't be a dict key or a set member; use a tuple or frozenset"
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        inner = hashable or isinstance(info, mi.SetType | mi.FrozenSetType)
        return _refusal(info.item_type, inner, seen)
    if isinstance(info, mi.TupleType):
        return _first(_refusal(part, hashable, seen) for part in info.item_types)
    if isinstance(info, mi.DictType):
        return _refusal(info.key_type, True, seen) or _refusal(info.value_type, False, seen)
    if isinstance(info, _RECORD):
        return _record_refusal(info, hashable, seen)
    if isinstance(info, mi.CustomType):
        return f"{type_text(info.cls)} is not a type Braided can store; {_ADVICE}"
    return f"{kind.__name__.removesuffix('Type')} is not a type Braided can store; {_ADVICE}"


_ADVICE = (
    "use scalars, str, bytes, datetime, Decimal, UUID, Enum, list, tuple, set, dict, "
    "or dataclasses of these"
)


def _record_refusal(
    info: _RECORD,
    hashable: bool,
    seen: set[type],
) -> str | None:
    if hashable and not isinstance(info, mi.NamedTupleType):
        return (
            f"{type_text(info.cls)} can't be a dict key or a set member; use a tuple or NamedTuple"
        )
    if info.cls in seen:  # a type that contains itself was looked at further up
        return None
    seen.add(info.cls)
    for field in info.fields:
        reason = _refusal(field.type, hashable, seen)
        if reason:
            return f"{type_text(info.cls)}.{field.name}: {reason}"
    return None


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason), None)


# --- a stable description ---------------------------------------------------------------------


def describe(info: mi.Type) -> JsonType:
    """The type as JSON: the same for the same type in every process and version of Python."""
    return _describe(info, ())


def _describe(info: mi.Type, inside: tuple[type, ...]) -> JsonType:
    info = bare(info)
    kind = type(info)
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    if isinstance(info, mi.EnumType):
        return ["enum", info.cls.__name__, [[m.name, m.value] for m in info.cls]]
    if isinstance(info, mi.LiteralType):
        return ["literal", *info.values]
    if isinstance(info, mi.UnionType):
        parts = [_describe(part, inside) for part in info.types]
        return ["union", *sorted(parts, key=str)]
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        name = "vartuple" if kind is mi.VarTupleType else _COLLECTIONS[kind][0]
        return [name, _describe(info.item_type, inside)]
    if isinstance(info, mi.TupleType):
        return ["tuple", *(_describe(part, inside) for part in info.item_types)]
    if isinstance(info, mi.DictType):
        return ["dict", _describe(info.key_type, inside), _describe(info.value_type, inside)]
    if isinstance(info, _RECORD):
        if info.cls in inside:
            return ["ref", info.cls.__name__]
        fields = [
            [getattr(f, "encode_name", f.name), _describe(f.type, (*inside, info.cls))]
            for f in info.fields
        ]
        named: list[Any] = [_RECORDS[kind], info.cls.__name__, fields]
        if isinstance(info, mi.StructType) and (info.array_like or info.tag is not None):
            named.append({"array_like": info.array_like, "tag": info.tag})
        return named
    raise TypeError(f"{kind.__name__} is not a storable type")  # refusal() comes first


# --- where does a value not fit? --------------------------------------------------------------


def misfit(info: mi.Type, value: Any, path: str = "") -> tuple[str, Any] | None:
    """The path to and value of the first part that does not fit the type, or None.

    Stricter than decoding: a tuple in a list field, or the text of a date in a date field, would
    be another type after the next batch boundary, and so the operator would behave differently
    depending on where batches end.
    """
    info = bare(info)
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(info)
    if kind in _SCALARS:
        return None if _scalar_fits(kind, value) else (path, value)
    if isinstance(info, mi.EnumType):
        return None if isinstance(value, info.cls) else (path, value)
    if isinstance(info, mi.LiteralType):
        fits = any(type(value) is type(v) and value == v for v in info.values)
        return None if fits else (path, value)
    if isinstance(info, mi.UnionType):
        misfits = [misfit(part, value, path) for part in info.types]
        if None in misfits:
            return None
        # Of several ways not to fit, the one that got furthest in says most.
        return max((f for f in misfits if f), key=lambda f: len(f[0]))
    if isinstance(info, mi.TupleType):
        if type(value) is not tuple or len(value) != len(info.item_types):
            return path, value
        return _first_misfit(zip(info.item_types, value, _paths(path, len(value)), strict=True))
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        if type(value) is not _COLLECTIONS[kind][1]:
            return path, value
        item, items = info.item_type, list(cast("Iterable[Any]", value))
        ordered = isinstance(value, list | tuple)
        paths = _paths(path, len(items)) if ordered else [path + "{…}"] * len(items)
        return _first_misfit((item, v, p) for v, p in zip(items, paths, strict=True))
    if isinstance(info, mi.DictType):
        if type(value) is not dict:
            return path, value
        return _first_misfit((info.key_type, k, f"{path} key") for k in value) or _first_misfit(
            (info.value_type, v, f"{path}[{k!r}]") for k, v in value.items()
        )
    if isinstance(info, mi.TypedDictType):
        if type(value) is not dict or not value.keys() <= {f.name for f in info.fields}:
            return path, value
        return _first_misfit(
            (f.type, value[f.name], f"{path}[{f.name!r}]") for f in info.fields if f.name in value
        )
    if isinstance(info, mi.DataclassType | mi.NamedTupleType | mi.StructType):
        if type(value) is not info.cls:
            return path, value
        return _first_misfit(
            (f.type, getattr(value, f.name, None), f"{path}.{f.name}") for f in info.fields
        )
    return path, value


def _scalar_fits(kind: type[mi.Type], value: Any) -> bool:
    if kind is mi.IntType:
        return type(value) is int and -(2**63) <= value < 2**64
    if kind is mi.FloatType:
        # An int is a fine float (`self.total = 0`) as long as msgpack has room for it.
        return type(value) is float or (type(value) is int and -(2**63) <= value < 2**64)
    return type(value) is _SCALARS[kind][1]


def _paths(path: str, count: int) -> list[str]:
    return [f"{path}[{i}]" for i in range(count)]


def _first_misfit(parts: Iterable[tuple[mi.Type, Any, str]]) -> tuple[str, Any] | None:
    for info, value, path in parts:
        wrong = misfit(info, value, path)
        if wrong:
            return wrong
    return None

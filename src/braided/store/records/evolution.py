"""Changes of an operator's fields between starts: which are fine, and how old records are read.

A checkpoint keeps the description of every version that the fields had. A record says in its first
byte by which of them it was written, and is read into the fields of today when its key comes up, be
it years later: nothing is rewritten at a start. So a change is judged against all versions there
were, not only the last.

Fields are matched by number, as columns are in a table format. A field keeps its number when it is
renamed, moved or widened; one that is dropped takes its number along, so that another of the same
name, added later, does not come to life with old values.

Widened means: whatever is stored decodes to an equal value of the new type.

    T -> T | None, A | B -> A | B | C          int -> float, where the number is exact
    Literal, Enum: more values                 the same inside of list, set, tuple and dict
    dataclass, NamedTuple, TypedDict, Struct: more fields, with defaults (in place: at the end)
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect as mi

from braided.errors import CheckpointMismatchError, start_anew
from braided.store.records.field_types import SCALAR_TYPES, JsonType, bare, describe

__all__ = ["FieldsNow", "evolved", "inexact", "narrows", "old_type", "same_fields", "text"]

_VERSIONS_MAX = 255  # a record's version is one byte


@dataclass(frozen=True)
class FieldsNow:
    """The fields of a class as it is now, and what their encoding makes of earlier ones."""

    described: str
    renames: Mapping[str, tuple[str, ...]]
    """Names that fields had before."""
    narrows: Callable[[JsonType, int], str | None]
    """Why stored values of a type may not fit the field at a position; None if all of them do."""
    text: Callable[[JsonType], object]
    """A stored type as one would write it."""
    how_to_upgrade: str
    """What a class may say that has no `upgrade`."""
    has_upgrade: bool


def evolved(now: FieldsNow, name: str, history: Sequence[str]) -> tuple[str, ...]:
    """The history with the fields of today as its newest version, if they are other ones.

    Raises CheckpointMismatchError, naming the operator, if records may be there that can't be read.
    """
    if same_fields(history[-1], now.described):
        return tuple(history)
    described, wrong = _numbered(now.described, history, now.renames)
    if not now.has_upgrade:
        wrong += _losses(now, described, history)
        if wrong:
            raise CheckpointMismatchError(
                f"operator {name!r} does not fit the state in this checkpoint: {'; '.join(wrong)}. "
                f"Change the fields back, or {now.how_to_upgrade}, or {start_anew(name)}"
            )
    if len(history) >= _VERSIONS_MAX:
        raise CheckpointMismatchError(
            f"the fields of operator {name!r} have had {_VERSIONS_MAX} versions in this "
            "checkpoint, which is as many as there may be; use a new checkpointLocation"
        )
    return (*history, described)


def _losses(now: FieldsNow, described: str, history: Sequence[str]) -> list[str]:
    """What of the versions there were can't be read into the fields of today."""
    today = {
        field["id"]: (field["name"], position)
        for position, field in enumerate(json.loads(described)["fields"])
    }
    last = json.loads(history[-1])["fields"]
    if last and not any(field["id"] in today for field in last):
        had = ", ".join(f"{field['name']}: {now.text(field['type'])}" for field in last)
        return [
            f"it has none of the fields that are stored ({had}), as if it were another operator"
        ]
    losses: dict[int, str] = {}
    for version in range(len(history), 0, -1):
        where = "" if version == len(history) else f" (in records of version {version})"
        for field in json.loads(history[version - 1])["fields"]:
            if field["id"] in today and field["id"] not in losses:
                name, position = today[field["id"]]
                reason = now.narrows(field["type"], position)
                if reason:
                    losses[field["id"]] = f"{name}: {reason}{where}"
    return list(losses.values())


_MAPPED = ("dataclass", "struct", "typeddict")
_GATHERED = {"list": mi.ListType, "set": mi.SetType, "frozenset": mi.FrozenSetType}


def same_fields(one: str, other: str) -> bool:
    """Whether two descriptions are of the same fields, whatever their numbers."""
    return _unnumbered(one) == _unnumbered(other)


def _unnumbered(description: str) -> list[tuple[str, JsonType]]:
    return [(field["name"], field["type"]) for field in json.loads(description)["fields"]]


def _numbered(
    now: str, history: Sequence[str], renames: Mapping[str, tuple[str, ...]]
) -> tuple[str, list[str]]:
    """The description `now` with the numbers its fields have after `history`, newest last.

    And what is wrong with the names, a sentence each. `renames` has the earlier names of fields.
    """
    last = {field["name"]: field["id"] for field in json.loads(history[-1])["fields"]}
    used = [field["id"] for old in history for field in json.loads(old)["fields"]]
    fresh = max(used, default=-1) + 1
    fields = json.loads(now)["fields"]
    unchanged = {field["name"] for field in fields} & last.keys()
    claimed = {name: name for name in unchanged}
    wrong = []
    for name, earlier in renames.items():
        candidates = [old for old in earlier if old in last and old not in claimed.values()]
        if name in unchanged or not last.keys() - set(claimed.values()):
            continue  # renamed long ago, or simply new: nothing is lost
        if candidates:
            claimed[name] = candidates[0]
        else:
            said = " or ".join(map(repr, earlier))
            wrong.append(
                f"{name} says it was {said}, and the checkpoint has no such field: it has "
                f"{', '.join(last)}; give renamed() the name it has there, or take renamed() away"
            )
    for field in fields:
        if field["name"] in claimed:
            field["id"] = last[claimed[field["name"]]]
        else:
            field["id"] = fresh
            fresh += 1
    return json.dumps({"fields": fields}, separators=(",", ":")), wrong


# --- does every stored value fit the new type? ------------------------------------------------


def narrows(old: JsonType, new: mi.Type, nested: bool = False) -> str | None:
    """Why values of the described type may not fit the new one; None if all of them do.

    `nested` in a record, where numbers stay what they are: see `inexact`.
    """
    new = bare(new)
    if old == describe(new):
        return None
    name, parts = (old, []) if isinstance(old, str) else (old[0], old[1:])
    if name == "union":
        return _first(narrows(part, new, nested) for part in parts)
    if isinstance(new, mi.UnionType):
        reasons = [narrows(old, part, nested) for part in new.types]
        return None if None in reasons else max(filter(None, reasons), key=len)
    if name == "int" and isinstance(new, mi.FloatType) and not nested:
        return None
    if name == "literal":
        return _literal(parts, new)
    target = describe(new)
    kind = target if isinstance(target, str) else target[0]
    if name == kind and name in (*_MAPPED, "namedtuple"):
        return _record(old, new)
    if name == "enum" and isinstance(new, mi.EnumType):
        return _enum(parts[1], new)
    inside = _inside(name, len(parts), new)
    if inside is None:
        return f"{text(old)} became {text(target)}"
    return _first(narrows(part, now, nested) for part, now in zip(parts, inside, strict=True))


def _inside(name: str, width: int, new: mi.Type) -> Sequence[mi.Type] | None:
    """What the types in the old one are in the new one; None if they are there no longer."""
    if isinstance(new, mi.DictType) and name == "dict":
        return new.key_type, new.value_type
    if isinstance(new, mi.TupleType) and name == "tuple" and len(new.item_types) == width:
        return new.item_types
    if isinstance(new, mi.VarTupleType) and name in ("tuple", "vartuple"):
        return [new.item_type] * width
    for kind, info in _GATHERED.items():
        if name == kind and isinstance(new, info):
            return (new.item_type,)
    return None


def _literal(values: list[Any], new: mi.Type) -> str | None:
    plain = {str: mi.StrType, int: mi.IntType}
    if isinstance(new, mi.LiteralType):
        gone = [value for value in values if value not in new.values]
        return f"the literal {gone[0]!r} is gone" if gone else None
    if all(isinstance(new, plain.get(type(value), ())) for value in values):
        return None
    return f"{text(['literal', *values])} became {text(describe(new))}"


def _enum(members: list[list[Any]], new: mi.EnumType) -> str | None:
    now = {member.name: member.value for member in new.cls}
    for name, value in members:
        if value not in now.values():
            return f"{new.cls.__name__}.{name} ({value!r}) is gone"
        if now.get(name, value) != value:
            return f"{new.cls.__name__}.{name} was {value!r} and is {now[name]!r}"
    return None


def _record(old: JsonType, new: Any) -> str | None:
    """Nested records may get more fields with defaults; those they had stay as they were."""
    owner = new.cls.__name__
    target = describe(new)
    if old[3:] != target[3:]:
        return f"{owner} is encoded in another way (array_like, tag)"
    had = dict(map(tuple, old[2]))
    in_place = old[0] == "namedtuple" or (len(old) > 3 and old[3]["array_like"])
    if in_place and [name for name, _ in target[2]][: len(had)] != list(had):
        return f"{owner}: its fields are stored by place, so new ones come after {list(had)}"
    for (name, _), field in zip(target[2], new.fields, strict=True):
        if name not in had:
            if field.required:
                return f"{owner}.{name} is new and has no default"
            continue
        reason = narrows(had.pop(name), field.type, nested=True)
        if reason:
            return f"{owner}.{name}: {reason}"
    return f"{owner}.{next(iter(had))} is gone" if had else None


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason), None)


def text(kind: JsonType) -> str:
    """A described type as one would write it."""
    if isinstance(kind, str):
        return kind
    name, *parts = kind
    if name == "union":
        return " | ".join(map(text, sorted(parts, key=lambda part: part == "None")))
    if name in ("enum", "ref", "namedtuple", *_MAPPED):
        return str(parts[0])
    if name == "literal":
        return f"Literal{parts}"
    inside = ", ".join(map(text, parts))
    return f"tuple[{inside}, ...]" if name == "vartuple" else f"{name}[{inside}]"


# --- reading what was stored ------------------------------------------------------------------


def inexact(new: mi.Type, value: Any) -> int | None:
    """An int in a stored value that is no float of its size, where the new type wants floats."""
    new = bare(new)
    options = new.types if isinstance(new, mi.UnionType) else (new,)
    kinds = set(map(type, options))
    if type(value) is int:
        wanted = mi.FloatType in kinds and mi.IntType not in kinds
        return value if wanted and float(value) != value else None
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)
        for option in options:
            if isinstance(option, mi.TupleType):
                return _first_inexact(option.item_types, items)
            if isinstance(option, mi.VarTupleType | mi.ListType | mi.SetType | mi.FrozenSetType):
                return _first_inexact([option.item_type] * len(items), items)
    if type(value) is dict:
        for option in options:
            if isinstance(option, mi.DictType):
                inside = [option.key_type, option.value_type] * len(value)
                return _first_inexact(inside, [part for item in value.items() for part in item])
    return None


def _first_inexact(inside: Iterable[mi.Type], values: Iterable[Any]) -> int | None:
    numbers = (inexact(info, value) for info, value in zip(inside, values, strict=True))
    return next((number for number in numbers if number is not None), None)


def old_type(kind: JsonType) -> Any:
    """A type that described values decode to: dicts for records, values for Enums."""
    decoded = _old_type(kind)
    try:
        msgspec.msgpack.Decoder(decoded)
    except TypeError:  # a union of classes that can't be told apart without them
        return Any
    return decoded


def _old_type(kind: JsonType) -> Any:
    if isinstance(kind, str):
        return SCALAR_TYPES[kind]
    name, *parts = kind
    if name == "enum":
        return _union({type(value) for _, value in parts[1]})
    if name == "literal":
        return _union({type(value) for value in parts})
    if name == "union":
        return _union([_old_type(part) for part in parts])
    if name == "ref":
        return Any
    if name == "namedtuple" or (name == "struct" and len(parts) > 2 and parts[2]["array_like"]):
        return types.GenericAlias(tuple, tuple(_old_type(part) for _, part in parts[1]))
    if name in _MAPPED:
        fields = {field: _old_type(part) for field, part in parts[1]}
        return typing.TypedDict(parts[0], fields, total=False)  # type: ignore[operator]
    inside = tuple(_old_type(part) for part in parts)
    if name == "vartuple":
        return types.GenericAlias(tuple, (*inside, ...))
    collection = {"list": list, "set": set, "frozenset": frozenset, "tuple": tuple, "dict": dict}[
        name
    ]
    return types.GenericAlias(collection, inside)


def _union(parts: Iterable[Any]) -> Any:
    return typing.Union[tuple(parts)]  # noqa: UP007 - of a number that is not known here

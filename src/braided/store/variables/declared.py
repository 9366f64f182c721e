"""The state variables that a processor declares, and how they may change between starts.

A checkpoint has the description of every version there was, and each stored value begins with the
number of the version that wrote it. Variables are matched by name and keep their number. One that
is no longer declared keeps its state, as in Spark; one that was deleted (`deleteIfExists`) takes
its number along, so that another of that name starts with nothing.

What a value's schema may become is what Spark allows for state in Avro: fields are matched by name
and may come (as null), go and move; numbers may become wider. The same holds for nested structs.
Types are told as in Spark's JSON of a schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from braided.errors import CheckpointMismatchError

__all__ = ["Declaration", "Declared", "evolved", "widens"]

_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
}
_VERSIONS_MAX = 255


class Declaration(msgspec.Struct, frozen=True):
    """One state variable."""

    name: str
    kind: str
    """value, list or map"""
    schema: dict[str, Any]
    user_key: dict[str, Any] | None = None
    expires: bool = False
    number: int = 0


class Declared(msgspec.Struct, frozen=True):
    """What a processor declares."""

    variables: tuple[Declaration, ...] = ()
    deleted: tuple[str, ...] = ()
    """Names whose state is to go, if there is any."""
    retired: tuple[int, ...] = ()
    """Numbers of variables that were deleted."""
    kept: tuple[Declaration, ...] = ()
    """Variables of an earlier version that are not declared now."""

    def describe(self) -> str:
        """The declaration as a checkpoint keeps it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, text: str) -> Declared:
        """The declaration that `describe` wrote."""
        return msgspec.json.decode(text, type=cls)

    def numbered(self) -> Declared:
        """As the first version of a checkpoint."""
        variables = [
            msgspec.structs.replace(variable, number=number)
            for number, variable in enumerate(self.variables)
        ]
        return msgspec.structs.replace(self, variables=tuple(variables), deleted=())


def evolved(operator: str, now: Declared, history: Sequence[str]) -> tuple[str, ...]:
    """All versions, the one of now last; refuses a change that stored values do not fit."""
    last = Declared.read(history[-1])
    earlier = {each.name: each for each in (*last.variables, *last.kept)}
    gone = [earlier.pop(name).number for name in now.deleted if name in earlier]
    used = [each.number for old in map(Declared.read, history) for each in old.variables]
    fresh = max([*used, *last.retired], default=-1) + 1
    variables = []
    for variable in now.variables:
        before = earlier.pop(variable.name, None)
        if before is None:
            number, fresh = fresh, fresh + 1
        else:
            number = before.number
            for each in _versions(number, history):
                _check(operator, each, variable)
        variables.append(msgspec.structs.replace(variable, number=number))
    description = Declared(
        variables=tuple(variables),
        retired=(*last.retired, *gone),
        kept=tuple(earlier.values()),
    ).describe()
    if description == history[-1]:
        return tuple(history)
    if len(history) == _VERSIONS_MAX:
        raise CheckpointMismatchError(
            f"the state variables of processor {operator!r} have changed {_VERSIONS_MAX} times in "
            "this checkpoint, which is as often as it can tell apart; use a new checkpointLocation"
        )
    return (*history, description)


def _versions(number: int, history: Sequence[str]) -> list[Declaration]:
    """What a variable was: values of any version may still be stored."""
    every = [each for old in map(Declared.read, history) for each in old.variables]
    return [each for each in every if each.number == number]


def _check(operator: str, before: Declaration, now: Declaration) -> None:
    where = f"processor {operator!r}, state variable {now.name!r}"
    if before.kind != now.kind:
        raise CheckpointMismatchError(
            f"[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] {where}: it is {before.kind} state in "
            f"this checkpoint and is now declared as {now.kind} state. Give it another name, or "
            "delete the old one with handle.deleteIfExists first"
        )
    if before.expires != now.expires:
        had, has = ("a", "none") if before.expires else ("no", "one")
        raise CheckpointMismatchError(
            f"[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] {where}: it has {had} ttlDurationMs in "
            f"this checkpoint and now has {has}; what is stored can't be read the other way. "
            "Give it another name, or a new checkpointLocation"
        )
    if before.user_key is not None and now.user_key is not None:
        reason = _keys_differ(before.user_key, now.user_key)
        if reason:
            raise CheckpointMismatchError(
                f"[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] {where}: the keys of the map have "
                f"changed: {reason}. They must stay as they are, or the variable gets another name"
            )
    reason = widens(before.schema, now.schema)
    if reason:
        raise CheckpointMismatchError(
            f"[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] {where}: {reason}. Fields may be "
            "added, removed and moved, and numbers may become wider (int to long, float to "
            "double); for anything else give the variable another name"
        )


def _keys_differ(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    old = [field["type"] for field in before["fields"]]
    new = [field["type"] for field in now["fields"]]
    return None if old == new else f"{_text(before)} became {_text(now)}"


def widens(before: Any, now: Any) -> str | None:
    """Why values of one type can't be read as another; None if they can."""
    if before == now:
        return None
    if isinstance(before, str) or isinstance(now, str):
        if before in _WIDER and now in _WIDER[before]:
            return None
        old, new = _decimal(before), _decimal(now)
        if old is not None and new is not None and new[0] >= old[0] and new[1] == old[1]:
            return None
        return f"{_text(before)} became {_text(now)}"
    if before["type"] != now["type"]:
        return f"{_text(before)} became {_text(now)}"
    if before["type"] == "array":
        return widens(before["elementType"], now["elementType"])
    if before["type"] == "map":
        if before["keyType"] != now["keyType"]:
            return f"{_text(before)} became {_text(now)}"
        return widens(before["valueType"], now["valueType"])
    if before["type"] != "struct":
        return f"{_text(before)} became {_text(now)}"
    earlier = {field["name"]: field for field in before["fields"]}
    for field in now["fields"]:
        name, nullable = field["name"], field["nullable"]
        if name not in earlier:
            if not nullable:
                return f"field {name!r} is new and not null: stored values have none"
            continue
        reason = widens(earlier[name]["type"], field["type"])
        if reason:
            return f"field {name!r}: {reason}"
        if earlier[name]["nullable"] and not nullable:
            return f"field {name!r} became not null: stored values may be null"
    return None


def _decimal(kind: Any) -> tuple[int, int] | None:
    if not isinstance(kind, str) or not kind.startswith("decimal("):
        return None
    digits, scale = kind[len("decimal(") : -1].split(",")
    return int(digits), int(scale)


def _text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        inner = ", ".join(f"{field['name']} {_text(field['type'])}" for field in kind["fields"])
        return f"struct<{inner}>"
    return json.dumps(kind, separators=(",", ":"))

"""Records of earlier versions of an operator's fields, read into the fields of today.

Only keys that were not written since the change come this way, once each or until they change, so
it may be slow: a record is taken apart value by value, and each is decoded as the type it has now.

Without an `upgrade` hook fields are matched by their numbers, and `evolve` has made sure at the
start that all that can be stored fits. With one, the hook is given every older record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorError,
    StateValueError,
)
from braided.store.durable.store import UNREADABLE
from braided.store.records.evolution import (
    FieldsNow,
    evolved,
    inexact,
    narrows,
    old_type,
    text,
)
from braided.store.records.field_types import clear_caches, describe, misfit, type_text
from braided.store.records.state_fields import StateFields

__all__ = ["OldRecords", "evolve"]

_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_timers = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def evolve(state: StateFields, name: str, history: Sequence[str]) -> tuple[str, ...]:
    """The history with the fields of today as its newest version, if they are other ones.

    Raises CheckpointMismatchError, naming the operator, if records may be there that can't be read.
    """
    now = FieldsNow(
        described=state.describe(),
        renames={field.name: field.earlier for field in state.fields if field.earlier},
        narrows=lambda old, position: narrows(old, state.infos[position]),
        text=text,
        how_to_upgrade="say how old state becomes new with `@classmethod def upgrade(cls, old)`, "
        "which is given the stored fields as a dict and returns those of now",
        has_upgrade=state.upgrade is not None,
    )
    return evolved(now, name, history)


class _OldValue(NamedTuple):
    """Where the value of a field of today comes from."""

    position: int
    decode: Any
    decode_old: Any | None
    """Where an int became a float: decodes the int, to see that no digit is lost."""


class _OldVersion(NamedTuple):
    """How the records of one earlier version are read."""

    names: list[str]
    """What its fields are called in the dict that `upgrade` is given."""
    sources: list[_OldValue | None]
    """For every field of today; None: it has its default."""
    others: dict[int, Any]
    """Decoders of the fields that are not among the sources."""


class OldRecords:
    """Loads the records of earlier versions of some fields."""

    def __init__(self, state: StateFields, fresh: bytes, history: Sequence[str]) -> None:
        """`fresh` is the record of a key that has only defaults."""
        self._state = state
        self._history = [json.loads(version)["fields"] for version in history]
        self._versions: dict[int, _OldVersion] = {}
        defaults = _decode_parts(fresh[1:])
        self._defaults = [
            (default, msgspec.msgpack.Decoder(field.type).decode)
            for default, field in zip(defaults, state.fields, strict=False)
        ]

    def load(self, op: Any, raw: bytes) -> tuple[int, ...]:
        """As `StateCodec.load`, for a record that is not of the present version."""
        number = raw[0]
        if not 1 <= number < len(self._history):
            raise CheckpointVersionError(
                f"a state record of {self._state.operator} has version {number}, the checkpoint "
                f"knows {max(len(self._history), 1)}; a newer Braided wrote it, or another query"
            )
        version = self._versions.get(number)
        if version is None:
            version = self._versions[number] = self._read(number)
        try:
            stored = _decode_parts(raw[1:])
            if len(stored) != len(version.names) + 1:
                raise msgspec.DecodeError(
                    f"{len(stored) - 1} values for {len(version.names)} fields"
                )
            timers = _decode_timers(stored[-1])
            self._set(op, version, stored)
        except UNREADABLE as error:
            raise CheckpointMismatchError(
                f"a state record of {self._state.operator}, by version {number} of its fields, "
                f"can't be read: {error}"
            ) from error
        return timers

    def _read(self, number: int) -> _OldVersion:
        """How the records of a version are read, from its description."""
        state = self._state
        old = self._history[number - 1]
        positions = {field["id"]: position for position, field in enumerate(old)}
        names = [field["name"] for field in old]
        sources: list[_OldValue | None] = []
        for now, field, info in zip(self._history[-1], state.fields, state.infos, strict=True):
            position = positions.get(now["id"])
            if position is None:
                sources.append(None)
                continue
            kind = old[position]["type"]
            names[position] = field.name
            if narrows(kind, info) is not None:  # for an upgrade hook, which gets it as it was
                sources.append(None)
                continue
            was = None
            if kind != describe(info):
                was = msgspec.msgpack.Decoder(old_type(kind)).decode
            decode = msgspec.msgpack.Decoder(field.type).decode
            sources.append(_OldValue(position, decode, was))
        taken = {source.position for source in sources if source is not None}
        others = {
            position: msgspec.msgpack.Decoder(old_type(field["type"])).decode
            for position, field in enumerate(old)
            if position not in taken
        }
        clear_caches(state.classes())
        return _OldVersion(names, sources, others)

    def _set(self, op: Any, version: _OldVersion, stored: list[msgspec.Raw]) -> None:
        state = self._state
        values: dict[str, Any] = {}
        for field, info, source in zip(state.fields, state.infos, version.sources, strict=True):
            if source is None:
                continue
            values[field.name] = source.decode(stored[source.position])
            if source.decode_old is None:
                continue
            old = source.decode_old(stored[source.position])
            number = inexact(info, old)
            if number is not None and state.upgrade is not None:
                values[field.name] = old
            elif number is not None:
                raise CheckpointMismatchError(
                    f"{state.operator}.{field.name} holds {number} in a stored record, which no "
                    f"float is exactly, so that it can't be read as {type_text(field.type)}; "
                    "change the field back, or write `upgrade`"
                )
        if state.upgrade is not None:
            for position, decode in version.others.items():
                values.setdefault(version.names[position], decode(stored[position]))
            values = self._upgrade(values)
        for field, (default, decode) in zip(state.fields, self._defaults, strict=True):
            value = values[field.name] if field.name in values else decode(default)
            setattr(op, field.name, value)

    def _upgrade(self, old: dict[str, Any]) -> dict[str, Any]:
        """What the user's hook makes of the fields of an older record, checked."""
        state = self._state
        assert state.upgrade is not None
        before = set(old)
        try:
            upgraded = state.upgrade(dict(old))
        except Exception as error:
            raise OperatorError(
                f"{state.operator}.upgrade raised {type(error).__name__}: {error}; it was given "
                f"{old!r:.500}"
            ) from error
        if not isinstance(upgraded, dict):
            raise StateValueError(
                f"{state.operator}.upgrade returned {upgraded!r:.80}; it returns a dict of fields"
            )
        fields = {field.name: info for field, info in zip(state.fields, state.infos, strict=True)}
        for name, value in upgraded.items():
            if name in fields:
                wrong = misfit(fields[name], value)
                if wrong:
                    raise StateValueError(
                        f"{state.operator}.upgrade returned {wrong[1]!r:.80} for {name}{wrong[0]}, "
                        f"which does not fit the field's type; it was given {old!r:.500}"
                    )
            elif name not in before:
                raise StateValueError(
                    f"{state.operator}.upgrade returned {name!r}, which is no field of the class"
                )
        return upgraded

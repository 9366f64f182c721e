"""Records of earlier versions of an operator's fields, read into the fields of today.

Only keys that were not written since the change come this way, once each or until they change, so
it may be slow: a record is taken apart value by value, and each is decoded as the type it has now.

Without an `upgrade` hook fields are matched by their numbers, and `evolve` has made sure at the
start that all that can be stored fits. With one, the hook is given every older record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorError,
    StateValueError,
)
from braided.store.durable.files import UNREADABLE
from braided.store.records.evolution import (
    VERSIONS_MAX,
    inexact,
    narrows,
    numbered,
    old_type,
    same_fields,
    text,
)
from braided.store.records.field_types import clear_caches, describe, misfit, type_text

if TYPE_CHECKING:
    from braided.store.records.codec import StateCodec

__all__ = ["OldRecords", "evolve"]

_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_timers = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def evolve(codec: StateCodec, name: str, history: Sequence[str]) -> tuple[str, ...]:
    """The history with the fields of today as its newest version, if they are other ones.

    Raises CheckpointMismatchError, naming the operator, if records may be there that can't be read.
    """
    if same_fields(history[-1], codec.describe()):
        return tuple(history)
    renames = {field.name: field.earlier for field in codec.fields if field.earlier}
    now, wrong = numbered(codec.describe(), history, renames)
    if codec.upgrade is None:
        wrong += _losses(codec, now, history)
        if wrong:
            raise CheckpointMismatchError(
                f"operator {name!r} does not fit the state in this checkpoint: {'; '.join(wrong)}. "
                "Change the fields back, or say how old state becomes new with `@classmethod def "
                "upgrade(cls, old)`, which is given the stored fields as a dict and returns those "
                "of now, or give the operator another name, or use a new checkpointLocation"
            )
    if len(history) >= VERSIONS_MAX:
        raise CheckpointMismatchError(
            f"the fields of operator {name!r} have had {VERSIONS_MAX} versions in this checkpoint, "
            "which is as many as there may be; use a new checkpointLocation"
        )
    return (*history, now)


def _losses(codec: StateCodec, now: str, history: Sequence[str]) -> list[str]:
    """What of the versions there were can't be read into the fields of today."""
    today = {
        field["id"]: (field["name"], info)
        for field, info in zip(json.loads(now)["fields"], codec.infos, strict=True)
    }
    last = json.loads(history[-1])["fields"]
    if last and not any(field["id"] in today for field in last):
        had = ", ".join(f"{field['name']}: {text(field['type'])}" for field in last)
        return [
            f"it has none of the fields that are stored ({had}), as if it were another operator"
        ]
    found: dict[int, str] = {}
    for version in range(len(history), 0, -1):
        where = "" if version == len(history) else f" (in records of version {version})"
        for field in json.loads(history[version - 1])["fields"]:
            if field["id"] in today and field["id"] not in found:
                name, info = today[field["id"]]
                reason = narrows(field["type"], info)
                if reason:
                    found[field["id"]] = f"{name}: {reason}{where}"
    return list(found.values())


class _Source(NamedTuple):
    """Where the value of a field of today comes from."""

    place: int
    decode: Any
    decode_old: Any | None
    """Where an int became a float: as it was, to see that it is the same."""


class _Version(NamedTuple):
    names: list[str]
    """What its fields are called in the dict that `upgrade` is given."""
    sources: list[_Source | None]
    """For every field of today; None: it has its default."""
    others: dict[int, Any]
    """Decoders of the fields that are not among the sources."""


class OldRecords:
    """Loads the records of one codec's earlier versions."""

    def __init__(self, codec: StateCodec, history: Sequence[str]) -> None:
        self._codec = codec
        self._history = [json.loads(version)["fields"] for version in history]
        self._versions: dict[int, _Version] = {}
        defaults = _decode_parts(codec.fresh[1:])
        self._defaults = [
            (default, msgspec.msgpack.Decoder(field.type).decode)
            for default, field in zip(defaults, codec.fields, strict=False)
        ]

    def load(self, op: Any, raw: bytes) -> tuple[int, ...]:
        """As `StateCodec.load`, for a record that is not of the present version."""
        number = raw[0]
        if not 1 <= number < len(self._history):
            raise CheckpointVersionError(
                f"a state record of {self._codec.operator} has version {number}, the checkpoint "
                f"knows {max(len(self._history), 1)}; a newer Braided wrote it, or another query"
            )
        version = self._versions.get(number)
        if version is None:
            version = self._versions[number] = self._read(number)
        try:
            found = _decode_parts(raw[1:])
            if len(found) != len(version.names) + 1:
                raise msgspec.DecodeError(
                    f"{len(found) - 1} values for {len(version.names)} fields"
                )
            timers = _decode_timers(found[-1])
            self._set(op, version, found)
        except UNREADABLE as error:
            raise CheckpointMismatchError(
                f"a state record of {self._codec.operator}, by version {number} of its fields, "
                f"can't be read: {error}"
            ) from error
        return timers

    def _read(self, number: int) -> _Version:
        """How the records of a version are read, from its description."""
        codec = self._codec
        old = self._history[number - 1]
        places = {field["id"]: place for place, field in enumerate(old)}
        names = [field["name"] for field in old]
        sources: list[_Source | None] = []
        for now, field, info in zip(self._history[-1], codec.fields, codec.infos, strict=True):
            place = places.get(now["id"])
            if place is None:
                sources.append(None)
                continue
            kind = old[place]["type"]
            names[place] = field.name
            if narrows(kind, info) is not None:  # for an upgrade hook, which gets it as it was
                sources.append(None)
                continue
            was = None
            if kind != describe(info):
                was = msgspec.msgpack.Decoder(old_type(kind)).decode
            decode = msgspec.msgpack.Decoder(field.type).decode
            sources.append(_Source(place, decode, was))
        taken = {source.place for source in sources if source is not None}
        others = {
            place: msgspec.msgpack.Decoder(old_type(field["type"])).decode
            for place, field in enumerate(old)
            if place not in taken
        }
        clear_caches(codec.classes())
        return _Version(names, sources, others)

    def _set(self, op: Any, version: _Version, found: list[msgspec.Raw]) -> None:
        codec = self._codec
        values: dict[str, Any] = {}
        for field, info, source in zip(codec.fields, codec.infos, version.sources, strict=True):
            if source is None:
                continue
            values[field.name] = source.decode(found[source.place])
            if source.decode_old is None:
                continue
            old = source.decode_old(found[source.place])
            number = inexact(info, old)
            if number is not None and codec.upgrade is not None:
                values[field.name] = old
            elif number is not None:
                raise CheckpointMismatchError(
                    f"{codec.operator}.{field.name} holds {number} in a stored record, which no "
                    f"float is exactly, so that it can't be read as {type_text(field.type)}; "
                    "change the field back, or write `upgrade`"
                )
        if codec.upgrade is not None:
            for place, decode in version.others.items():
                values.setdefault(version.names[place], decode(found[place]))
            values = self._upgraded(values)
        for field, (default, decode) in zip(codec.fields, self._defaults, strict=True):
            value = values[field.name] if field.name in values else decode(default)
            setattr(op, field.name, value)

    def _upgraded(self, old: dict[str, Any]) -> dict[str, Any]:
        """What the user's hook makes of the fields of an older record, checked."""
        codec = self._codec
        assert codec.upgrade is not None
        before = set(old)
        try:
            given = codec.upgrade(dict(old))
        except Exception as error:
            raise OperatorError(
                f"{codec.operator}.upgrade raised {type(error).__name__}: {error}; it was given "
                f"{old!r:.500}"
            ) from error
        if not isinstance(given, dict):
            raise StateValueError(
                f"{codec.operator}.upgrade returned {given!r:.80}; it returns a dict of fields"
            )
        fields = {field.name: info for field, info in zip(codec.fields, codec.infos, strict=True)}
        for name, value in given.items():
            if name in fields:
                wrong = misfit(fields[name], value)
                if wrong:
                    raise StateValueError(
                        f"{codec.operator}.upgrade returned {wrong[1]!r:.80} for {name}{wrong[0]}, "
                        f"which does not fit the field's type; it was given {old!r:.500}"
                    )
            elif name not in before:
                raise StateValueError(
                    f"{codec.operator}.upgrade returned {name!r}, which is no field of the class"
                )
        return given

"""The annotated fields of an operator class: what each key keeps, and how a checkpoint tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect as mi

from braided.errors import OperatorDefinitionError
from braided.store.records.field_types import classes, describe, refusal, type_text

__all__ = ["Field", "StateFields", "Upgrade"]

Upgrade = Callable[[dict[str, Any]], Any]
"""What a user writes to make the fields of today of those of an older record."""


@dataclass(frozen=True)
class Field:
    """One annotated field of an operator: part of the state of each key."""

    name: str
    type: Any
    default: Any
    earlier: tuple[str, ...] = ()
    """Names that it had before."""


class StateFields:
    """The fields of one operator class, each of a type that can be stored."""

    def __init__(self, operator: str, fields: Sequence[Field], upgrade: Upgrade | None) -> None:
        self.operator = operator
        self.fields = tuple(fields)
        self.upgrade = upgrade
        self.infos = [self._inspect(field) for field in self.fields]

    def describe(self) -> str:
        """Names and types of the fields as JSON, to tell whether a checkpoint fits."""
        fields = [
            {"name": field.name, "type": describe(info), "id": number}
            for number, (field, info) in enumerate(zip(self.fields, self.infos, strict=True))
        ]
        return json.dumps({"fields": fields}, separators=(",", ":"))

    def classes(self) -> set[type]:
        """The Enums, dataclasses and so on that the fields' types are made of."""
        return set().union(*map(classes, self.infos))

    def refused(self, field: Field, reason: str) -> OperatorDefinitionError:
        """What to raise when a field can't be part of the state."""
        return OperatorDefinitionError(
            f"{self.operator}.{field.name} can't be a state field of type "
            f"{type_text(field.type)}: {reason}"
        )

    def _inspect(self, field: Field) -> mi.Type:
        try:
            info = mi.type_info(field.type)
            msgspec.msgpack.Decoder(field.type)
        except Exception as error:  # msgspec raises what user annotations raise: NameError, ...
            raise self.refused(field, str(error)) from error
        reason = refusal(info)
        if reason:
            raise self.refused(field, reason)
        return info

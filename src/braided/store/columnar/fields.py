"""The declared fields of a columnar operator, their versions, and the records of all of them.

As with the fields of an `Operator` (`store/records/evolution.py`), a checkpoint keeps a description
of every version there was, fields are matched by number, and a record is read into the fields of
today when its key comes up. What is kept of a version is all that is needed to read its records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from braided.errors import (
    CheckpointMismatchError,
    CheckpointVersionError,
    OperatorDefinitionError,
    OperatorError,
    StateValueError,
)
from braided.store.columnar.arrow_types import JsonType, described, refusal, type_of, widens
from braided.store.columnar.casting import exactly, masked
from braided.store.columnar.records import PackedRecords, RecordLayout, UnreadableRecord
from braided.store.records.evolution import FieldsNow, evolved, same_fields

__all__ = ["DUE", "DUE_TYPE", "REMOVE", "ColumnCodec", "ColumnField", "StoredRecords", "evolve"]

DUE = "due"
"""The column that has the time at which a key is to be handed to `onDue`."""
DUE_TYPE = pa.timestamp("us", "UTC")
REMOVE = "remove"
"""The column, of what a hook returns only, that says which keys are to be dropped."""

Upgrade = Callable[[pa.Table], Any]


@dataclass(frozen=True)
class ColumnField:
    """One field: a column of the state, with the value that a new key has."""

    name: str
    type: pa.DataType
    default: Any
    earlier: tuple[str, ...] = ()
    """Names that it had before."""


class _FieldsOfVersion:
    """The fields of a version that a checkpoint describes."""

    def __init__(self, number: int, description: str) -> None:
        fields = json.loads(description)["fields"]
        self.names: list[str] = [field["name"] for field in fields]
        self.ids: list[int] = [field["id"] for field in fields]
        self.kinds = [type_of(field["type"]) for field in fields]
        self.layout = RecordLayout(number, self.kinds)


class StoredRecords:
    """Records of any version as columns of the newest, by what a checkpoint says of them.

    Fields that a version did not have are null, because their defaults are known to the class
    alone.
    """

    def __init__(self, operator: str, history: Sequence[str]) -> None:
        self.operator = operator
        self.history = tuple(history)
        self._versions = [_FieldsOfVersion(i, text) for i, text in enumerate(history, 1)]
        self._now = self._versions[-1]
        self.names = self._now.names
        self.schema = pa.schema(list(zip(self.names, self._now.kinds, strict=True)))

    def decode(self, records: Sequence[bytes]) -> list[pa.Array]:
        return self._decode(records)[0]

    def _decode(self, records: Sequence[bytes]) -> tuple[list[pa.Array], PackedRecords]:
        """The columns, and the records as the newest version has them."""
        newest = self._now.layout
        try:
            return newest.decode(records)
        except UnreadableRecord as error:
            versions = {record[:1] for record in records}
            earlier = sorted(versions - {bytes([newest.version])})
            if not earlier:
                raise self._unreadable(error) from None
        whole = list(records)
        try:
            for first in earlier:
                rows = [i for i, record in enumerate(records) if record[:1] == first]
                version = self._version(first)
                arrays, _ = version.layout.decode([records[i] for i in rows])
                upgraded = newest.encode(self._upgraded(version, arrays, len(rows)), len(rows))
                for i, record in zip(rows, upgraded.tolist(), strict=True):
                    whole[i] = record
            return newest.decode(whole)
        except UnreadableRecord as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: UnreadableRecord) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"a state record of operator {self.operator!r} does not fit its fields: {error}"
        )

    def _version(self, first: bytes) -> _FieldsOfVersion:
        number = first[0] if first else 0
        if not 1 <= number <= len(self._versions):
            raise CheckpointVersionError(
                f"a state record of operator {self.operator!r} has version {number}, the "
                f"checkpoint knows {len(self._versions)}; use the Braided that wrote it, or a newer"
            )
        return self._versions[number - 1]

    def _upgraded(
        self, old: _FieldsOfVersion, arrays: list[pa.Array], count: int
    ) -> list[pa.Array]:
        """Columns of today, of those of an earlier version."""
        stored = dict(zip(old.ids, arrays, strict=True))
        upgraded = []
        for number, kind in zip(self._now.ids, self._now.kinds, strict=True):
            array = stored.get(number, pa.nulls(count, kind))
            fits = widens(described(array.type), described(kind))
            upgraded.append(array.cast(kind) if fits else pa.nulls(count, kind))
        return upgraded


class ColumnCodec(StoredRecords):
    """The same for a class, which knows defaults and may say how old columns become new ones."""

    def __init__(
        self,
        operator: str,
        fields: Sequence[ColumnField],
        upgrade: Upgrade | None = None,
        history: Sequence[str] = (),
    ) -> None:
        """`history` has the descriptions of all versions, the present one last, if known."""
        self.fields = tuple(fields)
        for field in self.fields:
            _check_field(operator, field)
        super().__init__(operator, tuple(history) or (self.describe(),))
        self.upgrade = upgrade
        self._defaults = {f.name: pa.array([f.default], f.type) for f in self.fields}
        arrays = [self._defaults[field.name] for field in self.fields]
        self.fresh: bytes = self._now.layout.encode(arrays, 1).tolist()[0]
        """The record of a key that has only defaults."""

    def describe(self) -> str:
        """Names and types of the fields as JSON, to tell whether a checkpoint fits."""
        fields = [
            {"name": field.name, "type": described(field.type), "id": number}
            for number, field in enumerate(self.fields)
        ]
        return json.dumps({"fields": fields}, separators=(",", ":"))

    def at(self, history: Sequence[str]) -> ColumnCodec:
        """The codec for a checkpoint in which the fields have this history, the present last."""
        if len(history) <= 1:
            return self
        if not same_fields(history[-1], self.describe()):
            raise ValueError(f"the history of {self.operator} does not end with its fields")
        return ColumnCodec(self.operator, self.fields, self.upgrade, history)

    def stored(self) -> StoredRecords:
        """The same records without what the class says of old ones."""
        return StoredRecords(self.operator, self.history)

    def read(self, records: Sequence[bytes | None]) -> tuple[list[pa.Array], PackedRecords]:
        """The columns of the keys that have these records (None: a new key, which has defaults),
        and what their records are if nothing changes.
        """
        fresh = self.fresh
        whole: Sequence[bytes] = records  # type: ignore[assignment]
        if None in records:
            whole = [fresh if record is None else record for record in records]
        return self._decode(whole)

    def size(self, records: Sequence[bytes | None]) -> int:
        """About how many bytes of records `read` would have to hold at once."""
        if self._now.layout.width is not None:
            return len(records) * self._now.layout.width
        fresh = self.fresh
        return sum([len(record or fresh) for record in records])

    def write(self, arrays: Sequence[pa.Array], count: int) -> PackedRecords:
        """The records of columns of the fields' types."""
        return self._now.layout.encode(arrays, count)

    def _upgraded(
        self, old: _FieldsOfVersion, arrays: list[pa.Array], count: int
    ) -> list[pa.Array]:
        stored = dict(zip(old.ids, arrays, strict=True))
        had = dict(zip(old.names, arrays, strict=True))
        given: Mapping[str, Any] = {}
        if self.upgrade is not None:
            given = self._by_hook(pa.table(had) if had else pa.table({}), count)
        upgraded = []
        for number, field in zip(self._now.ids, self.fields, strict=True):
            if field.name in given:
                upgraded.append(given[field.name])
            elif number in stored and widens(described(stored[number].type), described(field.type)):
                upgraded.append(stored[number].cast(field.type))
            else:
                indices = pa.array(np.zeros(count, np.int64))
                upgraded.append(self._defaults[field.name].take(indices))
        return upgraded

    def _by_hook(self, old: pa.Table, count: int) -> dict[str, pa.Array]:
        assert self.upgrade is not None
        try:
            returned = self.upgrade(old)
            table = _table(returned)
        except Exception as error:
            raise OperatorError(
                f"{self.operator}.upgrade raised {type(error).__name__}: {error}; it was given "
                f"the columns {old.column_names} of {count} keys"
            ) from error
        kinds = {field.name: field.type for field in self.fields}
        columns: dict[str, pa.Array] = {}
        for name in table.column_names:
            if name not in kinds or table.num_rows != count:
                raise StateValueError(
                    f"{self.operator}.upgrade returned {table.num_rows} rows of "
                    f"{table.column_names}; it returns columns of the class's fields, a row for "
                    f"each of the {count} that it was given"
                )
            try:
                columns[name] = exactly(_combined(table.column(name)), kinds[name])
            except (pa.ArrowException, ValueError) as error:
                raise StateValueError(
                    f"{self.operator}.upgrade returned {name!r} as {table.column(name).type}, "
                    f"which does not fit the field's type {kinds[name]}: {error}"
                ) from None
        return columns


def _table(returned: Any) -> pa.Table:
    if isinstance(returned, Mapping):
        arrays = {
            name: masked(each) if isinstance(each, np.ndarray) else each
            for name, each in returned.items()
        }
        return pa.table(arrays)
    return returned if isinstance(returned, pa.Table) else pa.table(returned)


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _check_field(operator: str, field: ColumnField) -> None:
    reason = refusal(field.type)
    if reason:
        raise OperatorDefinitionError(
            f"{operator}.{field.name} can't be a state field of type {field.type}: {reason}"
        )
    try:
        pa.array([field.default], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OperatorDefinitionError(
            f"{operator}.{field.name}: its default {field.default!r:.80} does not fit the type "
            f"{field.type}: {error}"
        ) from None


# --- changes of fields between starts ---------------------------------------------------------


def evolve(codec: ColumnCodec, name: str, history: Sequence[str]) -> tuple[str, ...]:
    """The history with the fields of today as its newest version, if they are other ones.

    Raises CheckpointMismatchError, naming the operator, if records may be there that can't be read.
    """
    kinds = [described(field.type) for field in codec.fields]

    def narrowed(old: JsonType, position: int) -> str | None:
        kind = kinds[position]
        return None if widens(old, kind) else f"{type_of(old)} became {type_of(kind)}"

    now = FieldsNow(
        described=codec.describe(),
        renames={field.name: field.earlier for field in codec.fields if field.earlier},
        narrows=narrowed,
        text=type_of,
        how_to_upgrade="say how old columns become new with `@classmethod def upgrade(cls, old)`, "
        "which is given a table of stored fields and returns the columns of now",
        has_upgrade=codec.upgrade is not None,
    )
    return evolved(now, name, history)

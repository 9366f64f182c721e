"""What an operator keeps, as tasks read it from durable files: records or variables of each key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from braided.errors import UnsupportedError
from braided.inspect.versions import Versions
from braided.kinds.processor.contents import ProcessorContents, variables_type
from braided.store.aggregates.columns import COLUMNS, StoredColumns
from braided.store.history.manifest import OperatorMeta, OperatorView
from braided.store.records.codec import CODEC
from braided.store.records.stored_fields import StoredFields
from braided.store.slots.channel_state import ChannelState, Limits
from braided.store.slots.keys import RECORD, RECORD_LONG, unwrap
from braided.store.variables.declared import VARIABLES, Declared
from braided.tasks.output import OutputEncoder

__all__ = ["Contents", "Kept", "Record", "kept_by"]

Contents = dict[int, dict[bytes, Any]]
"""By slot and key, in whatever form is the cheapest to compare."""


class Record(NamedTuple):
    """What one key has."""

    values: tuple[Any, ...]
    timers: tuple[int, ...]


class Kept(Protocol):
    """One kind of state, as the driver knows it and tasks read it: with what the newest version
    knows, so that older ones are alike.
    """

    @property
    def type(self) -> DataType:
        """Of the column that `column` gives."""

    @property
    def expires(self) -> bool:
        """Whether something may go with time alone."""

    def read(
        self, versions: Versions, view: OperatorView, batch: int, slots: Iterable[int]
    ) -> Contents:
        """The keys of slots."""

    def record(self, found: Any) -> Record:
        """One of them."""

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        """The values of many records; None is null."""


def kept_by(operator: str, meta: OperatorMeta) -> Kept:
    """How an operator's state is read; refuses what is unknown."""
    if meta.codec == VARIABLES:
        return _Variables(operator, meta.history)
    if meta.codec == CODEC:
        return _Records(operator, StoredFields(operator, meta.history))
    if meta.codec == COLUMNS:
        kept = json.loads(meta.state)
        kinds = [StructField(label, DataType.fromDDL(kind)) for label, _, kind in kept]
        columns = to_arrow_schema(StructType(kinds), timezone="UTC")
        return _Records(operator, StoredColumns(list(columns)))
    raise UnsupportedError(
        f"operator {operator!r} keeps its state as {meta.codec}, which this version of "
        "Braided can't show as rows"
    )


class _Records:
    """The fields of an Operator, or the columns of an aggregation."""

    expires = False

    def __init__(self, operator: str, fields: StoredFields | StoredColumns) -> None:
        self._operator = operator
        self._fields = fields

    @property
    def type(self) -> DataType:
        return from_arrow_type(self._fields.type)

    def read(
        self, versions: Versions, view: OperatorView, batch: int, slots: Iterable[int]
    ) -> Contents:
        found: Contents = {slot: {} for slot in slots}
        state = ChannelState(versions.files, None, self._operator, view, Limits())
        state.prepare(found)
        for slot, records in found.items():
            for suffix, stored in state.slot(slot).scan(b""):
                if suffix[:1] in (RECORD, RECORD_LONG):
                    key, record = unwrap(suffix, stored)
                    records[key] = record
        state.close()
        return found

    def record(self, found: Any) -> Record:
        return Record(*self._fields.read(found))

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        return self._fields.column(rows)


class _Variables:
    """The state variables of a StatefulProcessor."""

    def __init__(self, operator: str, history: tuple[str, ...]) -> None:
        self._operator, self._history = operator, history
        self.type = variables_type(history)
        self.expires = any(each.expires for each in Declared.read(history[-1]).variables)

    @cached_property
    def _encoder(self) -> OutputEncoder:
        return OutputEncoder(self.type, self._operator)

    def read(
        self, versions: Versions, view: OperatorView, batch: int, slots: Iterable[int]
    ) -> Contents:
        found: Contents = {slot: {} for slot in slots}
        now_ms = versions.batch_time_ms(batch)
        contents = ProcessorContents(versions.files, self._operator, view, self._history, now_ms)
        for each in contents.read(found):
            # A key of which everything has expired is there until somebody sweeps its slot.
            if each.timers or any(value for value in each.values):
                found[each.slot][each.key] = Record(each.values, each.timers)
        return found

    def record(self, found: Any) -> Record:
        record: Record = found
        return record

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        nothing = (None,) * len(self.type.fields)
        columns = self._encoder.encode([nothing if row is None else row for row in rows])
        missing = pa.array([row is None for row in rows], pa.bool_())
        fields = [field.with_nullable(True) for field in columns.schema]
        return pa.StructArray.from_arrays(columns.columns, fields=fields, mask=missing)

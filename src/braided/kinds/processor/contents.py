"""What a checkpoint holds of a StatefulProcessor: its state variables, key by key.

Reads durable files only, never a cache. What has expired by the time of the batch that is read is
not shown, whether it has been swept out or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from braided.kinds.processor.handle import ProcessorHandle
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.variables.declared import Declaration, Declared
from braided.store.variables.open_key import OpenKey
from braided.tasks.contents import Contents, KeyState
from braided.tasks.output import OutputEncoder

__all__ = ["ProcessorContents"]

_FOREVER = 1 << 60


def _variables_type(history: tuple[str, ...]) -> StructType:
    """The variables of the newest version as columns."""
    return StructType(
        [StructField(each.name, _type(each)) for each in Declared.read(history[-1]).variables]
    )


def _type(declared: Declaration) -> DataType:
    value = StructType.fromJson(declared.schema)
    if declared.kind == "list":
        return ArrayType(value)
    if declared.user_key is not None:
        return MapType(StructType.fromJson(declared.user_key), value)
    return value


class ProcessorContents:
    """Reads the variables of a processor.

    The values of a key are in the order of its variables: a tuple or None, a list of tuples, a dict
    of tuples.
    """

    def __init__(self, operator: str, meta: OperatorMeta) -> None:
        self._operator, self._history = operator, meta.history
        self.type = _variables_type(meta.history)
        self.expires = any(each.expires for each in Declared.read(meta.state).variables)

    @cached_property
    def _encoder(self) -> OutputEncoder:
        return OutputEncoder(self.type, self._operator)

    def read(
        self, files: Store, version: OperatorVersion, batch_time_ms: int, slots: Iterable[int]
    ) -> Contents:
        contents: Contents = {slot: {} for slot in slots}
        key = OpenKey(batch_time_ms)
        variables = _open_variables(key, self._history)
        state = ChannelState(files, None, self._operator, version, SnapshotLimits())
        state.open_slots(contents)
        try:
            for number, keys in contents.items():
                slot = state.slot(number)
                for owner, _ in list(slot.records()):
                    key.open(slot, owner)
                    values, timers = tuple(read() for read in variables), sorted(key.timers)
                    # A key of which everything has expired is there until its slot is swept.
                    if timers or any(values):
                        keys[owner] = KeyState(values, tuple(timers))
        finally:
            state.close()
        return contents

    def key_state(self, stored: Any) -> KeyState:
        state: KeyState = stored
        return state

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        nothing = (None,) * len(self.type.fields)
        columns = self._encoder.encode([nothing if row is None else row for row in rows])
        missing = pa.array([row is None for row in rows], pa.bool_())
        fields = [field.with_nullable(True) for field in columns.schema]
        return pa.StructArray.from_arrays(columns.columns, fields=fields, mask=missing)


def _open_variables(key: OpenKey, history: tuple[str, ...]) -> list[Callable[[], Any]]:
    """For each variable of the newest version, what gives its value for the key that is open."""
    handle = ProcessorHandle("ProcessingTime", key, history, {})
    variables: list[Any] = []
    for each in Declared.read(history[-1]).variables:
        schema = StructType.fromJson(each.schema)
        ttl_ms = _FOREVER if each.expires else None
        if each.kind == "value":
            variables.append(handle.getValueState(each.name, schema, ttl_ms).get)
        elif each.kind == "list":
            items = handle.getListState(each.name, schema, ttl_ms)
            variables.append(lambda items=items: list(items.get()))
        else:
            assert each.user_key is not None
            user_key = StructType.fromJson(each.user_key)
            entries = handle.getMapState(each.name, user_key, schema, ttl_ms)
            variables.append(lambda entries=entries: _as_dict(entries.iterator()))
    return variables


def _as_dict(entries: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in entries}


class _HashableList(list[Any]):
    """A list that stays as it is, and so can be part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def _hashable(value: Any) -> Any:
    """The value with lists that can be hashed; structs by position."""
    if isinstance(value, list):
        return _HashableList(map(_hashable, value))
    return tuple(map(_hashable, value)) if isinstance(value, tuple) else value

"""What a checkpoint holds of a StatefulProcessor: its state variables, key by key.

Reads durable files only, never a cache. What has expired by the time of the batch that is read is
not shown, whether it has been swept out or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from braided.kinds.processor.handle import ProcessorHandle
from braided.store.durable.files import Files
from braided.store.history.manifest import OperatorView
from braided.store.slots.channel_state import ChannelState, Limits
from braided.store.slots.keys import RECORD, RECORD_LONG, unwrap
from braided.store.variables.declared import Declaration, Declared
from braided.store.variables.open_key import OpenKey

__all__ = ["KeyContents", "ProcessorContents", "variables_type"]

_FOREVER = 1 << 60


class KeyContents(NamedTuple):
    """What one key has."""

    slot: int
    key: bytes
    values: tuple[Any, ...]
    """In the order of the variables: a tuple or None, a list of tuples, a dict of tuples."""
    timers: tuple[int, ...]


def variables_type(history: tuple[str, ...]) -> StructType:
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


@dataclass(frozen=True)
class ProcessorContents:
    """Reads the slots of a processor at one version."""

    files: Files
    name: str
    view: OperatorView
    history: tuple[str, ...]
    """What it declared, this version or a later one last."""
    now_ms: int

    def read(self, slots: Iterable[int]) -> Iterator[KeyContents]:
        key = OpenKey(self.now_ms)
        readers = self._readers(key)
        state = ChannelState(self.files, None, self.name, self.view, Limits())
        numbers = list(slots)
        state.prepare(numbers)
        try:
            for number in numbers:
                slot = state.slot(number)
                for place, stored in list(slot.scan(b"")):
                    if place[:1] in (RECORD, RECORD_LONG):
                        owner, _ = unwrap(place, stored)
                        key.open(slot, owner)
                        values = tuple(read() for read in readers)
                        yield KeyContents(number, owner, values, tuple(sorted(key.timers)))
        finally:
            state.close()

    def _readers(self, key: OpenKey) -> list[Any]:
        history = self.history
        handle = ProcessorHandle("ProcessingTime", key, history, {})
        readers: list[Any] = []
        for each in Declared.read(history[-1]).variables:
            schema = StructType.fromJson(each.schema)
            ttl_ms = _FOREVER if each.expires else None
            if each.kind == "value":
                readers.append(handle.getValueState(each.name, schema, ttl_ms).get)
            elif each.kind == "list":
                items = handle.getListState(each.name, schema, ttl_ms)
                readers.append(lambda items=items: list(items.get()))
            else:
                assert each.user_key is not None
                user_key = StructType.fromJson(each.user_key)
                entries = handle.getMapState(each.name, user_key, schema, ttl_ms)
                readers.append(lambda entries=entries: _as_dict(entries.iterator()))
        return readers


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

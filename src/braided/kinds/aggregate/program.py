"""An aggregation as its tasks need it: plain values, and what is made of them in a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import pyarrow as pa

from braided.store.aggregates.columns import RecordCodec
from braided.store.aggregates.merge import ColumnGroup, Merger
from braided.store.slots.key_codec import KeyCodec

__all__ = ["AggregateProgram"]

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class AggregateProgram:
    """An aggregation as a task needs it."""

    name: str
    mode: str
    groups: pa.Schema
    partials: pa.Schema
    key_order: tuple[int, ...]
    """The groups in the order of keys."""
    key_names: tuple[str, ...]
    timed: bool
    """Whether the first column of keys tells event time."""
    parts: tuple[ColumnGroup, ...]
    sub_keys: int

    @cached_property
    def merger(self) -> Merger:
        return Merger(self.parts, self.partials.types)

    @cached_property
    def records(self) -> RecordCodec:
        return RecordCodec(self.merger.fields)

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(pa.schema([self.groups.field(i) for i in self.key_order]))

    @cached_property
    def times(self) -> KeyCodec:
        """Keys of the column that tells time alone."""
        return KeyCodec(pa.schema([self.groups.field(self.key_order[0])]))

    @cached_property
    def head(self) -> bytes:
        """What the encoding of every key starts with."""
        width = len(self.groups)
        return _encode((None,) * width)[:-width]

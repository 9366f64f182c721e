"""The state that a class of operators starts with, brought to the slots of its keys.

Spark brings the rows of a DataFrame there, a task for some slots each, which makes records of them
and one snapshot of these. What a record is differs from kind to kind.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from braided.errors import StateValueError
from braided.flow.route import slot_sql
from braided.spark.arrow_types import to_arrow_schema
from braided.spark.sql_text import quoted
from braided.store.durable.store import Store
from braided.store.slots.key_codec import KeyCodec
from braided.store.slots.layout import record_suffix, timer_suffix, wrap
from braided.tasks.failure import to_text
from braided.tasks.first_state import FirstState, deal_out, write_slots, written_by
from braided.tasks.rows import RowFactory

__all__ = ["FirstRecord", "FirstStateWriter", "write_first_state"]

_SLOT = "__braided_slot"

FirstRecord = tuple[int, bytes, bytes, Iterable[int]]
"""Slot, key, record, and timers in ms."""


@dataclass(frozen=True)
class FirstStateWriter(ABC):
    """What `mapInArrow` calls: the rows of some slots in, one snapshot out."""

    operator: type[Any]
    name: str
    key: StructType
    columns: tuple[str, ...]
    """Those after the slot and the key."""
    store: Store
    batch: int

    @abstractmethod
    def records(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[FirstRecord]:
        """The records of rows, but for those that say no more than that a key is new."""

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            slots: dict[int, dict[bytes, bytes]] = {}
            for slot, key, record, timers in self.records(chunks):
                content = slots.setdefault(slot, {})
                suffix, is_long = record_suffix(key)
                if suffix in content:
                    raise StateValueError(
                        f"initialState of operator {self.name!r} has two rows of key "
                        f"{self.shown(key)}; a key has one state"
                    )
                content[suffix] = wrap(key, record) if is_long else record
                content.update(timer_suffix(ms, key) for ms in timers)
            if slots:
                path = f"state/{self.name}/{self.batch}-initial-{uuid.uuid4().hex[:12]}"
                yield write_slots(self.store, path, slots)
        except StateValueError as error:
            raise RuntimeError(to_text(error)) from None

    def shown(self, key: bytes) -> str:
        """A key as users know it."""
        keys = KeyCodec(to_arrow_schema(self.key)).decode_batch([key])
        return repr(RowFactory(self.key).rows_of(keys)[0])


def write_first_state(
    initial: DataFrame,
    key: StructType,
    slots: int,
    writer: Callable[[tuple[str, ...]], FirstStateWriter],
) -> FirstState:
    """Writes the state that an operator starts with; nothing counts before a manifest names it.

    `writer` is given the columns that are there beside the key's.
    """
    keys = [quoted(column) for column in key.names]
    slot = F.expr(f"int({slot_sql(keys, slots)})").alias(_SLOT)
    key_names = set(key.names)
    rest = [quoted(column) for column in initial.columns if column not in key_names]
    columns: list[str | Column] = [slot, *keys, *rest]
    dealt = deal_out(initial.select(*columns), _SLOT, slots)
    return written_by(dealt, writer(tuple(dealt.columns[1 + len(keys) :])))

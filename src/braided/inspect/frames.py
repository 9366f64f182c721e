"""The committed state of a checkpoint as DataFrames, read in tasks from durable files alone.

No cache is touched and nothing is locked; see versions.py for what that means for a query that runs
meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braided import errors
from braided.errors import BraidedError
from braided.flow.key_schema import key_schema
from braided.inspect.contents import reader_of
from braided.inspect.versions import Versions
from braided.spark.arrow_types import to_arrow_schema
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorVersion, View
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.contents import Contents, KeyState, StateReader

__all__ = ["StateTask", "changes_frame", "raised_by_task", "state_frame", "state_task"]

_ROWS = 8192
_BYTES_PER_TASK = 64 << 20
_TIMES = pa.list_(pa.timestamp("us", "UTC"))
_STATE = ["operator", "slot", "key", "state", "timers", "batch"]
_CHANGES = [
    *["operator", "slot", "key", "change", "before", "after"],
    *["timersBefore", "timersAfter"],
]


# --- tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """One operator of a checkpoint."""

    store: Store
    operator: str
    key: pa.Schema
    reader: StateReader
    """Of the version that is shown, or of the later of two."""

    def view(self, batch: int) -> OperatorVersion | None:
        return Versions(self.store).view(batch).operators.get(self.operator)

    def contents(self, view: OperatorVersion | None, batch: int, slots: list[int]) -> Contents:
        if view is None:
            return {slot: {} for slot in slots}
        versions = Versions(self.store)
        return self.reader.read(versions.files, view, versions.batch_time_ms(batch), slots)

    def names(self, slot: int, keys: list[bytes]) -> list[pa.Array]:
        """The first columns of a frame: operator, slot and key."""
        columns = KeyCodec(self.key).decode_batch(keys)
        return [
            pa.array([self.operator] * len(keys), pa.string()),
            pa.array([slot] * len(keys), pa.int32()),
            pa.StructArray.from_arrays(columns, fields=list(self.key)),
        ]


@dataclass(frozen=True)
class StateTask:
    """Reads slots at one version; what `mapInArrow` calls."""

    source: _Source
    batch: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.read(_slots(chunks))

    def read(self, slots: list[int]) -> Iterator[pa.RecordBatch]:
        """The keys of these slots."""
        source, reader = self.source, self.source.reader

        def read() -> Contents:
            return source.contents(source.view(self.batch), self.batch, slots)

        contents = Versions(source.store).reading([self.batch], read)
        for slot, stored in contents.items():
            keys = list(stored)
            for piece in _pieces(len(keys)):
                rows = [reader.key_state(stored[key]) for key in keys[piece]]
                yield pa.RecordBatch.from_arrays(
                    [
                        *source.names(slot, keys[piece]),
                        reader.column([row.values for row in rows]),
                        _times(row.timers for row in rows),
                        pa.array([self.batch] * len(rows), pa.int64()),
                    ],
                    names=_STATE,
                )


@dataclass(frozen=True)
class _ChangesTask:
    """Compares slots at two versions; what `mapInArrow` calls."""

    source: _Source
    before: int
    after: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, reader, slots = self.source, self.source.reader, _slots(chunks)
        before, after = Versions(source.store).reading(
            [self.before, self.after], lambda: self._read(slots)
        )
        for slot in before:
            changed = list(_changed(reader, before[slot], after[slot]))
            for piece in _pieces(len(changed)):
                keys, old, new = zip(*changed[piece], strict=True)
                kinds = [
                    "added" if was is None else "removed" if now is None else "changed"
                    for was, now in zip(old, new, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(
                    [
                        *source.names(slot, list(keys)),
                        pa.array(kinds, pa.string()),
                        reader.column([row and row.values for row in old]),
                        reader.column([row and row.values for row in new]),
                        _times(row and row.timers for row in old),
                        _times(row and row.timers for row in new),
                    ],
                    names=_CHANGES,
                )

    def _read(self, slots: list[int]) -> tuple[Contents, Contents]:
        source = self.source
        old, new = source.view(self.before), source.view(self.after)
        if old is not None and new is not None and not source.reader.expires:
            slots = [slot for slot in slots if old.head(slot) != new.head(slot)]
        return (
            source.contents(old, self.before, slots),
            source.contents(new, self.after, slots),
        )


def _changed(
    reader: StateReader, before: dict[bytes, Any], after: dict[bytes, Any]
) -> Iterator[tuple[bytes, KeyState | None, KeyState | None]]:
    for key in sorted(before.keys() | after.keys()):
        stored = before.get(key), after.get(key)
        if stored[0] == stored[1]:
            continue
        old, new = (None if each is None else reader.key_state(each) for each in stored)
        # Records of two versions of the fields may say the same in different bytes; and a NaN is
        # not equal to itself.
        if old != new and repr(old) != repr(new):
            yield key, old, new


def _times(timers: Iterable[tuple[int, ...] | None]) -> pa.Array:
    return pa.array(
        [None if each is None else [ms * 1000 for ms in each] for each in timers],
        pa.list_(pa.int64()),
    ).cast(_TIMES)


def _slots(chunks: Iterator[pa.RecordBatch]) -> list[int]:
    return [slot for chunk in chunks for slot in chunk.column(0).to_pylist()]


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, count, _ROWS))


# --- DataFrames -------------------------------------------------------------------------------


def state_task(store: Store, view: View, operator: str) -> tuple[StateTask, StructType]:
    """What reads the keys of an operator at a version, and what the rows are like."""
    version = view.operators[operator]
    key, reader = key_schema(version.meta.key), reader_of(operator, version.meta)
    types = (key, reader.type, ArrayType(TimestampType()), LongType())
    task = StateTask(_source(store, operator, key, reader), view.batch)
    return task, _schema(_STATE, types)


def state_frame(spark: SparkSession, store: Store, view: View, operator: str) -> DataFrame:
    """All keys of an operator at a version."""
    task, schema = state_task(store, view, operator)
    return _slot_frame(spark, view.operators[operator]).mapInArrow(task, schema)


def changes_frame(
    spark: SparkSession, store: Store, before: int, view: View, operator: str
) -> DataFrame:
    """The keys of an operator that differ between a version and a later one."""
    version = view.operators[operator]
    key, reader = key_schema(version.meta.key), reader_of(operator, version.meta)
    timers = ArrayType(TimestampType())
    types = (key, StringType(), reader.type, reader.type, timers, timers)
    task = _ChangesTask(_source(store, operator, key, reader), before, view.batch)
    return _slot_frame(spark, version).mapInArrow(task, _schema(_CHANGES, types))


def _source(store: Store, operator: str, key: StructType, reader: StateReader) -> _Source:
    return _Source(store, operator, to_arrow_schema(key), reader)


def _schema(names: Sequence[str], types: Sequence[DataType]) -> StructType:
    """Every frame begins with the operator and the slot."""
    fields = zip(names, (StringType(), IntegerType(), *types), strict=True)
    return StructType([StructField(*each) for each in fields])


def _slot_frame(spark: SparkSession, version: OperatorVersion) -> DataFrame:
    """The slots, so many to a task that it can hold their state."""
    tasks = max(spark.sparkContext.defaultParallelism, -(-version.bytes // _BYTES_PER_TASK))
    return spark.range(0, version.meta.slots, 1, min(tasks, version.meta.slots))


_RAISED = re.compile(r"^braided\.errors\.(\w+): (.+)$", re.MULTILINE)


def raised_by_task(error: PySparkException) -> BraidedError | None:
    """The error of ours that ended a task of these frames, if one did."""
    match = _RAISED.search(str(error))
    if match is None:
        return None
    raised: BraidedError = getattr(errors, match[1])(match[2])
    return raised

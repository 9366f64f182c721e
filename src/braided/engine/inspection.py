"""The committed state of a checkpoint as DataFrames, read in tasks from durable files alone.

Nothing is locked and no cache is touched, so a query may run meanwhile. It may also remove, in the
middle of a read, a version that it no longer has to keep. Manifests go before the files that only
they need: a file that is missing while its version's manifest is there is damage, otherwise the
version is gone, and the reader is told so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
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
from braided.engine.checkpoint import braided_files
from braided.engine.output import OutputEncoder
from braided.engine.processor_contents import KeyContents, ProcessorContents, variables_type
from braided.errors import (
    BraidedError,
    CheckpointCorruptError,
    StateNotFoundError,
    UnsupportedError,
)
from braided.state.codec import CODEC
from braided.state.columns import COLUMNS, StoredColumns
from braided.state.declared import VARIABLES
from braided.state.keys import RECORD, RECORD_LONG, KeyCodec, unwrap
from braided.state.manifest import OperatorView, View
from braided.state.manifests import Manifests
from braided.state.slots import ChannelState, Limits
from braided.state.stored import StoredFields

__all__ = ["Versions", "changes_frame", "key_schema", "raised_by_task", "state_frame"]

_ROWS = 8192
_BYTES_PER_TASK = 64 << 20
_READS = 5
_TIMES = pa.list_(pa.timestamp("us", "UTC"))


# --- versions ---------------------------------------------------------------------------------


class Versions:
    """The versions that a checkpoint still has: the batches whose manifests are kept."""

    def __init__(self, checkpoint: str | Path) -> None:
        self._checkpoint = str(checkpoint)
        self.files = braided_files(Path(checkpoint))
        self._manifests = Manifests(self.files)

    def retained(self) -> range:
        """The batches that can be read."""
        batches = self._manifests.batches()
        if not batches:
            raise StateNotFoundError(
                f"{self._checkpoint} holds no committed batch of Braided's: is it the "
                "checkpointLocation of a query that has run?"
            )
        lowest = newest = batches[-1]
        for batch in reversed(batches[:-1]):
            if batch != lowest - 1:
                break  # what is below a gap is on its way out
            lowest = batch
        return range(lowest, newest + 1)

    def view(self, version: int | None) -> View:
        """The flow at a version; at the newest if none is asked for."""
        for _ in range(_READS):
            retained = self.retained()
            batch = retained[-1] if version is None else version
            if batch not in retained:
                break
            try:
                return self._manifests.view_at(batch)
            except CheckpointCorruptError:
                if batch in self.retained():
                    raise
                # It went between two looks; the newest one will be another now.
        raise self.gone(batch)

    def gone(self, batch: int) -> StateNotFoundError:
        kept = self.retained()
        return StateNotFoundError(
            f"the state of batch {batch} is not retained in {self._checkpoint}; batches "
            f"{kept[0]} to {kept[-1]} are. Ask for one of them, or let the query keep more with "
            "braided.retainedManifests"
        )


def key_schema(text: str) -> StructType:
    """The grouping columns, from what the checkpoint says of them."""
    parts, depth, start = [], 0, 0
    inner = text.removeprefix("struct<").removesuffix(">")
    for place, letter in enumerate(inner + ","):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(inner[start:place])
            start = place + 1
    try:
        return StructType([_column(part) for part in parts])
    except PySparkException as error:
        raise UnsupportedError(f"the key columns {text} can't be understood: {error}") from None


def _column(text: str) -> StructField:
    # A type has colons only inside of <>, so the last one before that ends the name.
    head = text.partition("<")[0]
    cut = head.rfind(":")
    return StructField(text[:cut], DataType.fromDDL(text[cut + 1 :]))


# --- what a task reads ------------------------------------------------------------------------


class _Record(NamedTuple):
    values: tuple[Any, ...]
    timers: tuple[int, ...]


@dataclass(frozen=True)
class _Source:
    """One operator of a checkpoint, as tasks need it."""

    checkpoint: str
    operator: str
    key: pa.Schema
    history: tuple[str, ...]
    columns: pa.Schema | None = None
    """What an aggregation keeps."""

    @property
    def fields(self) -> StoredFields | StoredColumns:
        if self.columns is not None:
            return StoredColumns(list(self.columns))
        return StoredFields(self.operator, self.history)

    def opened(self, batch: int) -> OperatorView | None:
        return Versions(self.checkpoint).view(batch).operators.get(self.operator)

    def records(
        self, view: OperatorView | None, slots: Iterable[int]
    ) -> dict[int, dict[bytes, bytes]]:
        """The raw records of slots, by key."""
        found: dict[int, dict[bytes, bytes]] = {slot: {} for slot in slots}
        if view is None:
            return found
        files = Versions(self.checkpoint).files
        state = ChannelState(files, None, self.operator, view, Limits())
        state.prepare(found)
        for slot, records in found.items():
            for suffix, stored in state.slot(slot).scan(b""):
                if suffix[:1] in (RECORD, RECORD_LONG):
                    key, record = unwrap(suffix, stored)
                    records[key] = record
        state.close()
        return found

    def keys(self, keys: list[bytes]) -> pa.Array:
        columns = KeyCodec(self.key).decode_batch(keys)
        return pa.StructArray.from_arrays(columns, fields=list(self.key))


def _times(timers: Iterable[tuple[int, ...] | None]) -> pa.Array:
    return pa.array(
        [None if each is None else [ms * 1000 for ms in each] for each in timers],
        pa.list_(pa.int64()),
    ).cast(_TIMES)


def _slots(chunks: Iterator[pa.RecordBatch]) -> list[int]:
    return [slot for chunk in chunks for slot in chunk.column(0).to_pylist()]


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, count, _ROWS))


@dataclass(frozen=True)
class _StateTask:
    """Reads slots at one version; what `mapInArrow` calls."""

    source: _Source
    batch: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, fields = self.source, self.source.fields
        found = _kept(source.checkpoint, [self.batch], lambda: self._read(_slots(chunks)))
        for slot, records in found.items():
            keys = list(records)
            for piece in _pieces(len(keys)):
                rows = [_Record(*fields.read(records[key])) for key in keys[piece]]
                count = len(rows)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([source.operator] * count, pa.string()),
                        pa.array([slot] * count, pa.int32()),
                        source.keys(keys[piece]),
                        fields.column([row.values for row in rows]),
                        _times(row.timers for row in rows),
                        pa.array([self.batch] * count, pa.int64()),
                    ],
                    names=["operator", "slot", "key", "state", "timers", "batch"],
                )

    def _read(self, slots: list[int]) -> dict[int, dict[bytes, bytes]]:
        return self.source.records(self.source.opened(self.batch), slots)


@dataclass(frozen=True)
class _ChangesTask:
    """Compares slots at two versions; what `mapInArrow` calls."""

    source: _Source
    before: int
    after: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, fields = self.source, self.source.fields
        slots = _slots(chunks)
        versions = [self.before, self.after]
        before, after = _kept(source.checkpoint, versions, lambda: self._read(slots))
        for slot in before:
            changed = list(_changed(fields, before[slot], after[slot]))
            for piece in _pieces(len(changed)):
                keys, old, new = zip(*changed[piece], strict=True)
                kinds = [
                    "added" if was is None else "removed" if now is None else "changed"
                    for was, now in zip(old, new, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([source.operator] * len(keys), pa.string()),
                        pa.array([slot] * len(keys), pa.int32()),
                        source.keys(list(keys)),
                        pa.array(kinds, pa.string()),
                        fields.column([row and row.values for row in old]),
                        fields.column([row and row.values for row in new]),
                        _times(row and row.timers for row in old),
                        _times(row and row.timers for row in new),
                    ],
                    names=[field.name for field in _changes_schema(_ANY, _ANY).fields],
                )

    def _read(
        self, slots: list[int]
    ) -> tuple[dict[int, dict[bytes, bytes]], dict[int, dict[bytes, bytes]]]:
        old, new = self.source.opened(self.before), self.source.opened(self.after)
        if old is not None and new is not None:
            slots = [slot for slot in slots if old.head(slot) != new.head(slot)]
        return self.source.records(old, slots), self.source.records(new, slots)


def _changed(
    fields: StoredFields | StoredColumns, before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> Iterator[tuple[bytes, _Record | None, _Record | None]]:
    for key in sorted(before.keys() | after.keys()):
        raw = before.get(key), after.get(key)
        if raw[0] == raw[1]:
            continue
        old, new = (None if each is None else _Record(*fields.read(each)) for each in raw)
        # Records of two versions of the fields may say the same in different bytes.
        if old != new:
            yield key, old, new


def _kept(checkpoint: str, batches: list[int], read: Any) -> Any:
    """What `read` gives; says so if a version that it reads is removed meanwhile."""
    try:
        return read()
    except CheckpointCorruptError:
        versions = Versions(checkpoint)
        for batch in batches:
            if batch not in versions.retained():
                raise versions.gone(batch) from None
        raise


@dataclass(frozen=True)
class _VariablesTask:
    """Reads the slots of a processor at one version; what `mapInArrow` calls."""

    source: _Source
    batch: int

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = self.source
        read = _kept(source.checkpoint, [self.batch], lambda: self._read(_slots(chunks)))
        kind = variables_type(source.history)
        encoder = OutputEncoder(kind, source.operator)
        for piece in _pieces(len(read)):
            found = read[piece]
            columns = encoder.encode([each.values for each in found])
            count = len(found)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([source.operator] * count, pa.string()),
                    pa.array([each.slot for each in found], pa.int32()),
                    source.keys([each.key for each in found]),
                    pa.StructArray.from_arrays(columns.columns, fields=list(columns.schema)),
                    _times(each.timers for each in found),
                    pa.array([self.batch] * count, pa.int64()),
                ],
                names=["operator", "slot", "key", "state", "timers", "batch"],
            )

    def _read(self, slots: list[int]) -> list[KeyContents]:
        source = self.source
        versions = Versions(source.checkpoint)
        known = source.opened(self.batch)
        if known is None:
            return []
        now_ms = Manifests(versions.files).read(self.batch).batch_time_ms
        contents = ProcessorContents(versions.files, source.operator, known, now_ms)
        return list(contents.read(slots))


# --- DataFrames -------------------------------------------------------------------------------

_ANY = StringType()


def _state_schema(key: DataType, state: DataType) -> StructType:
    return StructType(
        [
            StructField("operator", StringType()),
            StructField("slot", IntegerType()),
            StructField("key", key),
            StructField("state", state),
            StructField("timers", ArrayType(TimestampType())),
            StructField("batch", LongType()),
        ]
    )


def _changes_schema(key: DataType, state: DataType) -> StructType:
    return StructType(
        [
            StructField("operator", StringType()),
            StructField("slot", IntegerType()),
            StructField("key", key),
            StructField("change", StringType()),
            StructField("before", state),
            StructField("after", state),
            StructField("timersBefore", ArrayType(TimestampType())),
            StructField("timersAfter", ArrayType(TimestampType())),
        ]
    )


def state_frame(spark: SparkSession, checkpoint: str, view: View, operator: str) -> DataFrame:
    """All keys of an operator at a version."""
    known = view.operators[operator]
    if known.meta.codec == VARIABLES:
        key = key_schema(known.meta.key)
        arrow = to_arrow_schema(key, timezone="UTC")
        of_processor = _Source(checkpoint, operator, arrow, known.meta.history)
        schema = _state_schema(key, variables_type(known.meta.history))
        task = _VariablesTask(of_processor, view.batch)
        return _slot_frame(spark, known).mapInArrow(task, schema)
    source, known = _source(checkpoint, view, operator)
    schema = _state_schema(*_types(source))
    return _slot_frame(spark, known).mapInArrow(_StateTask(source, view.batch), schema)


def changes_frame(
    spark: SparkSession, checkpoint: str, before: int, view: View, operator: str
) -> DataFrame:
    """The keys of an operator that differ between a version and a later one."""
    source, known = _source(checkpoint, view, operator)
    schema = _changes_schema(*_types(source))
    return _slot_frame(spark, known).mapInArrow(_ChangesTask(source, before, view.batch), schema)


def _source(checkpoint: str, view: View, operator: str) -> tuple[_Source, OperatorView]:
    known = view.operators[operator]
    if known.meta.codec not in (CODEC, COLUMNS):
        raise UnsupportedError(
            f"operator {operator!r} keeps its state as {known.meta.codec}, which this version of "
            "Braided can't show as rows"
        )
    key = to_arrow_schema(key_schema(known.meta.key), timezone="UTC")
    columns = None
    if known.meta.codec == COLUMNS:
        kept = json.loads(known.meta.state)
        kinds = [StructField(label, DataType.fromDDL(kind)) for label, _, kind in kept]
        columns = to_arrow_schema(StructType(kinds), timezone="UTC")
    return _Source(checkpoint, operator, key, known.meta.history, columns), known


def _types(source: _Source) -> tuple[DataType, DataType]:
    key = from_arrow_type(pa.struct(list(source.key)))
    return key, from_arrow_type(source.fields.type)


def _slot_frame(spark: SparkSession, known: OperatorView) -> DataFrame:
    """The slots, so many to a task that it can hold their state."""
    tasks = max(spark.sparkContext.defaultParallelism, -(-known.bytes // _BYTES_PER_TASK))
    return spark.range(0, known.meta.slots, 1, min(tasks, known.meta.slots))


_RAISED = re.compile(r"^braided\.errors\.(\w+): (.+)$", re.MULTILINE)


def raised_by_task(error: PySparkException) -> BraidedError | None:
    """The error of ours that ended a task of these frames, if one did."""
    found = _RAISED.search(str(error))
    if found is None:
        return None
    raised: BraidedError = getattr(errors, found[1])(found[2])
    return raised

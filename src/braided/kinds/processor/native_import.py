"""The state of a native `transformWithState`, brought into a checkpoint of ours.

Spark's state data source reads a native checkpoint, one state variable at a time. Every row becomes
a piece of state in bytes; a second job brings the pieces of a key together, writes its variables as
a task would, and leaves snapshots below `import/`. The processor's first batch starts on them, as
with `initialState` (`tasks/first_state.py`): they count from the moment its manifest does.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import DataType, StructType

from braided.errors import CheckpointMismatchError, StateNotFoundError, UnsupportedError
from braided.flow.key_schema import key_schema
from braided.flow.route import slot_sql
from braided.kinds.processor.state_values import key_codec, value_codec
from braided.spark.arrow_types import to_arrow_schema
from braided.store.durable.location import Location
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.key_codec import KeyCodec
from braided.store.slots.slot import SlotState, empty_slot
from braided.store.variables.declared import Declaration, Declared, evolved
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import Codec, ListVariable, MapVariable, ValueVariable
from braided.tasks.first_state import FirstState, deal_out, import_path, write_slots, written_by
from braided.tasks.rows import RowFactory

__all__ = ["Import", "import_native", "imported_meta", "native_batch", "read_import"]

_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_PIECES = "key binary, slot int, variable int, sequence long, user binary, data binary, expiry long"
_TIMER = -1
_RAW = Codec(lambda data: data, lambda data: data)


class Import(msgspec.Struct, frozen=True):
    """What was brought in for a processor that has not run yet."""

    key: str
    slots: int
    time_mode: str
    declared: str
    batch: int
    """The native batch whose state it is."""
    content: FirstState


def read_import(files: Store, name: str) -> Import | None:
    """What was imported for a processor of this name, if anything."""
    try:
        data = files.get(import_path(name))
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data.to_pybytes(), type=Import)


def imported_meta(found: Import, name: str, meta: OperatorMeta, declared: Declared) -> OperatorMeta:
    """A processor as the checkpoint is to know it when it starts with imported state."""
    for what, old, new in (
        ("key columns", found.key, _types(meta.key)),
        ("timeMode", found.time_mode, meta.time_mode),
    ):
        if old != new:
            raise CheckpointMismatchError(
                f"the state that was imported for processor {name!r} does not fit it: its {what} "
                f"were {old} and are now {new}"
            )
    *earlier, state = evolved(name, declared, [found.declared])
    return msgspec.structs.replace(meta, slots=found.slots, state=state, earlier=tuple(earlier))


def _types(key: str) -> str:
    """The types of key columns; their names may differ."""
    return ",".join(field.dataType.simpleString() for field in key_schema(key).fields)


def native_batch(spark: SparkSession, native: str, operator: int) -> int:
    """The newest batch of which a native operator has state."""
    return _about(spark, native, operator).batch


def import_native(
    spark: SparkSession, native: str, checkpoint: Store, name: str, operator: int, slots: int
) -> Import:
    """Reads the newest state of a native operator and leaves it for a processor of this name."""
    about = _about(spark, native, operator)
    variables = []
    for number, info in enumerate(about.variables):
        frame = about.frame(spark, number)
        variables.append(_declared(number, info, frame.schema))
    declared = Declared(variables=tuple(variables))
    pieces = [
        _pieces(about.frame(spark, number), declaration, slots)
        for number, declaration in enumerate(variables)
    ]
    if about.time_mode != "None":
        pieces.append(_timers(about.timers(spark), slots))
    if not pieces:
        raise UnsupportedError(f"operator {operator} of {native} has no state variables")
    whole = reduce(DataFrame.unionAll, pieces)
    dealt = deal_out(whole, "slot", slots)
    ordered = dealt.sortWithinPartitions("slot", "key", "variable", "sequence")
    content = written_by(ordered, _ImportWriter(declared.describe(), checkpoint, name))
    key = about.key_schema(spark)
    types = ",".join(field.dataType.simpleString() for field in key.fields)
    found = Import(types, slots, about.time_mode, declared.describe(), about.batch, content)
    checkpoint.put(import_path(name), msgspec.json.encode(found))
    return found


# --- what Spark says of the native checkpoint -------------------------------------------------


@dataclass(frozen=True)
class _About:
    native: str
    operator: int
    batch: int
    time_mode: str
    variables: tuple[dict[str, Any], ...]

    def frame(self, spark: SparkSession, number: int) -> DataFrame:
        name = self.variables[number]["stateName"]
        return self._reader(spark).option("stateVarName", name).load()

    def timers(self, spark: SparkSession) -> DataFrame:
        return self._reader(spark).option("readRegisteredTimers", "true").load()

    def key_schema(self, spark: SparkSession) -> StructType:
        frame = self.frame(spark, 0) if self.variables else self.timers(spark)
        return _struct(frame.schema["key"].dataType)

    def _reader(self, spark: SparkSession) -> DataFrameReader:
        return (
            spark.read.format("statestore")
            .option("path", self.native)
            .option("operatorId", self.operator)
        )


def _about(spark: SparkSession, native: str, operator: int) -> _About:
    local = Location.of(native).local
    if local is not None and not local.is_dir():
        raise StateNotFoundError(f"there is no checkpoint at {native}")
    try:
        rows = spark.read.format("state-metadata").load(native).collect()
    except PySparkException as error:
        raise StateNotFoundError(
            f"{native} is no checkpoint of a native query with state: {error}"
        ) from None
    for row in rows:
        if row.operatorId == operator and row.operatorName.startswith("transformWithState"):
            told = json.loads(row.operatorProperties)
            variables = tuple(v for v in told["stateVariables"] if v["stateVariableType"] in _KINDS)
            time_mode = "None" if told["timeMode"] == "NoTime" else told["timeMode"]
            return _About(native, operator, row.maxBatchId, time_mode, variables)
    known = ", ".join(sorted({f"{row.operatorId}: {row.operatorName}" for row in rows}))
    known = known or "no state at all: is it the checkpointLocation of a native query?"
    raise UnsupportedError(
        f"{native} has no transformWithState as operator {operator}; it has {known}"
    )


def _struct(kind: DataType) -> StructType:
    assert isinstance(kind, StructType)
    return kind


def _declared(number: int, info: dict[str, Any], schema: StructType) -> Declaration:
    kind = _KINDS[info["stateVariableType"]]
    column = {"value": "value", "list": "list_element", "map": "user_map_value"}[kind]
    value = _struct(schema[column].dataType)
    if info["ttlEnabled"]:
        value = _struct(value["value"].dataType)
    user = schema["user_map_key"].dataType.jsonValue() if kind == "map" else None
    return Declaration(
        name=info["stateName"],
        kind=kind,
        schema=json.loads(value.json()),
        user_key=user if user is None else json.loads(json.dumps(user)),
        expires=info["ttlEnabled"],
        number=number,
    )


def _placed(frame: DataFrame, slots: int) -> list[str]:
    names = [f"key.`{field.name}`" for field in _struct(frame.schema["key"].dataType).fields]
    return [
        "key",
        f"int({slot_sql(names, slots)}) AS slot",
        "monotonically_increasing_id() AS sequence",
    ]


def _pieces(frame: DataFrame, declared: Declaration, slots: int) -> DataFrame:
    """A state variable as pieces."""
    column = {"value": "value", "list": "list_element", "map": "user_map_value"}[declared.kind]
    value = f"{column}.value" if declared.expires else column
    expiry = f"{column}.ttlExpirationMs" if declared.expires else "bigint(null)"
    user = "user_map_key" if declared.kind == "map" else "null"
    chosen = frame.filter(f"{column} IS NOT NULL").selectExpr(
        *_placed(frame, slots),
        f"{user} AS user",
        f"{value} AS value",
        f"{expiry} AS expiry",
    )
    key = _struct(frame.schema["key"].dataType)
    return chosen.mapInArrow(_PieceEncoder(declared, key.json()), _PIECES)


def _timers(frame: DataFrame, slots: int) -> DataFrame:
    chosen = frame.selectExpr(*_placed(frame, slots), "expiration_timestamp_ms AS expiry")
    key = _struct(frame.schema["key"].dataType)
    return chosen.mapInArrow(_PieceEncoder(None, key.json()), _PIECES)


# --- what tasks do ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _PieceEncoder:
    """Rows of a state variable, or timers, to pieces in bytes; what `mapInArrow` calls."""

    declared: Declaration | None
    key: str

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = KeyCodec(to_arrow_schema(StructType.fromJson(json.loads(self.key))))
        declared = self.declared
        for chunk in chunks:
            count = chunk.num_rows
            columns = {name: chunk.column(i) for i, name in enumerate(chunk.schema.names)}
            users: list[bytes | None] = [None] * count
            data: list[bytes | None] = [None] * count
            if declared is not None:
                schema = StructType.fromJson(declared.schema)
                data = _encoded(value_codec(declared.name, [schema], 1), schema, columns["value"])
                if declared.user_key is not None:
                    schema = StructType.fromJson(declared.user_key)
                    users = _encoded(key_codec(declared.name, schema), schema, columns["user"])
            number = _TIMER if declared is None else declared.number
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys.encode_batch(columns["key"].flatten()), pa.binary()),
                    columns["slot"],
                    pa.array([number] * count, pa.int32()),
                    columns["sequence"],
                    pa.array(users, pa.binary()),
                    pa.array(data, pa.binary()),
                    columns["expiry"].cast(pa.int64()),
                ],
                names=["key", "slot", "variable", "sequence", "user", "data", "expiry"],
            )


def _encoded(codec: Codec, schema: StructType, column: pa.StructArray) -> list[bytes | None]:
    return [codec.encode(tuple(row)) for row in RowFactory(schema).rows_of(column.flatten())]


@dataclass(frozen=True)
class _ImportWriter:
    """Pieces of state, sorted, to one snapshot; what `mapInArrow` calls."""

    declared: str
    store: Store
    name: str

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slots: dict[int, SlotState] = {}
        key = OpenKey()
        variables = {
            declared.number: _Taker(key, declared)
            for declared in Declared.read(self.declared).variables
        }
        for chunk in chunks:
            for row in zip(*[column.to_pylist() for column in chunk.columns], strict=True):
                owner, slot, variable, _, user, data, expiry = row
                if not key.is_open or key.key != owner:
                    if key.is_open:
                        key.close()
                    key.open(slots.setdefault(slot, empty_slot()), owner)
                if variable == _TIMER:
                    key.timers.add(expiry)
                    key.dirty = True
                else:
                    variables[variable].take(user, data, expiry)
        if key.is_open:
            key.close()
        if slots:
            path = f"import/{self.name}/{uuid.uuid4().hex[:12]}"
            yield write_slots(self.store, path, {n: slot.items() for n, slot in slots.items()})


class _Taker:
    """Puts pieces into a variable, with the expiry that they had."""

    def __init__(self, key: OpenKey, declared: Declaration) -> None:
        self._key = key
        self._kind = declared.kind
        # With a time to live of nothing, what is written expires now: at the time that it had.
        ttl_ms = 0 if declared.expires else None
        self._variable: Any
        if declared.kind == "value":
            self._variable = ValueVariable(key, declared.number, _RAW, ttl_ms)
        elif declared.kind == "list":
            self._variable = _ImportedList(key, declared.number, _RAW, ttl_ms)
        else:
            self._variable = MapVariable(key, declared.number, _RAW, _RAW, ttl_ms)

    def take(self, user: bytes, data: bytes, expiry: int | None) -> None:
        if self._kind == "list":
            self._variable.take(data, expiry or 0)
            return
        if expiry is not None:
            self._key.now_ms = expiry
        if self._kind == "value":
            self._variable.update(data)
        else:
            self._variable.updateValue(user, data)


class _ImportedList(ListVariable):
    """A list whose pieces are written when others have moved the time on, and keep theirs."""

    _expiry_ms = 0
    """Of what waits to be written."""

    def take(self, data: bytes, expiry_ms: int) -> None:
        if expiry_ms != self._expiry_ms:
            self.end()
            self._expiry_ms = expiry_ms
        self.appendValue(data)

    def end(self) -> None:
        self._key.now_ms = self._expiry_ms
        super().end()

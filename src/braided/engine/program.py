"""An operator as a task needs it: what does not change from batch to batch.

The driver packs it once; every worker process unpacks it once and keeps it by its digest.

Spark ships a broadcast variable with a function when it meets it while it pickles the function.
Ours are inside bytes that were pickled before, so they travel a second time beside the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braided.api.operator import Operator
from braided.engine.output import OutputEncoder
from braided.engine.rows import RowFactory
from braided.errors import OperatorDefinitionError
from braided.state.keys import KeyCodec

__all__ = ["PackedProgram", "Program"]

_KEPT = 64
_unpacked: OrderedDict[str, Program] = OrderedDict()


@dataclass(frozen=True)
class Program:
    """One operator of a flow, ready to run."""

    name: str
    operator: type[Operator]
    time_mode: str
    input: StructType
    """The rows that `onRow` sees."""
    key: StructType
    key_positions: tuple[int, ...]
    """Where the key columns are among the rows' own and the hidden ones."""
    output: StructType
    sides: tuple[StructType, ...] = ()
    """The rows of each input, where there are two."""

    def pack(self) -> PackedProgram:
        """What travels; refused if the operator refers to something that can't."""
        parts = (
            self.name,
            self.operator,
            self.time_mode,
            self.input.json(),
            self.key.json(),
            self.key_positions,
            self.output.json(),
            [side.json() for side in self.sides],
        )
        try:
            data, broadcasts = _pickle(parts)
        except Exception as error:
            raise OperatorDefinitionError(
                f"operator {self.name!r} can't be sent to the workers: {error}. It refers to "
                "something that belongs to this process alone; open such things in onOpen"
            ) from error
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        return PackedProgram(data, digest, broadcasts)

    @cached_property
    def rows(self) -> RowFactory:
        return RowFactory(self.input)

    @cached_property
    def side_rows(self) -> tuple[RowFactory, ...]:
        return tuple(map(RowFactory, self.sides))

    @cached_property
    def key_rows(self) -> RowFactory:
        return RowFactory(self.key)

    @cached_property
    def encoder(self) -> OutputEncoder:
        return OutputEncoder(self.output, self.name)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return to_arrow_schema(self.key, timezone="UTC")

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key_schema)


@dataclass(frozen=True)
class PackedProgram:
    """What travels: bytes, their digest, and the broadcast variables that they refer to."""

    data: bytes
    digest: str
    broadcasts: tuple[Broadcast[Any], ...] = ()

    def unpack(self) -> Program:
        program = _unpacked.get(self.digest)
        if program is None:
            name, operator, time_mode, rows, key, positions, output, sides = cloudpickle.loads(
                self.data
            )
            program = Program(
                name=name,
                operator=operator,
                time_mode=time_mode,
                input=_struct(rows),
                key=_struct(key),
                key_positions=positions,
                output=_struct(output),
                sides=tuple(map(_struct, sides)),
            )
            _unpacked[self.digest] = program
            if len(_unpacked) > _KEPT:
                _unpacked.popitem(last=False)
        return program


def _pickle(value: Any) -> tuple[bytes, tuple[Broadcast[Any], ...]]:
    """The bytes of a value and the broadcast variables that were met on the way."""
    context = SparkContext._active_spark_context
    if context is None:
        return cloudpickle.dumps(value), ()  # type: ignore[no-untyped-call]
    met: Any = context._pickled_broadcast_vars
    before = tuple(met)
    met.clear()
    try:
        data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return data, tuple(met)
    finally:
        met.clear()
        for broadcast in before:
            met.add(broadcast)


def _struct(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))

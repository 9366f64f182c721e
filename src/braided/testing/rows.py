"""Rows on their way into the engine's task and out of it again, for tests without Spark."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import LongType, StructField, StructType, _infer_type, _merge_type

from braided.control.routing.pins import hash_slot
from braided.errors import DefinitionError
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.operator.program import Program
from braided.tasks.columns import PLACE, PLACE_SHIFT, order_columns
from braided.tasks.output import OutputEncoder
from braided.tasks.rows import RowFactory

__all__ = ["ANYTHING", "ORDER", "AnyProgram", "ColumnHarnessProgram", "HarnessProgram", "chunk_of"]
__all__ += ["inferred", "slot_of"]

ORDER = 2
"""Order columns of the first operator of a flow: age and sequence."""
ANYTHING = StructType([StructField("row", LongType())])
"""The output schema of an operator whose output is not checked."""


class _Anything(OutputEncoder):
    """Keeps output rows as they are; what travels as Arrow is their numbers."""

    def __init__(self, operator: str) -> None:
        super().__init__(ANYTHING, operator)
        self.kept: list[Row] = []

    def detach(self, row: Any) -> Any:
        return copy.deepcopy(row)

    def check(self, rows: Sequence[Any]) -> None:
        """Anything goes."""

    def encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        first = len(self.kept)
        self.kept.extend(map(_as_row, rows))
        return super().encode([(number,) for number in range(first, len(self.kept))])

    def encode_arrow(self, table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
        return [self.encode(table.to_pylist())]


class _ReadBack:
    """What the program of an operator has more, whose output is read back right away."""

    name: str
    output: StructType
    operator: type

    @cached_property
    def encoder(self) -> OutputEncoder:
        if self.output is ANYTHING:
            return _Anything(self.name)
        return OutputEncoder(self.output, self.name)

    def given(self, chunks: list[pa.RecordBatch]) -> list[Row]:
        """The rows of a batch, in the order of what caused them."""
        if not chunks:
            return []
        table = pa.Table.from_batches(chunks)
        order = order_columns(ORDER + 1)
        table = table.sort_by([(name, "ascending") for name in order]).drop_columns(order)
        [whole] = table.combine_chunks().to_batches() or [None]
        if isinstance(self.encoder, _Anything):
            kept, self.encoder.kept = self.encoder.kept, []
            return [kept[number] for number in whole.column(0).to_pylist()] if whole else []
        return [] if whole is None else list(RowFactory(self.output).rows(whole))


@dataclass(frozen=True)
class HarnessProgram(_ReadBack, Program):
    """An operator under test."""


@dataclass(frozen=True)
class ColumnHarnessProgram(_ReadBack, ColumnProgram):
    """A columnar operator under test."""


AnyProgram: TypeAlias = HarnessProgram | ColumnHarnessProgram


def chunk_of(program: AnyProgram, rows: list[Any], slots: int) -> pa.RecordBatch:
    """Rows as a task gets them: with order and place, brought together by key."""
    encoded = OutputEncoder(program.input, "rows").encode(rows)
    keys = program.keys.encode_batch([encoded.column(i) for i in program.key_positions])
    places = [(slot_of(key, slots) << PLACE_SHIFT) | (_hash(key) >> 20) for key in keys]
    order = sorted(range(len(rows)), key=lambda number: (places[number], keys[number], number))
    age, sequence = pa.array([0] * len(rows), pa.int64()), pa.array(range(len(rows)), pa.int64())
    columns = [age, sequence, *encoded.columns, pa.array(places, pa.int64())]
    names = [*order_columns(ORDER), *program.input.names, PLACE]
    return pa.RecordBatch.from_arrays(columns, names=names).take(pa.array(order, pa.int64()))


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def slot_of(key: bytes, slots: int) -> int:
    return hash_slot(_hash(key), slots)


def _as_row(row: Any) -> Row:
    if isinstance(row, dict):
        return Row(**row)
    return row if isinstance(row, Row) else Row(*row)


def inferred(known: StructType | None, rows: list[Any]) -> StructType:
    """The schema of rows, on top of what is known from those before."""
    kinds = {} if known is None else {field.name: field.dataType for field in known.fields}
    for row in rows:
        if isinstance(row, Row) and hasattr(row, "__fields__"):
            row = dict(zip(row.__fields__, row, strict=True))
        if not isinstance(row, dict):
            raise DefinitionError(
                f"{row!r:.80} has no column names; give dicts or Rows, or the harness an `input`"
            )
        for name, value in row.items():
            kind = _infer_type(value)
            kinds[name] = _merge_type(kinds[name], kind) if name in kinds else kind
    return StructType([StructField(name, kind) for name, kind in kinds.items()])

"""What the shares of a split key came to in a batch, merged into its state; in the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from braided.errors import StateValueError
from braided.kinds.class_merging import explained
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.returned import new_columns
from braided.kinds.columnar.runtime import ColumnRuntime
from braided.tasks.spec import BatchSpec

__all__ = ["merge_parts"]


def merge_parts(
    program: ColumnProgram,
    history: tuple[str, ...],
    batch: BatchSpec,
    key: bytes,
    whole: bytes | None,
    parts: Sequence[bytes],
) -> bytes | None:
    """The record of a key after each of the parts in turn was merged into its state; None for a
    key that has none then.
    """
    runtime = ColumnRuntime(program.operator, batch, history)
    codec, key_columns = runtime.codec, program.keys.decode_batch([key])
    runtime.op.keys = pa.Table.from_arrays(key_columns, schema=program.key_schema)
    (key_row,) = program.key_rows.rows_of(key_columns)
    columns, unchanged = codec.read([whole])
    prefix = f"operator {program.name!r}: "
    with explained(program.name, key_row, len(parts), batch.batch, runtime.advice, prefix):
        for part in parts:
            mine, others = (
                pa.Table.from_arrays(each, schema=codec.schema)
                for each in (columns, codec.read([part])[0])
            )
            value = _merged(runtime.op, mine, others)
            columns, removed = new_columns(value, codec.fields, columns, 1, "merge")
            if removed is not None:
                raise StateValueError("merge returned a column 'remove'; it makes one state of two")
    record = codec.write(columns, 1)
    if not record.differs(unchanged)[0]:
        return whole
    return record.tolist()[0]


def _merged(op: Any, mine: pa.Table, others: pa.Table) -> Any:
    if not op._merges:
        return op.merge(mine, others)
    [one], [other] = mine.to_pylist(), others.to_pylist()
    return {name: [_of_two(how, one[name], other[name])] for name, how in op._merges.items()}


def _of_two(how: Any, one: Any, other: Any) -> Any:
    """None stands for no value yet."""
    if one is None or other is None:
        return other if one is None else one
    return how(one, other)

"""Files of an Iceberg table written again without the rows whose keys a batch has.

A file is replaced as a whole (copy on write), so that every reader of Iceberg sees the table as it
is. Of a file that may have such rows, by its least and greatest values, the driver reads a piece at
a time and writes what stays, under the names and numbers that the file has for its columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from braided.sinks.parquet_rows import KeySet, remaining

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

__all__ = ["Replaced", "replaced_files"]

_NUMBER = b"PARQUET:field_id"


class Replaced(NamedTuple):
    """A file that has rows with the keys, and the one with its other rows, if it has any."""

    old: DataFile
    new: str | None


def replaced_files(
    table: Table, names: Sequence[str], keys: KeySet, directory: str
) -> Iterator[Replaced]:
    """Replaces what has to be, in files below a directory. ValueError where that can't be done."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    for task in table.scan(row_filter=_may_have(keys)).plan_files():
        _check(task, table)
        new = f"{directory}/rest-{uuid.uuid4().hex}.parquet"
        kept, dropped = _write_rest(table, task.file.file_path, names, keys, new)
        if dropped and kept:
            yield Replaced(task.file, new)
            continue
        table.io.delete(new)
        if dropped:
            yield Replaced(task.file, None)


def _check(task: FileScanTask, table: Table) -> None:
    file = task.file
    if task.delete_files:
        raise ValueError(
            f"rows of {file.file_path} are deleted by another file, which is not applied here; "
            "have an engine rewrite the table's data files"
        )
    if file.spec_id != table.spec().spec_id:
        raise ValueError(f"{file.file_path} is of an earlier partition spec; rewrite it first")
    if file.file_format != "PARQUET":
        raise ValueError(f"{file.file_path} is no Parquet")


def _may_have(keys: KeySet) -> BooleanExpression:
    """What files say of themselves if they may have rows with one of the keys."""
    from pyiceberg.expressions import (
        AlwaysTrue,
        And,
        GreaterThanOrEqual,
        IsNull,
        LessThanOrEqual,
        Or,
        Reference,
    )
    from pyiceberg.expressions.literals import literal

    every: BooleanExpression = AlwaysTrue()
    for name, least, greatest, nulls in keys.bounds():
        column = Reference(name)
        is_null = IsNull(term=column)
        if isinstance(least, float):  # NaN has no place among them
            continue
        if least is None:
            every = And(every, is_null)
            continue
        inside = And(
            GreaterThanOrEqual(term=column, value=literal(least)),
            LessThanOrEqual(term=column, value=literal(greatest)),
        )
        every = And(every, Or(inside, is_null) if nulls else inside)
    return every


def _write_rest(
    table: Table, path: str, names: Sequence[str], keys: KeySet, new: str
) -> tuple[int, int]:
    """Writes the rows of a file that stay; how many stay, and how many do not."""
    kept = dropped = 0
    with table.io.new_input(path).open() as source:
        file = pq.ParquetFile(source)
        places = [_place(file.schema_arrow, table, name) for name in names]

        def columns(piece: pa.RecordBatch) -> list[pa.Array]:
            return [
                pa.nulls(len(piece)) if place is None else piece.column(place) for place in places
            ]

        with (
            table.io.new_output(new).create() as target,
            pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer,
        ):
            for left_out, rest in remaining(file, columns, keys):
                dropped += left_out
                kept += len(rest)
                if len(rest):
                    writer.write_batch(rest)
    return kept, dropped


def _place(schema: pa.Schema, table: Table, name: str) -> int | None:
    """Which column of a file is a column of the table; None for one that the file lacks."""
    number = table.schema().find_field(name).field_id
    mapping = table.name_mapping()
    known = [] if mapping is None else [f.names for f in mapping.root if f.field_id == number]
    for place, field in enumerate(schema):
        told = (field.metadata or {}).get(_NUMBER)
        if told is not None and int(told) == number:
            return place
        if told is None and (field.name == name or any(field.name in names for names in known)):
            return place
    return None

"""Keys that a new query starts with in slots of their choosing, read from files.

`braided.routing` names a directory with a Parquet file `<operator>.parquet` for each operator that
has such keys: its grouping columns by name, and a column `__part`, the number of the part that a
key belongs to, from 0 on. How many parts there are is in the metadata of the file, as `parts`. Keys
of part p go to slots of the channels c for which c modulo the number of parts is p, so that keys of
one part are on channels of the same numbers in all operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from braided.control.routing.key_assignment import Hashes, KeyAssignment
from braided.control.routing.table import RoutingTable
from braided.errors import OptionError
from braided.flow.key_hashes import many_key_hashes
from braided.flow.route import can_be_pinned
from braided.flow.step import KeyedStep
from braided.spark.arrow_types import to_arrow_schema
from braided.store.slots.key_codec import KeyCodec

__all__ = ["PART", "PARTS", "read_routing", "slots_of_parts"]

PART = "__part"
"""The column of a key's part."""
PARTS = b"parts"
"""Where a file's metadata say how many there are."""
_SUFFIX = ".parquet"

_Numbers = npt.NDArray[np.int64]


def read_routing(
    spark: SparkSession,
    path: str,
    steps: Sequence[KeyedStep],
    tables: Mapping[str, RoutingTable],
) -> dict[str, KeyAssignment]:
    """The keys of files, by operator; only of those that have a table here."""
    directory, known = Path(path), {step.name: step for step in steps}
    if not directory.is_dir():
        raise OptionError(
            f"braided.routing is {path!r}, and there is no such directory; it takes one with "
            f"a file NAME{_SUFFIX} for operators whose keys have a part, of {', '.join(known)}"
        )
    assigned = {}
    for file in sorted(directory.glob(f"*{_SUFFIX}")):
        if file.stem not in known:
            raise OptionError(
                f"braided.routing has {file}, and there is no operator {file.stem!r} in this "
                f"query; it has {', '.join(known)}"
            )
        if file.stem in tables:
            assigned[file.stem] = _read(spark, file, known[file.stem], tables[file.stem])
    return assigned


def slots_of_parts(table: RoutingTable, parts: int, part: _Numbers, hashes: Hashes) -> _Numbers:
    """A slot for each key, by its part and its hash."""
    slots = np.empty(part.size, dtype=np.int64)
    of_slot = table.slots % parts
    for number in np.unique(part).tolist():
        of_part = part == number
        choice = np.flatnonzero(of_slot == number)
        slots[of_part] = choice[hashes[of_part] % choice.size]
    return slots


def _read(spark: SparkSession, file: Path, step: KeyedStep, table: RoutingTable) -> KeyAssignment:
    if not step.can_be_pinned or not can_be_pinned(step.key_schema):
        raise OptionError(
            f"braided.routing has {file}, but keys of operator {step.name!r} are always where "
            "their hashes say"
        )
    schema = to_arrow_schema(step.key_schema)
    try:
        rows = pq.read_table(file)
        parts = int((rows.schema.metadata or {}).get(PARTS, b"0"))
        columns = [rows.column(field.name).cast(field.type).combine_chunks() for field in schema]
        part = np.array(rows.column(PART).to_pylist(), dtype=np.int64)
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise OptionError(
            f"braided.routing has {file}, which can't be read as keys of operator {step.name!r}, "
            f"columns {', '.join(schema.names)} and {PART}: {error}"
        ) from error
    if part.size and not 0 <= part.min() <= part.max() < parts:
        raise OptionError(
            f"braided.routing has {file} with parts from {part.min()} to {part.max()}, and its "
            f"metadata say that there are {parts}"
        )
    if parts > table.channels:
        raise OptionError(
            f"braided.routing has {file} with {parts} parts, and operator {step.name!r} starts "
            f"with {table.channels} channels; each part needs one (braided.channels)"
        )
    keys = KeyCodec(schema).encode_batch(columns)
    if not keys:
        return KeyAssignment.of([], [], [], [])
    hashes, checks = many_key_hashes(spark, step.key_schema, keys)
    try:
        return KeyAssignment.of(keys, hashes, checks, slots_of_parts(table, parts, part, hashes))
    except ValueError as error:
        raise OptionError(f"braided.routing has {file}: {error}") from error

"""What a table's log says of a Parquet file besides its name, read from the file's footer.

Tasks of Spark's write the files and tell their sizes alone. A footer is a few kilobytes; those of a
batch are read at once.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from braided.store.durable.store import Store

__all__ = ["FileFacts", "read_facts"]

_AT_ONCE = 8
_TEXT_MAX = 32
"""Longer texts are left out: a log has them once for each file."""


@dataclass(frozen=True)
class FileFacts:
    """The rows of a file, and of its plain columns the nulls and the ends."""

    rows: int
    nulls: dict[str, int]
    least: dict[str, Any]
    greatest: dict[str, Any]

    def stats(self) -> dict[str, Any]:
        """As Delta's log has them."""
        return {
            "numRecords": self.rows,
            "minValues": self.least,
            "maxValues": self.greatest,
            "nullCount": self.nulls,
        }


def read_facts(files: Store, names: Sequence[str]) -> list[FileFacts]:
    """Those of several files, in their order."""
    if len(names) <= 1:
        return [_facts_of_file(files, name) for name in names]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda name: _facts_of_file(files, name), names))


def _facts_of_file(files: Store, name: str) -> FileFacts:
    with files.reader(name) as file:
        footer = pq.read_metadata(file)
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for number in range(footer.num_columns):
        leaf = footer.schema.column(number)
        if leaf.path != leaf.name:  # inside of another
            continue
        groups = [footer.row_group(i).column(number) for i in range(footer.num_row_groups)]
        parts = [group.statistics for group in groups]
        if not parts or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[leaf.name] = sum(part.null_count for part in parts)
        # A group of nulls alone has no ends.
        ended = [part for part in parts if part.null_count < part.null_count + part.num_values]
        if ended and all(part.has_min_max for part in ended):
            low, high = min(part.min for part in ended), max(part.max for part in ended)
            if _can_be_told(low) and _can_be_told(high):
                least[leaf.name], greatest[leaf.name] = _json_value(low), _json_value(high)
    return FileFacts(footer.num_rows, nulls, least, greatest)


def _can_be_told(value: Any) -> bool:
    """Whether a value is the same when it comes back from JSON."""
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return len(value) <= _TEXT_MAX
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int | dt.date)  # a datetime is a date


def _json_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    return value.isoformat() if isinstance(value, dt.date) else value

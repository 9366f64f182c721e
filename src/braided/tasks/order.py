"""The tags that order a task's output, where a flow keeps the order of its rows.

A tag is the order columns of the row that caused an output row, followed by a number of its own
among the output of that row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import pyarrow as pa

__all__ = ["Tag", "Tags", "key_bits", "tag_of_row", "tags_of_rows"]

Tag: TypeAlias = tuple[int, ...]
Tags: TypeAlias = list[Tag]


def tags_of_rows(chunk: pa.RecordBatch, order: int) -> Tags:
    """The order columns, of which there are so many, of each row."""
    columns = [chunk.column(i).to_numpy().tolist() for i in range(order)]
    return list(zip(*columns, strict=True))


def tag_of_row(chunk: pa.RecordBatch, row: int, order: int) -> Tag:
    """The order columns of one row."""
    return tuple(chunk.column(i)[row].as_py() for i in range(order))


def key_bits(keys: Iterable[bytes], bits: int) -> list[int]:
    """So many bits of a hash of each key: they order output that no row orders, always alike."""
    shift = 64 - bits
    return [int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> shift for key in keys]

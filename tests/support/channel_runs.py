"""Runs of channels as a task of Spark's drives them, and what they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from braided.store.slots import lmdb_cache
from braided.tasks.reports import ChannelReport
from braided.tasks.task import TaskRun, run_channel

__all__ = ["finished", "open_reads"]


def finished(
    run: TaskRun, chunks: Iterable[pa.RecordBatch]
) -> tuple[list[pa.RecordBatch], ChannelReport]:
    """All that a run gives out, and its report."""
    reports = []

    def output() -> Iterator[pa.RecordBatch]:
        reports.append((yield from run_channel(run, iter(chunks))))

    return list(output()), reports[0]


def open_reads(home: Path) -> int:
    """How many transactions of this process read caches below a directory."""
    readers = [
        line.split()
        for handle in lmdb_cache._handles.values()
        if handle.path.is_relative_to(home)
        for line in handle.lmdb.readers().splitlines()[1:]
    ]
    return sum(transaction.isdigit() for _, _, transaction in readers)

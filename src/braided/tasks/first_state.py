"""State that an operator starts with, written as snapshots before its first batch.

A Spark job brings the state to the slots of their keys and writes one snapshot for each task. The
operator's first batch reads its slots on top of these files, and the manifest of that batch names
them before its own: so they count from the moment the batch does. Before that they are files that
nobody names, and the job runs again at the next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from braided.store.durable.store import Store
from braided.store.history.run_blocks import size_of
from braided.store.history.runs import RunFile, write_snapshot
from braided.store.slots.layout import count_records, is_timer, timer_ms
from braided.tasks.failure import from_worker

__all__ = ["FirstState", "deal_out", "import_path", "write_slots", "written_by"]

_Chunks: TypeAlias = Iterator[pa.RecordBatch]

_RUN_SCHEMA = (
    "name string, digest string, bytes long, slots string, footer long, "
    "keys long, size long, due string"
)


class FirstState(msgspec.Struct, frozen=True):
    """What an operator starts with."""

    runs: tuple[RunFile, ...] = ()
    keys: int = 0
    bytes: int = 0
    due: dict[int, int] = {}


def import_path(name: str) -> str:
    """The file that says what was imported for an operator which has not run yet."""
    return f"import/{name}.json"


def deal_out(rows: DataFrame, slot: str, slots: int) -> DataFrame:
    """The rows, those of a slot in one task; `slot` is its number in SQL."""
    tasks = min(slots, 4 * rows.sparkSession.sparkContext.defaultParallelism)
    return rows.repartitionById(tasks, F.expr(f"{slot} % {tasks}"))


def written_by(rows: DataFrame, write: Callable[[_Chunks], _Chunks]) -> FirstState:
    """What tasks write of rows that are dealt out: each takes its chunks and gives what
    `write_slots` says.
    """
    try:
        return _first_state_of(rows.mapInArrow(write, _RUN_SCHEMA).collect())
    except PySparkException as error:
        raise from_worker(error) or error from None


def write_slots(store: Store, path: str, slots: dict[int, dict[bytes, bytes]]) -> pa.RecordBatch:
    """Writes the contents of some slots as a snapshot; the result is a row of `_RUN_SCHEMA`."""
    contents = [(slot, *_ordered(slots[slot])) for slot in sorted(slots)]
    run = write_snapshot(store, path, contents)
    due = {
        slot: timer_ms(timer)
        for slot, suffixes, _ in contents
        if (timer := next(filter(is_timer, suffixes), None)) is not None
    }
    keys = sum(count_records(suffixes) for _, suffixes, _ in contents)
    size = sum(size_of(suffixes, values) for _, suffixes, values in contents)
    row = [run.name, run.digest, run.bytes, run.slots, run.footer, keys, size, json.dumps(due)]
    names = ["name", "digest", "bytes", "slots", "footer", "keys", "size", "due"]
    return pa.RecordBatch.from_arrays([pa.array([value]) for value in row], names=names)


def _ordered(content: dict[bytes, bytes]) -> tuple[list[bytes], list[bytes]]:
    suffixes = sorted(content)
    return suffixes, [content[suffix] for suffix in suffixes]


def _first_state_of(rows: list[Row]) -> FirstState:
    """What the tasks of such a job have written, from the rows that they gave."""
    due = {int(slot): ms for row in rows for slot, ms in json.loads(row.due).items()}
    return FirstState(
        tuple(RunFile(row.name, row.digest, row.bytes, row.slots, row.footer) for row in rows),
        sum(row["keys"] for row in rows),
        sum(row.size for row in rows),
        due,
    )

"""State that an operator starts with, written as snapshots before its first batch.

A Spark job brings the state to the slots of their keys and writes one snapshot for each task. The
operator's first batch reads its slots on top of these files, and the manifest of that batch names
them before its own: so they count from the moment the batch does. Before that they are files that
nobody names, and the job runs again at the next start.
"""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
from pyspark.sql import Row

from braided.store.durable.files import Files
from braided.store.history.runs import SNAP_SUFFIX, RunFile, write_run
from braided.store.slots.keys import RECORD, RECORD_LONG, TIMER, timer_ms

__all__ = ["RUN_SCHEMA", "FirstState", "first_state_of", "write_snapshot"]

RUN_SCHEMA = (
    "name string, digest string, bytes long, slots string, keys long, size long, due string"
)


class FirstState(msgspec.Struct, frozen=True):
    """What an operator starts with."""

    runs: tuple[RunFile, ...] = ()
    keys: int = 0
    bytes: int = 0
    due: dict[int, int] = {}


def write_snapshot(root: str, path: str, slots: dict[int, dict[bytes, bytes]]) -> pa.RecordBatch:
    """Writes a snapshot; the result is a row of `RUN_SCHEMA`."""
    run = write_run(
        Files(root),
        path + SNAP_SUFFIX,
        (
            (slot, sorted(content), [content[place] for place in sorted(content)])
            for slot, content in sorted(slots.items())
        ),
    )
    places = [place for content in slots.values() for place in content]
    size = sum(len(k) + len(v) for content in slots.values() for k, v in content.items())
    due = {
        slot: min(timers)
        for slot, content in slots.items()
        if (timers := [timer_ms(place) for place in content if place[:1] == TIMER])
    }
    keys = sum(place[:1] in (RECORD, RECORD_LONG) for place in places)
    values = [run.name, run.digest, run.bytes, run.slots, keys, size, json.dumps(due)]
    names = ["name", "digest", "bytes", "slots", "keys", "size", "due"]
    return pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names=names)


def first_state_of(told: list[Row]) -> FirstState:
    """What the tasks of such a job have told."""
    due = {int(slot): ms for row in told for slot, ms in json.loads(row.due).items()}
    return FirstState(
        tuple(RunFile(row.name, row.digest, row.bytes, row.slots) for row in told),
        sum(row["keys"] for row in told),
        sum(row.size for row in told),
        due,
    )

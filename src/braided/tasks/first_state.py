"""The content of some slots as one snapshot, and what is told of it."""

from __future__ import annotations

import json

import pyarrow as pa

from braided.store.durable.files import Files
from braided.store.history.runs import SNAP_SUFFIX, write_run
from braided.store.slots.keys import timer_ms

__all__ = ["snapshot"]


def snapshot(root: str, path: str, slots: dict[int, dict[bytes, bytes]]) -> pa.RecordBatch:
    """Writes a snapshot; the result is a row of `initial.RUN_SCHEMA`."""
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
        if (timers := [timer_ms(place) for place in content if place[:1] == b"t"])
    }
    keys = sum(place[:1] in b"kK" for place in places)
    values = [run.name, run.digest, run.bytes, run.slots, keys, size, json.dumps(due)]
    names = ["name", "digest", "bytes", "slots", "keys", "size", "due"]
    return pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names=names)

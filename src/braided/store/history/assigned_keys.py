"""The file of keys that are assigned to slots, beside the manifests that name it.

There may be a hundred thousand of them, and they seldom change. So they are written once, before
the first manifest by which they hold, and every manifest after it says no more than that. The file
goes with the last manifest that needs it (`garbage.py`). It is an Arrow stream.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import pyarrow as pa

from braided.store.durable.store import Store
from braided.store.history.manifest import AssignedFile
from braided.store.history.runs import digest_of, read_checked

__all__ = ["AssignedRows", "read_assigned", "write_assigned"]


class AssignedRows(NamedTuple):
    """What is to be written."""

    rows: pa.RecordBatch
    """Both hashes, slot and bytes of each key: columns hash, check, slot and key."""
    digest: str
    """Of what they say."""


def write_assigned(files: Store, operator: str, batch: int, rows: AssignedRows) -> AssignedFile:
    """Writes keys durably; nothing counts before a manifest names them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.rows.schema) as writer:
        writer.write_batch(rows.rows)
    data = sink.getvalue().to_pybytes()
    # A name of its own, as every file has: a driver that was taken over from may write late.
    name = f"state/{operator}/{batch}-assigned-{uuid.uuid4().hex[:12]}"
    files.put(name, data)
    return AssignedFile(name, digest_of(data), rows.digest, rows.rows.num_rows)


def read_assigned(files: Store, file: AssignedFile) -> pa.RecordBatch:
    what = f"It says in which slots {file.keys} keys are, and without it their state can't be found"
    return pa.ipc.open_stream(read_checked(files, file.name, file.checksum, what)).read_next_batch()

"""The file of dead letters that a task leaves: rows that its operator raised an error for."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Row

from braided.kinds.operator.row_json import row_json
from braided.store.history.manifest import DeadFile
from braided.tasks.channel import Channel
from braided.tasks.diverted import DEAD_SCHEMA

__all__ = ["DeadLetters"]


class DeadLetters:
    """Collects them until the task is at its end."""

    def __init__(self) -> None:
        self._letters: list[tuple[str, str, str | None]] = []

    def add(self, error: str, key: Row, row: Any) -> None:
        """A row of a key that an error came of; None where there was none, as with a timer."""
        self._letters.append((error, row_json(key), None if row is None else row_json(row)))

    def write(self, channel: Channel) -> DeadFile | None:
        """A file that counts when the manifest names it; None if there is nothing to write."""
        if not self._letters:
            return None
        import pyarrow.parquet as pq  # which few tasks need, and all would wait for

        digest = hashlib.blake2b(digest_size=16)
        for _, key, row in self._letters:
            digest.update(msgspec.msgpack.encode((key, row)))
        errors, keys, rows = zip(*self._letters, strict=True)
        count = len(self._letters)
        columns = [errors, [channel.name] * count, keys, rows, [channel.batch.batch] * count]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, DEAD_SCHEMA, strict=True)]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(arrays, schema=DEAD_SCHEMA), buffer)
        name = f"dead/{channel.attempt}.parquet"
        channel.files.put(name, buffer.getvalue())
        return DeadFile(channel.name, name, digest.hexdigest(), count)

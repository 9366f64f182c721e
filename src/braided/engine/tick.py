"""The tick: a streaming source without rows that makes Spark run a batch.

Spark calls `foreachBatch` only when a source has news. Carried rows, due timers and commands
must not wait for that, so every flow's input is united with this source. What is waiting is said
in a small temporary file, the *bell*: `need` asks for a batch at once, `due_ms` for one at that
time. Each start has a bell of its own, and takes away those that queries which were killed
left behind. The reader runs in a Python process of its own beside the driver and looks at the bell
whenever Spark asks for the latest offset.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from braided.state.register import write_error

__all__ = ["Bell", "TickSource", "with_tick"]


class _Ring(msgspec.Struct, frozen=True):
    need: bool
    due_ms: int | None


class Bell:
    """The driver's end: what asks for a batch without input."""

    def __init__(self, location: str) -> None:
        # Of the checkpoint, so that what a killed process left is found, but not in it: a bell
        # must ring when the checkpoint's disk is full.
        home = hashlib.blake2b(location.encode(), digest_size=8).hexdigest()
        directory = Path(tempfile.gettempdir()) / f"braided-bell-{home}"
        self.path = directory / f"{uuid.uuid4().hex[:12]}.json"
        self._lock = threading.Lock()
        self._due_ms: int | None = None
        self._need = False
        self._hung = False

    def hang(self) -> None:
        """From here on it can be heard. Only the holder of the lease may: what else is in the
        directory was left behind, and goes.
        """
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                for left in self.path.parent.iterdir():
                    left.unlink(missing_ok=True)
            except OSError as error:
                raise write_error(str(self.path), error) from error
            self._hung = True
            self._write()

    def ring(self) -> None:
        """Asks for a batch as soon as Spark looks."""
        with self._lock:
            self._need = True
            self._write()

    def answer(self) -> None:
        """A batch has begun: what rang so far is being seen to."""
        with self._lock:
            self._need, self._due_ms = False, None
            self._write()

    def set_due(self, due_ms: int | None) -> None:
        """Asks for a batch at a point in time."""
        with self._lock:
            if due_ms != self._due_ms:
                self._due_ms = due_ms
                self._write()

    def close(self) -> None:
        with self._lock:
            self._hung = False
            with contextlib.suppress(OSError):  # if it can't go now, it does at the next start
                self.path.unlink(missing_ok=True)
                self.path.parent.rmdir()

    def _write(self) -> None:
        if not self._hung:
            return
        # Renaming is atomic: the reader sees the old ring or the new one, never half of one.
        fresh = self.path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(_Ring(self._need, self._due_ms)))
            os.replace(fresh, self.path)
        except OSError as error:
            raise write_error(str(self.path), error) from error


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        # Nothing to fix in advance: such a query goes on until the bell is silent.
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        try:
            ring = msgspec.json.decode(Path(self._path).read_bytes(), type=_Ring)
        except FileNotFoundError:  # the query is being closed
            return {"n": start["n"]}
        now_ms = time.time_ns() // 1_000_000
        rings = ring.need or (ring.due_ms is not None and ring.due_ms <= now_ms)
        return {"n": start["n"] + rings}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())

    def commit(self, end: dict[str, Any]) -> None:
        pass


class TickSource(DataSource):
    """`spark.readStream.format("braided_tick")`."""

    @classmethod
    def name(cls) -> str:
        return "braided_tick"

    def schema(self) -> StructType:
        return StructType.fromJson(msgspec.json.decode(self.options["schema"]))

    def streamReader(self, schema: StructType) -> _Reader:
        return _Reader(self.options["path"])


def with_tick(source: DataFrame, bell: Bell) -> DataFrame:
    """The source, and a batch whenever the bell rings."""
    spark: SparkSession = source.sparkSession
    spark.dataSource.register(TickSource)
    tick = (
        spark.readStream.format(TickSource.name())
        .option("path", str(bell.path))
        .option("schema", source.schema.json())
        .load()
    )
    # By position: both sides have the same columns, and names may repeat.
    return source.union(tick)

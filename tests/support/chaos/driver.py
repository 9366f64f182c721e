"""The driver of the chaos run, in a process of its own: `python driver.py job.json`.

Runs the flow until it is told to stop. A query that fails is started again, as whoever runs one in
earnest would have it; the process ends when its JVM is gone, or when another driver has taken over.
What it has to say is appended to a file at once, line by line; commands come in another.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from braided.api.query import ElasticQuery
from braided.control.routing.table import Pin
from braided.errors import FencedError
from braided.store.slots.key_codec import KeyCodec
from support.chaos.flow import INPUT, flow
from support.chaos.plan import SLOTS

__all__ = ["FENCED", "LOST_JVM", "Job"]

LOST_JVM, FENCED = 2, 3
"""How it ends, when not as told."""
_LOOK_S = 0.1
_PAUSE_S = 0.5
_TEXT_MAX = 600
_MIGRATION_S = 30.0


class Job(msgspec.Struct, frozen=True):
    """What to run, and where."""

    input: str
    output: str
    checkpoint: str
    commands: str
    said: str
    takeover: bool
    files_per_batch: int
    spark: dict[str, str]
    options: dict[str, str]


class Driver:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._commands = Path(job.commands)
        self._read = 0
        self._stopping = False

    def run(self) -> int:
        spark = SparkSession.builder.config(map=dict(self._job.spark)).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        takeover = self._job.takeover
        while not self._stopping:
            try:
                query = self._start(spark, takeover)
                takeover = False
                self._say(started=True)
                error = self._accompany(query)
            except Exception as raised:  # whatever a JVM that is going may say
                error = raised
            if error is not None:
                self._say(error=_kind(error), text=str(error)[:_TEXT_MAX])
            if isinstance(error, FencedError):
                return FENCED
            if not _is_alive(spark):
                return LOST_JVM
            time.sleep(_PAUSE_S)
        spark.stop()
        return 0

    def _start(self, spark: SparkSession, takeover: bool) -> ElasticQuery:
        job = self._job
        source = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", job.files_per_batch)
        writer = flow(source.json(job.input)).writeStream.format("parquet").outputMode("update")
        writer.options(**job.options).option("checkpointLocation", job.checkpoint)
        return writer.option("braided.takeover", takeover).start(job.output)

    def _accompany(self, query: ElasticQuery) -> BaseException | None:
        """Does what it is told to until the query has ended; why, if not because of that."""
        while query.isActive:
            for command in self._new_commands():
                self._obey(query, command)
            time.sleep(_LOOK_S)
        if self._stopping:
            return None
        error = query.exception()
        cause = query._engine.error
        return cause if cause is not None else error or RuntimeError("the query ended by itself")

    def _new_commands(self) -> list[list[Any]]:
        with self._commands.open() as file:
            lines = file.read().split("\n")[:-1]
        new = lines[self._read :]
        self._read = len(lines)
        return [json.loads(line) for line in new]

    def _obey(self, query: ElasticQuery, command: list[Any]) -> None:
        method, *arguments = command
        if method == "stop":
            self._stopping = True
        try:
            if method in _BESIDES:
                _BESIDES[method](query, *arguments)
            else:
                getattr(query, method)(*arguments)
        except Exception as error:  # the query may be about to fail; if so, the loop will say why
            self._say(refused=command, text=str(error)[:_TEXT_MAX])
        else:
            self._say(did=command)

    def _say(self, **said: Any) -> None:
        with open(self._job.said, "a") as file:
            file.write(json.dumps(said) + "\n")


def _pin(query: ElasticQuery, operator: str, key: int, slot: int) -> None:
    """Pins a key, as the controller does with those that are hot."""
    opened = query._opened
    encoded = _encoded(key)
    hashes = opened.control._hashes.of_key(operator, encoded)
    assert hashes is not None
    opened.commands.propose_pin(operator, Pin(encoded, *hashes, slot))
    opened.bell.ring()


def _split(query: ElasticQuery, key: int, shares: list[int]) -> None:
    """Splits a key of the operator that can merge, or makes it whole."""
    opened = query._opened
    encoded = _encoded(key)
    hashes = opened.control._hashes.of_key("bag", encoded)
    assert hashes is not None
    opened.commands.propose_pin("bag", Pin(encoded, *hashes, hashes[0] % SLOTS, tuple(shares)))
    opened.bell.ring()


def _unpin(query: ElasticQuery, operator: str, key: int) -> None:
    query._opened.commands.propose_pin(operator, _encoded(key))
    query._opened.bell.ring()


def _assign(query: ElasticQuery, bag: list[list[int]], chain: list[list[int]]) -> None:
    """Assigns keys of two operators to slots in one batch, as the controller does with keys that
    occur together.
    """
    opened = query._opened
    assigned = {}
    for name, pairs in (("bag", bag), ("chain", chain)):
        keys, slots = [_encoded(key) for key, _ in pairs], [slot for _, slot in pairs]
        found = opened.control._hashes.assigned(name, keys, slots)
        assert found is not None
        assigned[name] = found
    opened.commands.propose_assignment(assigned)
    opened.bell.ring()


def _migrate(query: ElasticQuery, strategy: str, executors: int) -> None:
    """Beside what else is asked for meanwhile; one that fails, or is undone, is as good."""

    def migrate() -> None:
        with contextlib.suppress(Exception):
            query.migrate(strategy, executors, timeout=_MIGRATION_S)

    threading.Thread(target=migrate, daemon=True).start()


def _encoded(key: int) -> bytes:
    [encoded] = KeyCodec(pa.schema([("key", pa.int64())])).encode_batch([pa.array([key])])
    return encoded


_BESIDES: dict[str, Callable[..., None]] = {
    "pin": _pin,
    "unpin": _unpin,
    "split": _split,
    "assign": _assign,
    "migrate": _migrate,
}
"""Commands for which a query has no method, or one that takes its time."""


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j has several, and so has the system
        return False


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    # Not by the interpreter's end, which would talk to a JVM that may be gone, or standing still.
    os._exit(Driver(given).run())

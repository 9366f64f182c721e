"""A Delta table through its log alone, by way of `deltalake`: no class of Delta's in the JVM.

Files that the log does not name are invisible, so a batch's files lie in the table's directory
before the manifest and are named by the log after it. The entry of the log that names them has the
query's sink and the batch as well (`txn`), and of two entries with the same such pair the log takes
one: who publishes a batch again finds it there. A table may be told to forget such pairs some time
after they were written, so the entry says when that was; a pair that does not is forgotten by Delta
Lake at once.

Reading and writing the log takes credentials: they are in no message and no repr.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import unquote

from pyspark.sql.types import StructField, StructType

from braided.errors import DefinitionError, UnsupportedError
from braided.sinks.delta_merge import condition
from braided.sinks.parquet_rows import KeySet, stored_rows
from braided.sinks.table_log import BatchRows, SomebodyWasFirst, TableLog
from braided.store.durable.location import Location

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

__all__ = ["INSTALL", "AddedFile", "DeltaLog", "is_installed"]

INSTALL = "pip install 'braided[delta]'"

# Features of a table that the writer of a file has to enforce, which only adding files does not.
_ENFORCED = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableRowTracking")
_ENFORCED_FIELDS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")

_FORGETS_AFTER = "delta.setTransactionRetentionDuration"
_UNITS_S = {
    "nanosecond": 1e-9,
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 7 * 86_400.0,
}

_NEWEST_FOLDED = "_last_checkpoint"
"""Which entry of the log is the newest that it was folded up to."""

_FILES = ("add", "cdc")
"""Actions that name a file which was written."""


def is_installed() -> bool:
    return find_spec("deltalake") is not None


class AddedFile(NamedTuple):
    """A file as the log is to name it."""

    path: str
    """Below the table, as the file system has it."""
    size: int
    modified_ms: int
    partition: dict[str, str | None]
    stats: str


class DeltaLog(TableLog):
    """The log of the table at a location."""

    format: ClassVar[str] = "delta"

    def __init__(self, location: Location, storage: Mapping[str, str]) -> None:
        """`storage` is how the store is reached, by the names that `deltalake` has."""
        if not is_installed():
            raise UnsupportedError(
                f"format('delta') needs the package deltalake: {INSTALL}. (Or start Spark with "
                "the package io.delta:delta-spark that is made for its version, and its session "
                "extension)"
            )
        self.location = location
        self.title = f"Delta table {location}"
        self._storage = dict(storage)
        scheme = {"s3a": "s3", "s3n": "s3"}.get(location.scheme, location.scheme)
        self._address = location.text
        if location.scheme:
            self._address = scheme + location.text[len(location.scheme) :]
        self._table: DeltaTable | None = None

    def __repr__(self) -> str:
        return f"DeltaLog({self.location.text!r})"

    # -- the table as it is now --------------------------------------------------------------

    def exists(self) -> bool:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            self._table = DeltaTable(self._address, storage_options=self._storage)
        except TableNotFoundError:
            return False
        except (DeltaError, OSError) as error:
            raise DefinitionError(
                f"format('delta'): the table at {self.location} can't be read: {error}"
            ) from None
        return True

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._seen.schema().to_json()))

    @property
    def partition_by(self) -> list[str]:
        return list(self._seen.metadata().partition_columns)

    @property
    def not_for_us(self) -> str | None:
        settings = self._seen.metadata().configuration
        asked = [
            name
            for name, value in settings.items()
            if name.startswith(_ENFORCED) and str(value).lower() not in ("none", "false")
        ]
        for field in self.schema.fields:
            asked += [name for name in field.metadata if name in _ENFORCED_FIELDS]
        return ", ".join(sorted(set(asked))) or None

    def batch_of(self, application: str) -> int | None:
        version = self._seen.transaction_version(application)
        return None if version is None else int(version)

    @property
    def remembers_s(self) -> float | None:
        told = self._seen.metadata().configuration.get(_FORGETS_AFTER)
        return None if told is None else _seconds(str(told))

    @property
    def _seen(self) -> DeltaTable:
        assert self._table is not None, "nobody has looked whether the table exists"
        return self._table

    # -- changes -------------------------------------------------------------------------------

    def create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        from deltalake import DeltaTable, Schema

        before = Schema.from_json(schema.json())
        self._table = DeltaTable.create(
            self._address,
            before,
            mode="ignore",
            partition_by=list(partition_by),
            storage_options=self._storage,
        )
        self._sync(-1)

    def add_columns(self, fields: Sequence[StructField]) -> None:
        from deltalake import Schema

        seen = self._seen.version()
        columns = Schema.from_json(StructType(list(fields)).json()).fields
        self._seen.alter.add_columns(columns)
        self._sync(seen)

    def _commit(self, batch: BatchRows, application: str) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        seen = self._seen.version()
        now_ms = time.time_ns() // 1_000_000
        noted = [Transaction(application, batch.number, last_updated=now_ms)]
        try:
            if batch.keys:
                # Once: whose rows are to be replaced is to be looked up in the table as it is.
                once = CommitProperties(app_transactions=noted, max_commit_retries=0)
                self._merge(batch, once)
            else:
                self._append(batch, CommitProperties(app_transactions=noted))
        except CommitFailedError as error:
            raise SomebodyWasFirst(str(error)) from error
        except DeltaError as error:
            raise ValueError(str(error)) from error
        self._sync(seen)

    def _append(self, batch: BatchRows, properties: CommitProperties) -> None:
        from deltalake import Schema
        from deltalake.transaction import AddAction, RemoveAction

        added: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, f.partition, f.modified_ms, True, f.stats)
            for f in [AddedFile(**file) for file in batch.files]
        ]
        schema = Schema.from_json(self.schema.json())
        self._seen.create_write_transaction(
            added, "append", schema, self.partition_by, commit_properties=properties
        )

    def _merge(self, batch: BatchRows, properties: CommitProperties) -> None:
        """Rows take the place of those with the same keys."""
        given = set(batch.schema.names)
        values = {f"`{n}`": f"s.`{n}`" if n in given else "NULL" for n in self.schema.names}
        keys = KeySet(stored_rows(batch, batch.keys).read_all())
        (
            self._seen.merge(
                stored_rows(batch),
                condition(keys, self.schema, self.partition_by),
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            .when_matched_update(values)
            .when_not_matched_insert(values)
            .execute()
        )

    def _settle(self, batch: BatchRows, application: str) -> None:
        log = self._local_log
        if log is None:
            return
        for version in range(self._seen.version(), -1, -1):
            for action in _actions(log / _entry_name(version)):
                noted = action.get("txn", {})
                if (noted.get("appId"), noted.get("version")) == (application, batch.number):
                    self._sync(version - 1)
                    return

    @property
    def _local_log(self) -> Path | None:
        root = self.location.local
        return None if root is None else root / "_delta_log"

    def _sync(self, seen: int) -> None:
        """Makes durable what came into a local table after version `seen`: deltalake does not. The
        files that a merge wrote have rows of earlier batches in them, of which there is nothing
        else, and this batch's are discarded next.
        """
        log = self._local_log
        if log is None:
            return
        self._seen.update_incremental()
        versions = range(seen + 1, self._seen.version() + 1)
        entries = [log / _entry_name(version) for version in versions]
        # Where the log was folded up readers begin, so what it was folded into counts as well.
        folded = [log / f"{entry.stem}.checkpoint.parquet" for entry in entries]
        root = log.parent
        files = {Path(file) for entry in entries for file in _written(entry)}
        folders = {folder for file in files for folder in file.parents}
        below = [root / path for path in (*files, *folders)]
        for path in (*below, *entries, *folded, log / _NEWEST_FOLDED, log, root, root.parent):
            _fsync(path)


def _seconds(interval: str) -> float:
    """How long an interval such as `interval 1 week 2 days` is; what can't be read is nothing."""
    words = interval.lower().split()
    words = words[words[:1] == ["interval"] :]
    try:
        pairs = zip(words[::2], words[1::2], strict=True)
        return sum(float(count) * _UNITS_S[unit.removesuffix("s")] for count, unit in pairs)
    except (KeyError, ValueError):
        return 0.0


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


def _actions(entry: Path) -> list[dict[str, Any]]:
    """What an entry of the log does; nothing if it was folded into a checkpoint of the log, and
    deleted.
    """
    try:
        return [json.loads(line) for line in entry.read_text().splitlines()]
    except FileNotFoundError:
        return []


def _written(entry: Path) -> list[str]:
    """The files that an entry brings, below the table: rows, and the changes that lead to them."""
    actions = [action[kind] for action in _actions(entry) for kind in _FILES if kind in action]
    return [unquote(action["path"]) for action in actions]


def _fsync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # others may have folded up the log, or replaced the file, since
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

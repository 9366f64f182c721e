"""Output as files, in any format that Spark writes.

They are written where they will stay, under unique names, and become visible through
`_spark_metadata`, as those of Spark's own file sink do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from braided import failpoints
from braided.errors import (
    CheckpointMismatchError,
    CheckpointWriteError,
    PublishError,
    UnsupportedError,
)
from braided.sinks.base import SinkSetting
from braided.spark.file_listing import FileListing
from braided.spark.jvm import Jvm
from braided.spark.local_files import LocalFiles
from braided.spark.reasons import is_of_spark, reason
from braided.spark.store_settings import session_store
from braided.store.durable.location import Location
from braided.store.durable.store import Store

__all__ = ["FileSink", "FilesOut", "sync_directories"]

_LOG = "_spark_metadata"
_LOG_VERSION = "v1"
"""The first line of a sink log's files."""


class FilesOut:
    """Runs plans into files and notes the files' names."""

    def __init__(
        self,
        spark: SparkSession,
        files: Store,
        format: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are those of the session in which the files are written, if it has to have
        others than the user's.
        """
        self.jvm = Jvm(spark)
        self.files = files
        self._format = self.jvm.file_format(format)
        if settings is not None:
            session = self.jvm.clone()
            for name, value in settings.items():
                session.conf.set(name, value)
            self.jvm = Jvm(session)
        self._listing = FileListing(spark)
        self._local = LocalFiles(spark)
        self.rows = 0
        """Rows that were written last."""

    def write(
        self,
        df: DataFrame,
        path: str,
        attempt: str,
        partition_by: list[str],
        options: dict[str, str],
    ) -> tuple[str, ...]:
        is_local = Location.of(path).local is not None
        self.rows = self.jvm.write_files(
            df._jdf,
            self._format,
            path,
            self._listing.log,
            attempt,
            partition_by,
            options,
            self._local.serve if is_local else _say_nothing,
        )
        entries = self._listing.entries()
        if is_local:
            _sync({Path(unquote(urlsplit(json.loads(entry)["path"]).path)) for entry in entries})
        return entries


def _say_nothing(hadoop: Any) -> None:
    """Hadoop's settings are good as they are."""


def _sync(paths: set[Path]) -> None:
    """Makes files durable before a manifest names them: Spark's writers leave that to chance."""
    for path in paths | {path.parent for path in paths}:
        if not path.exists():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_directories(root: Path, below: str) -> None:
    """Makes the names of directories durable that lie anywhere below a directory of `root`."""
    inside = [Path(way) for way, _, _ in os.walk(root / below)]
    _sync({root / below, *inside})


def _store(spark: SparkSession, path: str) -> Store | None:
    """The store at an output path; None where only Spark can reach it."""
    try:
        return session_store(spark, path)
    except UnsupportedError:
        return None


class FileSink:
    """Parquet, ORC, JSON, CSV, text and other file formats, exactly once."""

    kind = "files"
    earlier_name: str | None = "FileSink"
    keeps = True
    newest_only = False

    def __init__(
        self, format: str, path: str, partition_by: list[str], options: dict[str, str]
    ) -> None:
        self._format = format
        self.path = path
        self._partition_by = partition_by
        self._options = options

    @property
    def target(self) -> str:
        return self.path

    @property
    def owned_path(self) -> str:
        return self.path

    def open(self, setting: SinkSetting) -> None:
        self._out = FilesOut(setting.spark, setting.files, self._format)
        self._store = _store(setting.spark, self.path)
        self._check_log(setting.newest)
        self.create_target()
        try:
            self._log = self._out.jvm.sink_log(self._log_path)
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise PublishError(
                f"the output path {self.path} can't be written: {reason(error)}"
            ) from None

    @property
    def _log_path(self) -> str:
        return f"{self.path}/{_LOG}"

    def _check_log(self, newest: int) -> None:
        latest: int | None = None
        if self._store is None or self._store.list(_LOG):  # to open it would make the directory
            latest = self._out.jvm.latest_in_sink_log(self._out.jvm.sink_log(self._log_path))
        written = -1 if latest is None else latest
        if written not in (newest, newest - 1):
            raise CheckpointMismatchError(
                f"the log of the output path {self.path} (_spark_metadata) ends with batch "
                f"{written} and the checkpoint with batch {newest}: they are not of one "
                "query. Batches would be taken for written already, or be missing. Use the "
                "checkpoint that goes with the path, or another path and a new checkpoint"
            )

    def strangers(self, spark: SparkSession) -> list[str]:
        """Files below the path that no stream has written, as far as they can be listed."""
        store = _store(spark, self.path)
        # A query that died before its first batch was published has left the log without an entry.
        if store is None or _LOG in store.directories(""):
            return []
        return [name for name in store.list("") if name[0] not in "._"]

    def create_target(self) -> None:
        """Makes what has to be there before the first file, once the path is known to be free."""

    def started(self) -> None:
        pass

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        return self._out.write(df, self.path, attempt, self._partition_by, self._options)

    @property
    def rows_prepared(self) -> int | None:
        return self._out.rows

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        failpoints.reach("publishing")
        statuses = [json.loads(entry) for entry in entries]
        if self._add_to_log(batch, entries, statuses):
            return
        written = self._out.jvm.paths_in_sink_log(self._log, batch)
        if not {status["path"] for status in statuses} <= written:
            raise CheckpointMismatchError(
                f"another query has written batch {batch} of the output path {self.path}: "
                "its files are in _spark_metadata, not the ones of this query"
            )

    def _add_to_log(self, batch: int, entries: tuple[str, ...], statuses: list[Any]) -> bool:
        """Makes files visible as a batch of the sink; False if the log has the batch."""
        jvm = self._out.jvm
        if not jvm.is_compacted(self._log, batch):
            # As Spark writes it, line by line, without the ten processes that it starts to do so.
            lines = "\n".join([_LOG_VERSION, *entries])
            try:
                if self._store is not None:
                    return self._store.put_if_absent(f"{_LOG}/{batch}", lines.encode())
            except CheckpointWriteError:
                pass  # a place without hard links, for one; if Spark can't either, it says why
        added = jvm.add_to_sink_log(self._log, batch, statuses)
        if Location.of(self.path).local is not None:
            _sync({Path(self._log_path) / f"{batch}.compact"})
        return added

    def discard(self, entries: tuple[str, ...]) -> None:
        pass  # what was written is the output itself

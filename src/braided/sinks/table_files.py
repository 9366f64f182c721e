"""A sink whose files lie in a table before the table names them.

Spark's tasks write a batch's Parquet files below the table before the manifest. Nobody who reads
the table sees them. After the manifest one change of the table names them all (`table_log.py`).
What the formats do alike is here: what is looked at and when, and what is deleted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from braided import failpoints
from braided.errors import DefinitionError, OutputSchemaError
from braided.sinks.base import SinkSetting
from braided.sinks.files import FilesOut, sync_directories
from braided.sinks.fitting import as_nullable, misfit, new_fields, spelled_as, unknown_type
from braided.sinks.parquet_facts import FileFacts, read_facts
from braided.sinks.table_log import BatchRows, FileEntry, TableLog
from braided.spark.sql_text import quoted
from braided.store.durable.location import Location
from braided.store.durable.store import Store

__all__ = ["TableFilesSink", "Unfit"]

_PARQUET = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""What the files of tables are, whatever the session is set to."""

_AT = "preparedAt"
"""When a batch was prepared, by the clock, as a manifest has it."""

_ZONE = {"timeZone": "UTC"}
"""The zone of timestamps that become the name of a directory."""


class Unfit(Exception):
    """Rows that the table would not take, with the reason."""


class TableFilesSink:
    """A table, exactly once."""

    kind: ClassVar[str]
    mark: ClassVar[str]
    """In the first entry of what is prepared."""
    earlier_name: str | None = None
    owned_path = None
    keeps = True
    target: str

    def __init__(
        self,
        log: TableLog,
        schema: StructType,
        partition_by: list[str],
        keys: list[str],
        options: dict[str, str],
    ) -> None:
        """Refuses what can't be, with a sentence, and leaves no trace. Rows replace those with the
        same values of `keys`, if there are any.
        """
        self._log = log
        self._keys = keys
        self._schema = schema
        self._asked = partition_by
        merge = [value for name, value in options.items() if name.lower() == "mergeschema"]
        self._merges = any(value.lower() == "true" for value in merge)
        self._options = {k: v for k, v in options.items() if k.lower() != "mergeschema"} | _ZONE
        self._check_start()

    def _check_start(self) -> None:
        problem = self._refused()
        if problem:
            raise DefinitionError(f"format({self.kind!r}), {self._log.title}: {problem}")

    def _refused(self) -> str | None:
        kind = unknown_type(self._schema)
        if kind is not None:
            return f"tables of this format have no columns such as {kind}"
        if not self._log.exists():
            return self._refused_to_make() or self._bad_partition(self._schema, self._asked)
        asked = self._log.not_for_us
        if asked:
            return self._asks_too_much(asked)
        columns = self._log.partition_by
        if self._asked and [c.lower() for c in self._asked] != [c.lower() for c in columns]:
            return f"it is partitioned by ({', '.join(columns)}), not by ({', '.join(self._asked)})"
        return misfit(self._log.schema, self._schema, self._merges) or self._bad_partition(
            self._log.schema, columns
        )

    def _bad_partition(self, schema: StructType, columns: Sequence[str]) -> str | None:
        for name in columns:
            if name.lower() not in map(str.lower, self._schema.names):
                return f"it is partitioned by {name!r}, which the output lacks"
        return None

    # -- what differs --------------------------------------------------------------------------

    def _refused_to_make(self) -> str | None:
        """Why there can't be a new table for the output; None if nothing speaks against it."""
        raise NotImplementedError

    def _asks_too_much(self, asked: str) -> str:
        """What to do about a table that asks more of its writers than we can do."""
        raise NotImplementedError

    def _root_and_store(self, spark: SparkSession) -> tuple[Location, Store]:
        """Where files of the table lie."""
        raise NotImplementedError

    def _laid_out(self, rows: DataFrame) -> tuple[DataFrame, list[str]]:
        """The rows as they are written, and the columns whose values are names of directories."""
        return rows, self._log.partition_by

    def _described(
        self, path: str, status: dict[str, Any], facts: FileFacts, directories: Sequence[str]
    ) -> FileEntry:
        """A file as the table is to name it."""
        raise NotImplementedError

    def _has_nulls(self, column: str, file: FileEntry, facts: FileFacts) -> bool:
        return bool(facts.nulls[column])

    def _misplaced(self, files: Sequence[FileEntry]) -> str | None:
        """Why the table will not take files; None if it will."""
        return None

    # -- the life of a sink ------------------------------------------------------------------

    @property
    def newest_only(self) -> bool:
        return bool(self._keys)

    def open(self, setting: SinkSetting) -> None:
        self._application = setting.identity
        self._newest = setting.newest
        self._out = FilesOut(setting.spark, setting.files, "parquet", _PARQUET)
        # What is of this sink lies together, so that what nobody will publish can be found.
        self._home = f"braided-{hashlib.sha256(setting.identity.encode()).hexdigest()[:12]}"
        if not self._log.exists():
            self._log.create(as_nullable(self._schema), self._asked)
        added = new_fields(self._log.schema, self._schema)
        if added and self._merges:
            self._log.add_columns(added)
        self._check_start()  # somebody else may have made it meanwhile
        self._root, self._store = self._root_and_store(setting.spark)
        self._log.check_age(self._application, setting.newest)
        self._attempts = self._left(setting.newest)

    def _left(self, newest: int) -> list[str]:
        """The attempts at the newest batch, of which one was committed, and at later ones. None is
        deleted before its batch is published: who was taken over from may have looked at its lease
        and not yet written its manifest, and an attempt of its may still become the batch.
        """
        attempts = [way.rpartition("/")[2] for way in self._store.directories(self._home)]
        return [attempt for attempt in attempts if _batch_of(attempt) >= newest]

    def started(self) -> None:
        pass

    @property
    def rows_prepared(self) -> int | None:
        return self._out.rows

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        try:
            return self._written(df, attempt)
        except Unfit as problem:
            raise OutputSchemaError(f"{problem}. Nothing of the batch is committed") from None

    def _written(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        """Writes rows to files that the table does not name; `Unfit` if it would not take them."""
        if not self._log.exists():
            raise Unfit(f"the {self._log.title} is gone")
        problem = misfit(self._log.schema, df.schema) or self._log.not_for_us
        if problem:
            raise Unfit(f"the {self._log.title} was changed while the query ran: {problem}")
        self._attempts.append(attempt)
        rows = spelled_as(self._log.schema, df)
        if self._keys:
            rows = _last_of_each(rows, self._keys)
        laid_out, directories = self._laid_out(rows)
        path = f"{self._root.text}/{self._home}/{attempt}"
        statuses = self._out.write(laid_out, path, attempt, directories, self._options)
        files = self._files([json.loads(status) for status in statuses], directories)
        if self._root.local is not None:
            sync_directories(self._root.local, self._home)
        header = {
            self.mark: 1,
            "attempt": attempt,
            "schema": rows.schema.jsonValue(),
            _AT: time.time(),
        }
        if self._keys:
            keys = {key.lower() for key in self._keys}
            header["keys"] = [name for name in rows.columns if name.lower() in keys]
        return (json.dumps(header), *map(json.dumps, files))

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        failpoints.reach("publishing")
        self._add(batch, entries)
        failpoints.reach("table-logged")
        self._delete_others(batch, entries)

    def _add(self, batch: int, entries: tuple[str, ...]) -> bool:
        """Names a batch's files in the table; False if it has the batch, with whatever files."""
        header, *files = map(json.loads, entries)
        if not files:
            return True
        schema = StructType.fromJson(header["schema"])
        keys, prepared_s = tuple(header.get("keys", ())), None
        if batch <= self._newest:
            prepared_s = header.get(_AT)
        rows = BatchRows(batch, files, schema, keys, self._store, prepared_s)
        return self._log.publish(rows, self._application)

    def _delete_others(self, batch: int, entries: tuple[str, ...]) -> None:
        """Deletes what other attempts at a batch have left whose files the table now names."""
        named = json.loads(entries[0])["attempt"]
        for attempt in self._attempts:
            if _batch_of(attempt) == batch and attempt != named:
                self._delete(attempt)
        self._attempts = [attempt for attempt in self._attempts if _batch_of(attempt) > batch]

    def discard(self, entries: tuple[str, ...]) -> None:
        pass  # what was written is the output itself

    # -- files -----------------------------------------------------------------------------------

    def _files(self, statuses: list[dict[str, Any]], directories: Sequence[str]) -> list[FileEntry]:
        """The files with rows in them, as the table is to name them."""
        root = f"/{self._root.key.lstrip('/')}".rstrip("/") + "/"
        paths = [unquote(urlsplit(s["path"]).path).removeprefix(root) for s in statuses]
        facts_of = read_facts(self._store, paths)
        found = [
            (self._described(path, status, facts, directories), facts)
            for path, status, facts in zip(paths, statuses, facts_of, strict=True)
            if facts.rows
        ]
        self._store.delete([p for p, facts in zip(paths, facts_of, strict=True) if not facts.rows])
        self._check_nulls(found)
        files = [file for file, _ in found]
        problem = self._misplaced(files)
        if problem:
            raise Unfit(f"the {self._log.title}: {problem}")
        return files

    def _check_nulls(self, files: Sequence[tuple[FileEntry, FileFacts]]) -> None:
        for name in [field.name for field in self._log.schema.fields if not field.nullable]:
            if any(self._has_nulls(name, file, facts) for file, facts in files):
                raise Unfit(
                    f"column {name!r} of the {self._log.title} must not be null, and the output "
                    "has nulls in it"
                )

    def _delete(self, attempt: str) -> None:
        self._store.delete_directory(f"{self._home}/{attempt}")


def _last_of_each(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Of the rows with the same keys the last. Those of an operator's key are in one partition, in
    the order in which they were given out.
    """
    every = [quoted(name) for name in rows.columns]
    numbered = rows.select(
        F.struct(*every).alias("row"), F.monotonically_increasing_id().alias("number")
    )
    by = [F.col(f"row.{quoted(key)}") for key in keys]
    last = numbered.groupBy(*by).agg(F.max_by("row", "number").alias("row"))
    return last.select("row.*")


def _batch_of(attempt: str) -> int:
    """The batch that an attempt was at; -1 for what is no attempt of ours."""
    number = attempt.partition("-")[0]
    return int(number) if number.isdigit() else -1

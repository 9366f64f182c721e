"""A data source in Python, in a module that workers can import: rows into SQLite.

Called "delta" it keeps the one rule of Delta Lake's that matters to a sink: a write whose
application and version it has seen is skipped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

__all__ = ["DeltaRule", "Sqlite", "rows_in", "session_of_its_own", "session_with_delta"]


@dataclass
class Taken(WriterCommitMessage):
    rows: list[Any]


class Writer(DataSourceWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Taken:
        return Taken([tuple(row) for row in iterator])

    def commit(self, messages: list[Taken | None]) -> None:  # type: ignore[override]
        version = [self._options.get(name) for name in ("txnappid", "txnversion")]
        with sqlite3.connect(self._options["path"]) as db:
            db.execute("CREATE TABLE IF NOT EXISTS given (k, c, v, seq)")
            db.execute("CREATE TABLE IF NOT EXISTS versions (app, version)")
            if version[0] is not None:
                known = db.execute("SELECT * FROM versions WHERE app = ? AND version >= ?", version)
                if known.fetchone():
                    return
                db.execute("INSERT INTO versions VALUES (?, ?)", version)
            rows = [row for message in messages if message for row in message.rows]
            db.executemany("INSERT INTO given VALUES (?, ?, ?, ?)", rows)


class Sqlite(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sqlite_rows"

    def schema(self) -> str:
        return "k string, c int, v long, seq long"

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        assert not overwrite
        return Writer(dict(self.options))


class DeltaRule(Sqlite):
    @classmethod
    def name(cls) -> str:
        return "delta"


def session_with_delta(spark: SparkSession, source: type[DataSource] = DeltaRule) -> SparkSession:
    """A session with something called delta that skips known transactions; Delta Lake itself is
    not at hand.
    """
    session = session_of_its_own(spark)
    session.dataSource.register(source)
    return session


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """A session whose data sources no other test finds."""
    session = spark.newSession()
    # Makes it the active one: Spark refuses a name that the session which is active has already.
    session.createDataFrame([(0,)], "n int")
    return session


def rows_in(path: str, table: str = "given") -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as db:
        return db.execute(f"SELECT * FROM {table}").fetchall()

"""Tables whose query was taken over from: an attempt of the old driver's may become the batch as
long as nobody has committed it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided.sinks.base import SinkSetting
from braided.sinks.delta import DeltaLogSink
from braided.sinks.iceberg import IcebergSink
from braided.sinks.table_files import TableFilesSink
from braided.store.durable.local_store import LocalStore
from support.iceberg import catalog_at, catalog_options, data_files_of
from support.stream_harness import Lab

SCHEMA = StructType().add("k", "string").add("n", "long")


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("keys", [[], ["k"]])
def test_an_attempt_of_the_old_driver_is_there_when_its_manifest_comes_after_the_takeover(
    lab: Lab, format: str, keys: list[str]
) -> None:
    """It has looked at its lease and stands still before it writes the manifest of batch 1."""
    old = opened(lab, format, keys, newest=0)
    of_old = old.prepare(rows(lab, "old"), "1-old-0")
    heir = opened(lab, format, keys, newest=0)
    heir.prepare(rows(lab, "heir"), "1-heir-0")
    # The old driver's manifest was first. Whoever comes next publishes the batch that it names.
    next_one = opened(lab, format, keys, newest=1)
    next_one.prepare(rows(lab, "later"), "2-later-0")
    next_one.publish(lab.spark, 1, of_old)
    assert rows_in(lab, format) == [("old", 1)]
    # What lost goes with it, but nothing of a batch that nobody has committed yet.
    last = opened(lab, format, keys, newest=1)
    assert "2-later-0" in attempts(lab, format) and "1-heir-0" not in attempts(lab, format)
    of_last = last.prepare(rows(lab, "last"), "2-last-0")
    last.publish(lab.spark, 1, of_old)
    last.publish(lab.spark, 2, of_last)
    for entries in (of_old, of_last):
        last.discard(entries)
    assert rows_in(lab, format) == [("last", 1), ("old", 1)]
    there, named = files(lab, format)
    assert there == named


def opened(lab: Lab, format: str, keys: list[str], newest: int) -> TableFilesSink:
    """The sink of a driver that starts."""
    sink: TableFilesSink
    if format == "delta":
        sink = DeltaLogSink(lab.spark, str(lab.out), SCHEMA, [], keys, {})
    else:
        catalog_at(lab.home)
        sink = IcebergSink(lab.spark, "db.t", SCHEMA, [], keys, catalog_options(lab.home))
    files = LocalStore(str(lab.checkpoint))
    sink.open(SinkSetting(lab.spark, files, newest, "flow/sink", lambda: None, ExitStack()))
    return sink


def rows(lab: Lab, k: str) -> DataFrame:
    return lab.spark.createDataFrame([(k, 1)], SCHEMA)


def rows_in(lab: Lab, format: str) -> list[tuple[str, int]]:
    if format == "delta":
        found = DeltaTable(str(lab.out)).to_pyarrow_table()
    else:
        found = catalog_at(lab.home).load_table("db.t").scan().to_arrow()
    return sorted((row["k"], row["n"]) for row in found.to_pylist())


def files(lab: Lab, format: str) -> tuple[set[Path], set[Path]]:
    """Those that lie in the table, and those that it names."""
    if format == "iceberg":
        return data_files_of(catalog_at(lab.home).load_table("db.t"))
    there = {file for file in lab.out.rglob("*.parquet") if "_delta_log" not in file.parts}
    return there, {Path(uri) for uri in DeltaTable(str(lab.out)).file_uris()}


def attempts(lab: Lab, format: str) -> set[str]:
    place = lab.out if format == "delta" else lab.home / "warehouse/db/t/data"
    return {path.name for path in place.glob("braided-*/*")}

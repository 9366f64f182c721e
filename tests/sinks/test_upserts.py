"""Rows that replace those with the same key in a table, batch by batch, against a dict."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType

from braided.errors import PublishError
from braided.sinks import table_log
from braided.sinks.delta_log import DeltaLog
from braided.sinks.iceberg_log import IcebergLog
from braided.sinks.table_log import BatchRows, TableLog
from braided.store.durable.local_store import LocalStore
from braided.store.durable.location import Location
from support.iceberg import catalog_at, catalog_options, data_files_of

GIVEN = StructType()
for _name, _type in (("Name", "string"), ("day", "date"), ("x", "double"), ("n", "long")):
    GIVEN.add(_name, _type)
COLUMNS = StructType(GIVEN.fields).add("other", "long")
ARROW = pa.schema(
    [("Name", pa.string()), ("day", pa.date32()), ("x", pa.float64()), ("n", pa.int64())]
)
Row = tuple[Any, ...]


class Place:
    """A table of a format, as others see it."""

    def __init__(self, home: Path, format: str) -> None:
        self.home = home
        self.format = format
        self.catalog = catalog_at(home) if format == "iceberg" else None
        self.files = home / "delta" if self.catalog is None else home / "warehouse/db/t/data"

    def log(self) -> TableLog:
        if self.catalog is None:
            return DeltaLog(Location.of(str(self.home / "delta")), {})
        given = {k.partition(".")[2]: v for k, v in catalog_options(self.home).items()}
        return IcebergLog("lake", "db.t", {k: v for k, v in given.items() if k})

    def rows(self) -> list[Row]:
        if self.catalog is None:
            table = DeltaTable(str(self.home / "delta")).to_pyarrow_table()
        else:
            table = self.catalog.load_table("db.t").scan().to_arrow()
        return [tuple(row[name] for name in COLUMNS.names) for row in table.to_pylist()]

    def append(self, rows: pa.Table) -> None:
        """As others do."""
        if self.catalog is None:
            write_deltalake(str(self.home / "delta"), rows, mode="append")
        else:
            self.catalog.load_table("db.t").append(rows)

    def batch(self, number: int, rows: list[Row], *keys: str) -> BatchRows:
        """What tasks leave of a batch: two files, of which one may be empty."""
        files = []
        for part in range(2):
            path = f"braided-0/{number}-x/part-{part}.parquet"
            (self.files / path).parent.mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(
                [dict(zip(ARROW.names, row, strict=True)) for row in rows[part::2]], ARROW
            )
            pq.write_table(table, self.files / path)
            files.append({"path": path, "root": f"file://{self.files}"})
        return BatchRows(number, files, GIVEN, keys, LocalStore(str(self.files)))


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


NOBODYS = ("nobody's", None, None, 1, 7)


def start(place: Place, *partition_by: str) -> TableLog:
    log = place.log()
    assert not log.exists()
    log.create(COLUMNS, partition_by)
    place.append(theirs(NOBODYS))
    return log


def theirs(row: Row) -> pa.Table:
    """A row as others write it."""
    types = pa.schema([*ARROW, pa.field("other", pa.int64())])
    return pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True))], types)


NANS = struct.unpack("<2d", struct.pack("<2Q", 0x7FF8 << 48, 0xFFF8 << 48 | 1))


def key_of(row: Row) -> str:
    return repr(row[:3]).replace("-0.0", "0.0")


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_every_key_has_the_row_of_its_newest_batch(
    place: Place, partition_by: tuple[str, ...]
) -> None:
    log, draw = start(place, *partition_by), random.Random(5)
    days: list[Any] = [None, *pa.array([0, 1], pa.date32()).to_pylist()]
    expected: dict[str, Row] = {key_of(NOBODYS): NOBODYS}
    for number in range(8):
        rows: dict[str, Row] = {}
        own = draw.choice(days)  # a file is of one partition
        for _ in range(draw.choice([1, 4, 12])):
            name = draw.choice([None, "", "a", "b'`\"c", "long " * 20])
            x = draw.choice([None, 0.5, 7.0, float("inf"), 0.0, -0.0, *NANS])
            day = own if partition_by else draw.choice(days)
            row = (name, day, x, draw.randrange(10**9))
            rows[key_of(row)] = row
        batch = place.batch(number, list(rows.values()), "Name", "day", "x")
        expected |= {key: (*row, None) for key, row in rows.items()}
        assert place.log().publish(batch, "us")
        assert not place.log().publish(batch, "us")  # again, after a crash
        assert sorted(map(repr, place.rows())) == sorted(map(repr, expected.values()))
    assert log.exists() and log.batch_of("us") == 7 and log.batch_of("others") is None


def test_who_comes_second_looks_up_again_whose_rows_to_replace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(place)
    monkeypatch.setattr(table_log, "_PAUSE_S", 0.0)

    def between(act: Callable[[], Any]) -> pytest.MonkeyPatch:
        patch, look, times = pytest.MonkeyPatch(), TableLog._look_again, iter(range(9))

        def looked(log: TableLog, batch: BatchRows) -> None:
            look(log, batch)
            if next(times) == 0:
                act()

        patch.setattr(TableLog, "_look_again", looked)
        return patch

    first = place.batch(0, [("a", None, 1.0, 1), ("b", None, 1.0, 1)], "Name")
    # The same row comes from others, and the same batch from another process.
    patch = between(lambda: place.append(theirs(("a", None, None, 99, None))))
    assert place.log().publish(first, "us")
    patch.undo()
    assert sorted(row[0] for row in place.rows()) == ["a", "b", "nobody's"]
    second = place.batch(1, [("a", None, 2.0, 2)], "Name")
    patch = between(lambda: place.log().publish(second, "us"))
    assert not place.log().publish(second, "us")
    patch.undo()
    assert sorted((row[0], row[3]) for row in place.rows()) == [
        ("a", 2), ("b", 1), ("nobody's", 1),
    ]  # fmt: skip


def test_files_of_an_earlier_partition_spec_are_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, "iceberg")
    start(place)
    assert place.log().publish(place.batch(0, [("a", None, 1.0, 1)], "Name"), "us")
    table = place.catalog.load_table("db.t")  # type: ignore[union-attr]
    with table.update_spec() as update:
        update.add_identity("day")
    with pytest.raises(PublishError, match="earlier partition spec"):
        place.log().publish(place.batch(1, [("a", None, 1.0, 2)], "Name"), "us")
    assert sorted((row[0], row[3]) for row in place.rows()) == [("a", 1), ("nobody's", 1)]


class Disk:
    """Which files and directories were synced, and in which order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[Path] = []
        sync = os.fsync

        def noted(descriptor: int) -> None:
            self.synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            sync(descriptor)

        patch.setattr(os, "fsync", noted)


@pytest.mark.parametrize("dies", [False, True])
def test_rows_that_stay_are_durable_once_a_batch_is_published(
    place: Place, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """They are written anew with those of the batch. Who published may die before it has seen to
    that; then who comes next does.
    """
    start(place, "Name")
    disk, written = Disk(monkeypatch), set()
    for number in range(3):
        named = files_of(place)
        xs = (float(number), 50.0 + number, 9.0, 60.0 + number)  # of which one comes each time
        rows: list[Row] = [("x=y %é/z", None, x, number) for x in xs]
        batch = place.batch(number, rows, "Name", "x")
        if dies:
            log = place.log()
            with monkeypatch.context() as patch, pytest.raises(PublishError, match="power cut"):
                patch.setattr(log, "_sync", failing)
                log.publish(batch, "us")
            new = files_of(place) - named
            place.append(theirs(("theirs", None, None, number, 7)))
            assert not place.log().publish(batch, "us")
        else:
            assert place.log().publish(batch, "us")
            new = files_of(place) - named
        new -= {place.files / file["path"] for file in batch.files}  # durable since before
        written |= new
        assert new | {file.parent for file in new} <= set(disk.synced)
        if place.catalog is None:  # an entry of the log is worth nothing without them
            ends = [path.suffix for path in disk.synced]
            assert max(map(disk.synced.index, new)) < ends.index(".json")
        disk.synced.clear()
    assert len(written) >= 2


def failing(*args: Any) -> None:
    raise OSError("power cut")


def files_of(place: Place) -> set[Path]:
    """Those that the table names."""
    if place.catalog is None:
        return {Path(uri) for uri in DeltaTable(str(place.home / "delta")).file_uris()}
    return data_files_of(place.catalog.load_table("db.t"))[1]

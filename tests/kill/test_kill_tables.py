"""Exactly once under kill -9 in tables that others write to as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from support.iceberg import catalog_at, data_files_of
from support.kill.crashes import Scene
from support.kill.exact import OFTEN, TABLE_STEPS, ordered
from support.kill.oracle import InputRow, random_batches, totals
from support.kill.tables import TABLES, rows_of


def test_a_driver_killed_at_each_step_leaves_every_row_once_in_tables(
    tmp_path: Path, java: str
) -> None:
    batches = random_batches(9)
    scene = Scene(tmp_path, batches, "totals", sink="tables", java=java, **OFTEN)
    try:
        for number, (point, level) in enumerate(TABLE_STEPS.items()):
            scene.dies_at(point)
            committed = scene.committed_batch()
            assert committed < len(batches) - 1, "too little input for so many deaths"
            for place, table in enumerate(TABLES):
                seen = committed + (place < level)
                assert ours(scene, table) == expected(batches[:seen], table), (point, table)
            somebody_writes(scene.output, number)
        scene.finishes()
        assert scene.committed_batch() == scene.spark_batch() == len(batches) - 1
        assert scene.state().records == totals(batches)[1]
        for table in TABLES:
            assert ours(scene, table) == expected(batches, table), table
            assert len(rows_of(scene.output, table)) == len(expected(batches, table)) + len(
                TABLE_STEPS
            )
        # Nothing is left of the attempts that came to nothing.
        delta = scene.output / "delta"
        files = {file for file in delta.rglob("*.parquet") if "_delta_log" not in file.parts}
        assert files == {Path(uri) for uri in DeltaTable(str(delta)).file_uris()}
        there, named = data_files_of(catalog_at(scene.output).load_table("db.iceberg"))
        assert there == named
    finally:
        scene.end_all()


def expected(batches: list[list[InputRow]], table: str) -> list[tuple[Any, ...]]:
    rows = totals(batches)[0]
    return ordered(list({row.key: row for row in rows}.values()) if "by key" in table else rows)


def ours(scene: Scene, table: str) -> list[tuple[Any, ...]]:
    return ordered([row for row in rows_of(scene.output, table) if row["id"] >= 0])


def somebody_writes(home: Path, number: int) -> None:
    """Somebody else writes to the tables, as they may."""
    theirs = {"id": [-number - 1], "key": [f"theirs {number}"], "count": [0], "total": [0]}
    for table in TABLES:
        if table.startswith("delta"):
            write_deltalake(str(home / table), pa.table(theirs), mode="append")
        else:
            name = table.replace(" ", "_")
            catalog_at(home).load_table(f"db.{name}").append(pa.table(theirs))

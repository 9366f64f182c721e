"""A flow that writes to four tables: of each format one that is added to, and one by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.exceptions import NoSuchTableError

import braided
from braided.api.writer import StreamWriter
from support.iceberg import catalog_at, catalog_options

__all__ = ["TABLES", "rows_of", "writers"]

TABLES = ("delta", "iceberg", "delta by key", "iceberg by key")
"""In the order in which they are written."""


def writers(flow: braided.Stream, home: Path) -> list[StreamWriter]:
    catalog_at(home)
    found = []
    for table in TABLES:
        format, _, by_key = table.partition(" ")
        writer = flow.writeStream.format(format).outputMode("update" if by_key else "append")
        if format == "delta":
            writer.option("path", str(home / table))
        else:
            writer.options(**catalog_options(home)).table(f"db.{_name(table)}")
        found.append(writer)
    return found


def rows_of(home: Path, table: str) -> list[dict[str, Any]]:
    """What a reader of a table sees."""
    if table.startswith("delta"):
        path = str(home / table)
        if not DeltaTable.is_deltatable(path):
            return []
        rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
        return rows
    try:
        found = catalog_at(home).load_table(f"db.{_name(table)}")
    except NoSuchTableError:
        return []
    rows = found.scan().to_arrow().to_pylist()
    return rows


def _name(table: str) -> str:
    return table.replace(" ", "_")

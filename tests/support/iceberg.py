"""Catalogs of Iceberg's on a disk, and what is in their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

__all__ = ["catalog_at", "catalog_options", "data_files_of", "rows_in"]


def catalog_options(home: Path) -> dict[str, str]:
    """What a query is told of the catalog at a place."""
    return {
        "catalog": "lake",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{home}/catalog.db",
        "catalog.warehouse": f"file://{home}/warehouse",
    }


def catalog_at(home: Path) -> SqlCatalog:
    """The catalog at a place, which is made if it is missing, with the namespace `db`."""
    home.mkdir(parents=True, exist_ok=True)
    options = {name.partition(".")[2]: value for name, value in catalog_options(home).items()}
    catalog = load_catalog("lake", **{name: value for name, value in options.items() if name})
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("db")
    return catalog


def rows_in(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    found = table.scan(selected_fields=columns or ("*",)).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def data_files_of(table: Table) -> tuple[set[Path], set[Path]]:
    """The files that lie in a local table, and those that its newest snapshot names."""
    there = Path(urlsplit(table.location_provider().data_path).path).rglob("*.parquet")
    named = {Path(urlsplit(task.file.file_path).path) for task in table.scan().plan_files()}
    return set(there), named

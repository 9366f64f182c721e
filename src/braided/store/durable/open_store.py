"""Which store belongs to a location, or the sentence that says that none does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from braided.errors import UnsupportedError
from braided.store.durable.hdfs_store import HdfsStore
from braided.store.durable.local_store import LocalStore
from braided.store.durable.location import Location
from braided.store.durable.object_store import SCHEMES, ObjectStore
from braided.store.durable.store import Store

__all__ = ["checkpoint_store", "open_store"]


def open_store(location: str | Path | Location, settings: Mapping[str, str] | None = None) -> Store:
    """The store at a location; `settings` are those of the store's client."""
    where = Location.of(location)
    if where.local is not None:
        return LocalStore(where.local)
    if where.scheme in (*SCHEMES, "memory"):
        return ObjectStore(where, settings)
    if where.scheme == "hdfs":
        return HdfsStore(where, settings)
    raise UnsupportedError(
        f"{where}: Braided keeps nothing on {where.scheme!r}, because it knows no atomic "
        "create-if-absent there. What works: local and mounted paths (a mount of the same store "
        "too, if it has hard links), s3a://, gs://, abfss:// and hdfs://"
    )


def checkpoint_store(
    checkpoint: str | Path | Location, settings: Mapping[str, str] | None = None
) -> Store:
    """What Braided keeps in a query's checkpoint, beside what Spark does."""
    return open_store(Location.of(checkpoint) / "braided", settings)

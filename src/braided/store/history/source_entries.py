"""Copies of what Spark's sources of files have noted, where somebody else may replace the original.

A copy is written before the manifest that names it and is never changed. It goes with the last
manifest that names it (`garbage.py`). Which entries are worth a copy, and for how long, is known to
`spark/source_log.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from braided.store.durable.store import Store
from braided.store.history.manifest import SourceEntry
from braided.store.history.runs import digest_of, read_checked

__all__ = ["DIRECTORY", "copy_entries", "read_entries"]

DIRECTORY = "sources"


def copy_entries(
    files: Store, batch: int, texts: Mapping[tuple[int, int], str]
) -> tuple[SourceEntry, ...]:
    """Durable copies of entries, by source and number, that a batch has read."""
    copies = []
    for (source, entry), text in sorted(texts.items()):
        data = text.encode()
        name = f"{DIRECTORY}/{batch}-{source}-{entry}-{uuid.uuid4().hex[:12]}"
        files.put(name, data)
        copies.append(SourceEntry(source, entry, name, digest_of(data)))
    return tuple(copies)


def read_entries(files: Store, copies: tuple[SourceEntry, ...]) -> dict[tuple[int, int], str]:
    """What is in copies, by source and number."""
    return {(copy.source, copy.entry): _read(files, copy) for copy in copies}


def _read(files: Store, copy: SourceEntry) -> str:
    what = f"It says which files entry {copy.entry} of Spark's sources/{copy.source} stands for"
    return bytes(read_checked(files, copy.name, copy.digest, what)).decode()

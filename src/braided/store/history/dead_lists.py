"""The files of dead letters that manifests no longer name one by one.

Diverted rows are kept for as long as the checkpoint, so there may be any number of their files,
and a full manifest that named them all would grow for ever. When a full manifest is due and many
have come together, their names go into a list of their own, a file that the manifest names instead.
Lists are merged as they become many, always so many of one level into one of the next, so that
their number grows with the logarithm of what is in them, and a name is written a few times only.

A list is written before the manifest that names it and is never changed. One that was merged into
another goes with the last manifest that names it (`garbage.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from braided.store.durable.store import Store
from braided.store.history.manifest import DeadFile, DeadList, View
from braided.store.history.runs import digest_of, read_checked

__all__ = ["dead_files", "listed"]

LISTED_FROM = 256
"""So many names are taken from a manifest at once; fewer are no burden to it."""
MERGED = 16
"""Lists of one level that become one of the next."""
LEVELS = 3
"""The largest lists are merged no more: they are as large as one wants to read at once."""

_decode = msgspec.json.Decoder(tuple[DeadFile, ...]).decode


def listed(files: Store, view: View, batch: int) -> View:
    """The view with the dead files that it names in a list, where they are many; for the full
    manifest of a batch.
    """
    if len(view.dead) < LISTED_FROM:
        return view
    dead, lists, level = list(view.dead), list(view.dead_lists), 0
    while level < LEVELS - 1 and len(lists) >= MERGED - 1:
        merged = lists[1 - MERGED :]
        if any(each.level != level for each in merged):
            break
        dead = [file for each in merged for file in _read(files, each)] + dead
        del lists[1 - MERGED :]
        level += 1
    return view.with_dead((), (*lists, _write(files, batch, dead, level)))


def dead_files(files: Store, view: View) -> tuple[DeadFile, ...]:
    """All that there are at a view, the oldest first."""
    return (*(file for each in view.dead_lists for file in _read(files, each)), *view.dead)


def _write(files: Store, batch: int, dead: Sequence[DeadFile], level: int) -> DeadList:
    data = msgspec.json.encode(dead)
    name = f"dead/{batch}-list-{uuid.uuid4().hex[:12]}.json"
    files.put(name, data)
    return DeadList(name, digest_of(data), len(dead), level)


def _read(files: Store, dead: DeadList) -> tuple[DeadFile, ...]:
    what = f"It names {dead.files} files of dead letters"
    return _decode(bytes(read_checked(files, dead.name, dead.digest, what)))

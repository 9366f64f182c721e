"""How far sources have come is told in words: files by their names, topics by their offsets."""

from __future__ import annotations

import json
from pathlib import Path

from braided.spark.source_positions import positions_told
from braided.store.durable.local_store import LocalStore


def entry(number: int, *names: str) -> str:
    return "\n".join(
        json.dumps({"path": name, "timestamp": 1, "batchId": number}) for name in names
    )


def test_files_are_named_and_offsets_are_those_of_partitions(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    positions = ['{"logOffset":3}', '{"orders":{"1":7,"0":12}}', "41", "-"]
    store.put("offsets/5", "\n".join(["v1", "{}", *positions]).encode())
    # The entries up to 2 are in a compacted one; 4 is of a batch that was not finished.
    compact = "\n".join(["v1", entry(0, "file:///in/a"), entry(1, "file:///in/b", "file:///in/c")])
    store.put("sources/0/2.compact", compact.encode())
    store.put("sources/0/1", f"v1\n{entry(1, 'file:///in/b', 'file:///in/c')}".encode())
    store.put("sources/0/3", f"v1\n{entry(3, 'file:///in/d')}".encode())
    store.put("sources/0/4", f"v1\n{entry(4, 'file:///in/late')}".encode())
    assert positions_told(store, 5) == [
        "source 0: 4 files, the newest last",
        *(f"  file:///in/{name}" for name in "abcd"),
        "source 1: topic orders, partition 0 to offset 12, 1 to offset 7 (not included)",
        '  as an option: startingOffsets {"orders":{"1":7,"0":12}}',
        "source 2: 41",
        "source 3: nothing yet",
    ]
    assert positions_told(store, 6) == []


def test_of_many_files_the_newest_are_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("offsets/0", b'v1\n{}\n{"logOffset":0}')
    names = [f"file:///in/{number}" for number in range(25)]
    store.put("sources/0/0", f"v1\n{entry(0, *names)}".encode())
    told = positions_told(store, 0)
    assert told[:2] == ["source 0: 25 files, the newest last", "  ... 15 before"]
    assert told[2:] == [f"  {name}" for name in names[15:]]


def test_files_are_not_named_where_nobody_knows_whose_they_are(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    # The first two are one source that is read twice, so the log of the third is number 1.
    store.put("offsets/0", b'v1\n{}\n{"logOffset":0}\n{"logOffset":0}\n{"logOffset":0}\n41')
    for number in range(2):
        store.put(f"sources/{number}/0", f"v1\n{entry(0, f'file:///in/{number}')}".encode())
    told = ['source 0: {"logOffset":0}', 'source 1: {"logOffset":0}', 'source 2: {"logOffset":0}']
    assert positions_told(store, 0) == [*told, "source 3: 41"]

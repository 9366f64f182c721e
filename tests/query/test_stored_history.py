"""The history of tables as the manifests tell it that are still kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from braided.control.routing.history import RoutingHistory
from braided.control.routing.key_assignment import NO_KEYS, KeyAssignment
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import CheckpointCorruptError
from braided.query.stored_tables import StoredHistory, store_assigned, stored_table, table_of
from braided.store.durable.local_store import LocalStore
from braided.store.history.garbage import Collector
from braided.store.history.manifest import Manifest, OperatorMeta, OperatorPart, to_full
from braided.store.history.manifest_log import ManifestLog

META = OperatorMeta(ordinal=0, slots=6, key="", state="", codec="1")
FULL_EVERY = 3

FIRST = RoutingTable(0, 1, np.zeros(6, dtype=np.int32))
MORE = rescale(FIRST, 3)
PINNED = RoutingTable(2, 3, MORE.slots, (Pin(b"hot", 7, 5, 2),), ("a", "b", "a"))
LESS = rescale(PINNED, 2)


def commit(manifests: ManifestLog, batch: int, table: RoutingTable) -> None:
    """A batch by a table, which a delta has only if it is new."""
    view = manifests.view_at(batch - 1, "flow")
    before = view.operators.get("op")
    stored = None if before is not None and before.epoch == table.epoch else stored_table(table)
    assigned = store_assigned(manifests, batch, {"op": table}, view)
    part = OperatorPart(
        channels=table.channels,
        meta=META if before is None else None,
        table=None if stored is None else stored.slots,
        epoch=table.epoch,
        pins=None if stored is None else stored.pins,
        hosts=None if stored is None else stored.hosts,
        assigned=assigned.get("op"),
    )
    delta = Manifest("flow", batch, False, "test", 0, 0, {"op": part})
    manifests.write(delta if batch % FULL_EVERY else to_full(view, delta))


def history(files: LocalStore, retain: int) -> RoutingHistory:
    stored = StoredHistory()
    Collector(files, ManifestLog(files), retain).collect_orphans(stored.see)
    return stored.history


def test_what_was_in_effect_is_read_back_from_the_manifests_that_are_kept(tmp_path: Path) -> None:
    files = LocalStore(tmp_path / "cp")
    assert history(files, 100).entries == ()
    manifests = ManifestLog(files)
    for batch, table in enumerate((FIRST, MORE, MORE, MORE, PINNED, LESS, LESS, LESS)):
        commit(manifests, batch, table)
    entries = history(files, 100).entries
    assert [(entry.batch, entry.tables) for entry in entries] == [
        (0, {"op": FIRST}),
        (1, {"op": MORE}),
        (4, {"op": PINNED}),
        (5, {"op": LESS}),
    ]
    newer = history(files, 4).entries  # from the full one of batch 3 on
    assert [(entry.batch, entry.tables["op"].epoch) for entry in newer] == [(3, 1), (4, 2), (5, 3)]


def test_assigned_keys_are_a_file_that_is_there_as_long_as_a_manifest_needs_it(
    tmp_path: Path,
) -> None:
    files = LocalStore(tmp_path / "cp")
    manifests, collector = ManifestLog(files), Collector(files, ManifestLog(files), 2)
    one = KeyAssignment.of([b"a", b"b"], [1, -2], [3, 4], [5, 0])
    two = KeyAssignment.of([b"a"], [1], [3], [4])
    tables = [FIRST, *[replace(FIRST, epoch=1, assigned=one)] * 6]
    tables += [*[replace(FIRST, epoch=2, assigned=two)] * 2, *[replace(FIRST, epoch=3)] * 6]
    there: list[set[str]] = []
    for batch, table in enumerate(tables):
        commit(manifests, batch, table)
        collector.collect(batch)
        there.append(set(files.list("state")))
        kept = [manifests.view_at(each) for each in manifests.batches()]
        assert there[-1] == set().union(*(view.live_files() for view in kept))
        for view in kept:
            assert table_of(view.operators["op"], manifests) == tables[view.batch]
    # Names are used once, whatever is in them: a driver that was taken over from may write late.
    (first,), (second,) = there[1], there[8] - there[1]
    assert first.startswith("state/op/1-assigned-") and second.startswith("state/op/7-assigned-")
    assert one.digest not in first and two.digest not in second
    assert there[0] == set() and there[6] == {first}
    assert there[8] == {first, second} and there[-1] == set(), "none is needed any more"
    entries = history(files, 100).entries
    assert entries[-1].tables["op"] == tables[-1]


def test_a_file_of_assigned_keys_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    files = LocalStore(tmp_path / "cp")
    manifests = ManifestLog(files)
    one = KeyAssignment.of([b"a", b"b"], [1, -2], [3, 4], [5, 0])
    assert one != NO_KEYS
    commit(manifests, 0, replace(FIRST, assigned=one))
    (name,) = files.list("state")
    data = bytearray(files.get(name).to_pybytes())
    data[len(data) // 2] ^= 1
    (files.directory / name).write_bytes(data)
    version = manifests.view_at(0).operators["op"]
    with pytest.raises(CheckpointCorruptError, match=f"{name} is damaged.*slots 2 keys are"):
        table_of(version, manifests)
    (files.directory / name).unlink()
    with pytest.raises(CheckpointCorruptError, match=f"{name} is missing"):
        table_of(version, manifests)
    # What was in effect is told without it.
    assert history(files, 100).entries[-1].tables["op"].assigned == one

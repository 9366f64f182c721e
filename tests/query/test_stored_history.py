"""The history of tables as the manifests tell it that are still kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from braided.control.routing.history import RoutingHistory
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable
from braided.query.stored_tables import StoredHistory, stored_table
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
    part = OperatorPart(
        channels=table.channels,
        meta=META if before is None else None,
        table=None if stored is None else stored.slots,
        epoch=table.epoch,
        pins=None if stored is None else stored.pins,
        hosts=None if stored is None else stored.hosts,
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

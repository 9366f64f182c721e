"""Keys that are split are whole again at the end of every batch.

The tasks of a split key's shares report what its rows came to there, and the task that has the
key's state reports that (`kinds/operator/key_runner.py`). The driver merges them and writes the
result as one more changelog of the batch, which the manifest names after those of the tasks. So
there is one commit point as ever, no share has state between two batches, and whoever reads a
version finds one record of the key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

from braided.control.routing.table import RoutingTable
from braided.flow.graph import Flow
from braided.flow.step import MergeParts
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, View
from braided.store.history.runs import write_changelog
from braided.store.history.slot_sets import decode_slots
from braided.store.slots.diff import Changes, changes_of
from braided.store.slots.layout import record_suffix, wrap
from braided.tasks.outcome import MergedKeys
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, SplitKey

__all__ = ["merge_split_keys", "split_keys"]


def split_keys(tables: Mapping[str, RoutingTable]) -> dict[str, list[SplitKey]]:
    """What tasks have to know of the keys that are split, by operator."""
    split = {
        name: [
            SplitKey(pin.key, pin.slot, int(table.slots[pin.slot]))
            for pin in table.pins
            if pin.shares
        ]
        for name, table in tables.items()
    }
    return {name: keys for name, keys in split.items() if keys}


def merge_split_keys(
    flow: Flow,
    files: Store,
    metas: Mapping[str, OperatorMeta],
    view: View,
    batch: BatchSpec,
    tables: Mapping[str, RoutingTable],
    reports: Mapping[str, list[ChannelReport]],
) -> dict[str, MergedKeys]:
    """Writes the state of split keys that had rows, durably; by operator."""
    merged = {}
    for step in flow.steps:
        name = step.name
        if name not in batch.split:
            continue
        merge = step.merge_parts
        if merge is None:
            raise RuntimeError(f"keys of operator {name!r} are split, which can't merge them")
        changed = list(_changes(merge, metas[name], batch, tables[name], reports[name]))
        if changed:
            path = f"state/{name}/{batch.batch}-merge-{uuid.uuid4().hex[:12]}"
            version = view.operators.get(name)
            heads = []
            for slot, _ in changed:
                heads.append("" if version is None else version.head(slot))
                heads.append(_log_of(slot, tables[name], reports[name]))
            rows = ((slot, changes.suffixes, changes.values) for slot, changes in changed)
            merged[name] = MergedKeys(
                write_changelog(files, path, rows, heads),
                sum(changes.keys_added for _, changes in changed),
                sum(changes.bytes_added for _, changes in changed),
            )
    return merged


def _changes(
    merge: MergeParts,
    meta: OperatorMeta,
    batch: BatchSpec,
    table: RoutingTable,
    reports: Sequence[ChannelReport],
) -> Iterator[tuple[int, Changes]]:
    """What the merged keys change in the slots that have their state, slots ascending."""
    wholes = {each.key: each for report in reports for each in report.wholes}
    parts = {
        (each.key, each.slot): each.record
        for report in reports
        for each in report.partials
        if each.record is not None
    }
    by_slot: dict[int, list[tuple[bytes, bytes | None, bytes | None]]] = {}
    for pin in table.pins:
        # In the order of the shares, whichever channels had them: it is the same in every try.
        found = [parts[pin.key, slot] for slot in pin.shares if (pin.key, slot) in parts]
        if found:
            whole = wholes[pin.key].record
            after = merge(meta, batch, pin.key, whole, found)
            suffix, is_long = record_suffix(pin.key)
            old, new = (
                wrap(pin.key, record) if is_long and record is not None else record
                for record in (whole, after)
            )
            by_slot.setdefault(pin.slot, []).append((suffix, new, old))
            for slot in pin.shares:
                parts.pop((pin.key, slot), None)
    if parts:
        raise RuntimeError(f"keys {sorted(parts)} are in slots that are no shares of theirs")
    for slot, items in sorted(by_slot.items()):
        suffixes, values, olds = (list(each) for each in zip(*sorted(items), strict=True))
        changes = changes_of(suffixes, values, olds)
        if changes.suffixes:
            yield slot, changes


def _log_of(slot: int, table: RoutingTable, reports: Sequence[ChannelReport]) -> str:
    """The changelog that the slot's own task has written of it in this batch, if it has."""
    log = reports[int(table.slots[slot])].log
    return log.digest if log is not None and slot in decode_slots(log.slots) else ""

"""A flow with one operator, driven batch by batch on the state layer alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import (
    DeadFile,
    Manifest,
    OperatorMeta,
    OperatorPart,
    OperatorVersion,
    encode_table,
    to_full,
)
from braided.store.history.manifest_log import ManifestLog
from braided.store.slots.cache_port import SlotCache
from braided.store.slots.channel_state import ChannelChanges, ChannelState, SnapshotLimits

OPERATOR = "sums"

Writes = Mapping[int, Mapping[bytes, bytes | None]]


def timer(ms: int, key: bytes) -> bytes:
    return b"t" + (ms + (1 << 63)).to_bytes(8, "big") + key


class SmallFlow:
    """Runs tasks and commits them. A batch is a dictionary: slot -> suffix -> value or None."""

    def __init__(
        self,
        root: Path,
        slots: int = 6,
        limits: SnapshotLimits | None = None,
        full_every: int = 4,
        ordinal: int = 0,
    ) -> None:
        self.files = LocalStore(root)
        self.manifests = ManifestLog(self.files)
        self.meta = OperatorMeta(ordinal=ordinal, slots=slots, key="", state="", codec="1")
        self.limits = limits or SnapshotLimits()
        self.flow = uuid.uuid4().hex
        self.batch = -1
        self.full_every = full_every

    def view(self) -> OperatorVersion:
        view = self.manifests.view_at(self.batch, self.flow)
        return view.operators.get(OPERATOR) or OperatorVersion.empty(self.meta)

    def open(self, cache: SlotCache | None) -> ChannelState:
        return ChannelState(self.files, cache, OPERATOR, self.view(), self.limits)

    def task(self, cache: SlotCache | None, writes: Writes, channel: int = 0) -> ChannelChanges:
        """One attempt of one channel of the next batch; nothing is committed."""
        state = self.open(cache)
        state.open_slots(writes)
        for slot, changes in writes.items():
            write(state, slot, changes)
        return self.finish(state, channel)

    def finish(self, state: ChannelState, channel: int = 0) -> ChannelChanges:
        attempt = uuid.uuid4().hex[:8]
        return state.finish(f"state/{OPERATOR}/{self.batch + 1}-{channel}-{attempt}")

    def commit(self, changes: Iterable[ChannelChanges]) -> Manifest:
        manifest = self.manifest(list(changes))
        self.manifests.write(manifest)
        self.batch = manifest.batch
        return manifest

    def manifest(self, changes: list[ChannelChanges], dead: tuple[DeadFile, ...] = ()) -> Manifest:
        view = self.manifests.view_at(self.batch, self.flow)
        before = view.operators.get(OPERATOR)
        slots = [slot for change in changes for slot in change.slots]
        runs = [change.snap for change in changes if change.snap]
        runs += [change.log for change in changes if change.log]
        part = OperatorPart(
            channels=1,
            meta=None if before else self.meta,
            table=None if before else encode_table([0] * self.meta.slots),
            runs=tuple(runs),
            new=len(runs),
            due={slot.slot: slot.due_ms for slot in slots},
            keys=(before.keys if before else 0) + sum(slot.keys_added for slot in slots),
            bytes=(before.bytes if before else 0) + sum(slot.bytes_added for slot in slots),
        )
        delta = Manifest(
            flow=self.flow,
            batch=self.batch + 1,
            full=False,
            writer="test",
            batch_time_ms=0,
            watermark_ms=0,
            operators={OPERATOR: part},
            dead=dead,
        )
        if view.batch >= 0 and delta.batch % self.full_every:
            return delta
        return to_full(self.manifests.with_dead_listed(view, delta.batch), delta)

    def run(self, cache: SlotCache | None, writes: Writes) -> ChannelChanges:
        """A batch of one channel, committed."""
        changes = self.task(cache, writes)
        self.commit([changes])
        return changes

    def contents(self, cache: SlotCache | None) -> dict[int, dict[bytes, bytes]]:
        """What the slots hold, as a task would read them."""
        state = self.open(cache)
        slots = range(self.meta.slots)
        state.open_slots(slots)
        found = {slot: dict(state.slot(slot).scan(b"")) for slot in slots}
        state.close()
        return {slot: items for slot, items in found.items() if items}


def write(state: ChannelState, slot: int, changes: Mapping[bytes, bytes | None]) -> None:
    for suffix, value in changes.items():
        if value is None:
            state.slot(slot).delete(suffix)
        else:
            state.slot(slot).put(suffix, value)


def applied(model: dict[int, dict[bytes, bytes]], writes: Writes) -> dict[int, dict[bytes, bytes]]:
    """The model one batch on."""
    after = {slot: dict(items) for slot, items in model.items()}
    for slot, changes in writes.items():
        items = after.setdefault(slot, {})
        for suffix, value in changes.items():
            if value is None:
                items.pop(suffix, None)
            else:
                items[suffix] = value
    return {slot: items for slot, items in after.items() if items}

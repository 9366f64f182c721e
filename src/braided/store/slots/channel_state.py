"""A task's view of its slots: read at the version before, collect changes, write once at the end.

Nothing that a task does to a slot is seen by anyone before `finish`, and nothing that `finish`
writes counts before the manifest names it: the changelog is a file of its own, and the cache can be
rolled back. How a cached slot gets to the version that is read: `catch_up.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import msgspec

from braided import failpoints
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorVersion
from braided.store.history.runs import RunFile, write_changelog, write_snapshot
from braided.store.slots.cache_port import SlotCache, Tag, Undo, Update, address_of
from braided.store.slots.catch_up import Opened, Opener
from braided.store.slots.diff import Changes
from braided.store.slots.layout import TIMER, timer_ms
from braided.store.slots.slot import SlotState

__all__ = ["ChannelChanges", "ChannelState", "SlotChange", "SlotState", "SnapshotLimits", "Traits"]


class SnapshotLimits(msgspec.Struct, frozen=True):
    """When a slot gets a new snapshot: its changelogs outweigh it, or are too many."""

    snapshot_min_bytes: int = 1 << 20
    snapshot_factor: float = 2.0
    snapshots_per_task: int = 4
    snapshot_runs: int = 256


class SlotChange(msgspec.Struct, frozen=True, array_like=True):
    """One opened slot as the task leaves it: what it holds, and how much more than before."""

    slot: int
    keys: int
    bytes: int
    keys_added: int
    bytes_added: int
    due_ms: int | None  # the earliest timer


class ChannelChanges(msgspec.Struct, frozen=True):
    """What a task did to its slots, and what it took to open them."""

    log: RunFile | None
    snap: RunFile | None
    slots: tuple[SlotChange, ...]  # all that were opened, ascending
    opened: int
    hits: int
    rolled_back: int
    caught_up: int
    rebuilt: int
    bytes_caught_up: int
    cache_errors: int
    waited_ns: int = 0  # until slots were open that the cache did not have as they had to be
    traits: str = ""  # a digest of the changes as they are compared, if that is not the log's
    rows_updated: int = 0
    rows_removed: int = 0


Traits = Callable[[Sequence[bytes], Sequence[bytes | None]], Sequence[bytes | None]]
"""Suffixes and their values to the values as two attempts of a task are compared by them."""


class _Left(NamedTuple):
    """A slot at the end of the task."""

    number: int
    state: SlotState
    changes: Changes | None


class ChannelState:
    """The slots of one channel of one operator, at the version that a view names."""

    def __init__(
        self,
        files: Store,
        cache: SlotCache | None,
        operator: str,
        view: OperatorVersion,
        limits: SnapshotLimits,
    ) -> None:
        self._files = files
        self._cache = cache
        self._cache_errors = 0 if cache is None else cache.errors
        self._view = view
        self._limits = limits
        self._opener = Opener(files, cache, view)
        self._slots: dict[int, SlotState] = {}
        self._waited_ns = 0
        self.operator = operator

    def slot(self, number: int) -> SlotState:
        """A slot, opened on first use."""
        state = self._slots.get(number)
        if state is None:
            self.open_slots((number,))
            state = self._slots[number]
        return state

    def open_slots(self, slots: Iterable[int]) -> None:
        """Opens many slots at once, which reads each file once and not once per slot."""
        missing = [number for number in slots if number not in self._slots]
        if not missing:
            return
        ordinal, tally = self._view.meta.ordinal, self._opener.tally
        read, begun_ns = len(tally.caught_up) + len(tally.rebuilt), perf_counter_ns()
        opened_slots = self._opener.open(missing)
        if len(tally.caught_up) + len(tally.rebuilt) > read:
            self._waited_ns += perf_counter_ns() - begun_ns
        for number, opened in opened_slots.items():
            address = address_of(ordinal, number)
            self._slots[number] = SlotState(address, opened, self._reopening(number, address))

    def close(self) -> None:
        """Lets go of the cache. `finish` does; a task that fails should."""
        for state in self._slots.values():
            state.close()

    @property
    def bytes_caught_up(self) -> int:
        """What had to be read for slots that the cache did not have as they had to be."""
        return self._opener.tally.bytes_caught_up

    def finish(self, path: str, traits: Traits | None = None) -> ChannelChanges:
        """Writes what changed, durably, and then brings the cache up to it.

        The names of the files that it writes start with `path`. `traits` is given where a second
        attempt would not write the same bytes.
        """
        left = [
            _Left(number, state, state.changes()) for number, state in sorted(self._slots.items())
        ]
        report = tuple(map(_report, left))
        log = self._write_log(path, left)
        snapped = self._due_for_snapshot(left)
        snap = self._write_snapshot(path, snapped)
        failpoints.reach("task-after-changelog")
        # Readers first: pages that only they hold back can then be used again.
        self.close()
        self._update_cache(left, log, snap, {number for number, _ in snapped})
        tally = self._opener.tally
        tallies = [slot.changes.tally for slot in left if slot.changes is not None]
        return ChannelChanges(
            log=log,
            snap=snap,
            slots=report,
            opened=len(tally.opened),
            hits=len(tally.hits),
            rolled_back=len(tally.rolled_back),
            caught_up=len(tally.caught_up),
            rebuilt=len(tally.rebuilt),
            bytes_caught_up=tally.bytes_caught_up,
            cache_errors=0 if self._cache is None else self._cache.errors - self._cache_errors,
            waited_ns=self._waited_ns,
            traits="" if traits is None else _traits_digest(left, traits),
            rows_updated=sum(updated for updated, _ in tallies),
            rows_removed=sum(removed for _, removed in tallies),
        )

    def _reopening(self, number: int, address: bytes) -> Callable[[], Opened]:
        def reopen() -> Opened:
            """The slot without the cache, which failed in the middle of the task."""
            if self._cache is not None:
                self._cache.discard(address)
            return self._opener.in_memory({number: address})[number]

        return reopen

    def _write_log(self, path: str, left: list[_Left]) -> RunFile | None:
        changed = [(slot.number, slot.changes) for slot in left if slot.changes is not None]
        if not changed:
            return None
        heads = [self._view.head(number) for number, _ in changed]
        rows = ((number, changes.suffixes, changes.values) for number, changes in changed)
        return write_changelog(self._files, path, rows, heads)

    def _due_for_snapshot(self, left: list[_Left]) -> list[tuple[int, SlotState]]:
        """The slots whose changelogs weigh most, a few only, in order of their numbers."""
        limits = self._limits
        overdue: list[tuple[float, int, SlotState]] = []
        for number, state, _ in left:
            tag = state.tag
            bound = max(limits.snapshot_min_bytes, limits.snapshot_factor * tag.bytes, 1)
            runs = self._view.length(number)
            weight = max(tag.log_bytes / bound, runs / max(limits.snapshot_runs, 1))
            if weight > 1 and not (runs == 1 and tag.log_bytes == 0):
                overdue.append((-weight, number, state))
        overdue.sort(key=lambda slot: slot[:2])
        return sorted(
            ((number, state) for _, number, state in overdue[: limits.snapshots_per_task]),
            key=lambda slot: slot[0],
        )

    def _write_snapshot(
        self, path: str, snapped: Sequence[tuple[int, SlotState]]
    ) -> RunFile | None:
        if not snapped:
            return None

        def contents() -> Iterator[tuple[int, list[bytes], list[bytes]]]:
            for number, state in snapped:
                for suffixes, values in state.contents():
                    yield number, suffixes, values
                failpoints.reach("snapshot")

        return write_snapshot(self._files, path, contents())

    def _update_cache(
        self, left: list[_Left], log: RunFile | None, snap: RunFile | None, snapped: set[int]
    ) -> None:
        if self._cache is None:
            return
        updates = []
        for number, state, changes in left:
            carried = 0 if number in snapped else state.tag.log_bytes
            if changes is not None and log is not None:
                updates.append(_logged(state, changes, log.digest, carried))
            elif snap is not None and number in snapped:
                tag = msgspec.structs.replace(state.tag, digest=snap.digest, log_bytes=0)
                undo = Undo(state.tag, [], [])
                updates.append(Update(state.address, state.tag.digest, tag, [], [], undo))
        self._cache.write(updates)


def _traits_digest(left: list[_Left], traits: Traits) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for number, _, changes in left:
        if changes is not None:
            values = traits(changes.suffixes, changes.values)
            digest.update(msgspec.msgpack.encode((number, changes.suffixes, values)))
    return digest.hexdigest()


def _logged(state: SlotState, changes: Changes, digest: str, carried: int) -> Update:
    suffixes, values, olds, keys_added, bytes_added, size = changes
    before = state.tag
    tag = Tag(
        digest,
        before.keys + keys_added,
        before.bytes + bytes_added,
        carried + size,
    )
    undo = Undo(before, suffixes, olds)
    return Update(state.address, before.digest, tag, suffixes, values, undo)


def _report(left: _Left) -> SlotChange:
    number, state, changes = left
    keys_added = changes.keys_added if changes else 0
    bytes_added = changes.bytes_added if changes else 0
    timer = state.first(TIMER)
    return SlotChange(
        slot=number,
        keys=state.tag.keys + keys_added,
        bytes=state.tag.bytes + bytes_added,
        keys_added=keys_added,
        bytes_added=bytes_added,
        due_ms=None if timer is None else timer_ms(timer),
    )

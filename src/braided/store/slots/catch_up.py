"""Bringing cached slots to the version that a view names.

What to do follows from where the cached tag stands in the slot's chain:

    tag                                     | step
    ----------------------------------------+---------------------------------------------------
    the head of the chain                   | none: a hit
    in the chain                            | catch up with the runs after it
    not in it, but the undo record leads    | roll back: a batch that did not commit
      back into it (or to the empty slot)   |
    anything else                           | rebuild: wipe, then all runs of the chain

A step is a write to the cache that names the tag it saw, so a neighbour's write in between makes it
a no-op. After each round of steps everything is looked at anew, and what a few rounds do not settle
(twins on one host, a full disk, no cache at all) is read into memory for this task alone.

A slot may be larger than memory. What was read goes to the cache whenever so much has come
together, in the middle of a run too: under a tag then that is in no chain, so that whoever finds it
after a crash rebuilds the slot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import lmdb

from braided.store.durable.store import UNREADABLE, Store
from braided.store.history.chains import Link
from braided.store.history.manifest import OperatorVersion
from braided.store.history.run_blocks import size_of
from braided.store.history.runs import read_run
from braided.store.slots.cache_port import (
    EMPTY,
    Cached,
    Image,
    MemoryImage,
    SlotCache,
    Tag,
    Undo,
    Update,
    address_of,
)
from braided.store.slots.diff import changes_of

__all__ = ["Opened", "Opener", "Tally"]

_ROUNDS = 4
# What is read is passed on to the cache whenever so much has come together.
_HELD_BYTES = 64 << 20
_HELD_BYTES_PER_ROW = 150  # what Python needs for a key and a value, beside their bytes


class Opened(NamedTuple):
    """A slot at the view's version."""

    tag: Tag
    image: Image


@dataclass
class Tally:
    """What opening slots took; the slots of each kind."""

    opened: set[int] = field(default_factory=set)
    hits: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)
    caught_up: set[int] = field(default_factory=set)
    rebuilt: set[int] = field(default_factory=set)
    bytes_caught_up: int = 0


class _ChainWay(NamedTuple):
    """From a version that the cache has, or from nothing, to the head of the chain."""

    start: str  # "" for the empty slot
    from_snapshot: bool  # the start is the snapshot that repeats what the cache has
    links: list[Link]  # oldest first


class _CatchingSlot:
    """A slot on its way along its chain, with what was read and not yet passed on."""

    __slots__ = ("address", "cached", "links", "log_bytes", "new", "reached", "rebuild")

    def __init__(self, address: bytes, cached: Cached, way: _ChainWay) -> None:
        self.address = address
        self.cached = cached
        self.links = way.links
        self.reached = way.start
        self.rebuild = way.start == ""
        self.log_bytes = 0 if self.rebuild or way.from_snapshot else cached.tag.log_bytes
        self.new: dict[bytes, bytes | None] = {}

    def update(self) -> Update:
        """The step from what is cached to what was read."""
        suffixes = sorted(self.new)
        olds: list[bytes | None] = [None] * len(suffixes)
        if not self.rebuild:
            olds = [self.cached.image.get(self.address + suffix) for suffix in suffixes]
        changes = changes_of(suffixes, [self.new[suffix] for suffix in suffixes], olds)
        before = EMPTY if self.rebuild else self.cached.tag
        tag = Tag(
            self.reached,
            before.keys + changes.keys_added,
            before.bytes + changes.bytes_added,
            self.log_bytes,
        )
        seen = self.cached.tag.digest
        # No undo: the version reached was committed, and there is no way back from that.
        return Update(self.address, seen, tag, changes.suffixes, changes.values, wipe=self.rebuild)


class Opener:
    """Opens the slots of one operator at one view."""

    def __init__(self, files: Store, cache: SlotCache | None, view: OperatorVersion) -> None:
        self._files = files
        self._cache = cache
        self._view = view
        self._reading = uuid.uuid4().hex
        self.tally = Tally()

    def open(self, slots: Iterable[int]) -> dict[int, Opened]:
        """All the slots at the view's version, each file read at most once per round."""
        opened: dict[int, Opened] = {}
        left = {slot: address_of(self._view.meta.ordinal, slot) for slot in sorted(slots)}
        self.tally.opened.update(left)
        if self._cache is not None:
            tried: set[int] = set()
            for _ in range(_ROUNDS):
                if left:
                    self._guarded_round(self._cache, left, opened, tried)
            self.tally.hits.update(opened.keys() - tried - self.tally.rolled_back)
        if left:
            opened.update(self.in_memory(left))
        return opened

    def in_memory(self, left: Mapping[int, bytes]) -> dict[int, Opened]:
        """Slots (with their addresses) read from their chains for this task alone."""
        nothing = Cached(EMPTY, MemoryImage({}), lambda: None)
        targets = {}
        chains = self._view.links(left)
        for slot, address in left.items():
            targets[slot] = _CatchingSlot(address, nothing, _from_nothing(chains[slot]))
            if targets[slot].links:
                self.tally.rebuilt.add(slot)
        for _ in self._replay(targets):
            pass
        opened = {}
        for slot, target in targets.items():
            step = target.update()
            opened[slot] = Opened(step.tag, MemoryImage({}).stepped(step))
        return opened

    def _guarded_round(
        self,
        cache: SlotCache,
        left: dict[int, bytes],
        opened: dict[int, Opened],
        tried: set[int],
    ) -> None:
        try:
            self._round(cache, left, opened, tried)
        except (lmdb.Error, *UNREADABLE):
            # Damage that shows only now: what is not open yet is read without the cache.
            for address in left.values():
                cache.discard(address)

    def _round(
        self,
        cache: SlotCache,
        left: dict[int, bytes],
        opened: dict[int, Opened],
        tried: set[int],
    ) -> None:
        """Takes the slots that are where they should be; moves the others a step on."""
        cached = cache.read(left.values())
        elsewhere: dict[int, Cached] = {}
        for slot, address in list(left.items()):
            entry = cached.get(address)
            if entry is None:
                continue
            if entry.tag.digest == self._view.head(slot):
                opened[slot] = Opened(entry.tag, entry.image)
                del left[slot]
            else:
                elsewhere[slot] = entry
        chains = self._view.links(elsewhere)
        backwards: list[Update] = []
        forwards: dict[int, _CatchingSlot] = {}
        for slot, entry in elsewhere.items():
            address, chain = left[slot], chains[slot]
            way = _way(chain, entry.tag.digest)
            undo = entry.undo() if way is None else None
            if undo is not None and _way(chain, undo.previous.digest) is not None:
                backwards.append(_rollback(address, entry.tag, undo))
                self.tally.rolled_back.add(slot)
            elif slot not in tried:  # once: reading a chain again and again helps nobody
                tried.add(slot)
                forwards[slot] = self._forward(slot, address, entry, way or _from_nothing(chain))
        cache.write(backwards)
        self._replay_into(cache, forwards)

    def _forward(self, slot: int, address: bytes, cached: Cached, way: _ChainWay) -> _CatchingSlot:
        target = _CatchingSlot(address, cached, way)
        if target.rebuild and slot not in self.tally.rolled_back:
            self.tally.rebuilt.add(slot)
        else:
            self.tally.caught_up.add(slot)
        return target

    def _replay_into(self, cache: SlotCache, targets: dict[int, _CatchingSlot]) -> None:
        held = 0
        for size in self._replay(targets):
            held += size
            if held >= _HELD_BYTES:
                self._pass_on(cache, targets)
                held = 0
        cache.write([target.update() for target in targets.values()])

    def _pass_on(self, cache: SlotCache, targets: dict[int, _CatchingSlot]) -> None:
        """Writes what was read so far; slots that the cache did not take leave the replay."""
        steps = {slot: target.update() for slot, target in targets.items() if target.new}
        cache.write(steps.values())
        cached = cache.read(step.address for step in steps.values())
        for slot, step in steps.items():
            now = cached.get(step.address)
            if now is None or now.tag.digest != step.tag.digest:
                del targets[slot]
            else:
                target = targets[slot]
                target.cached, target.rebuild, target.new = now, False, {}

    def _replay(self, targets: Mapping[int, _CatchingSlot]) -> Iterator[int]:
        """Reads what the targets lack in chain order, each file once; says what each part holds.

        A target may be taken away in between, and is then not read any further.
        """
        plan: dict[int, tuple[Link, set[int]]] = {}
        for slot, target in targets.items():
            for link in target.links:
                plan.setdefault(link.order, (link, set()))[1].add(slot)
        for order in sorted(plan):
            run, slots = plan[order][0].run, plan[order][1] & targets.keys()
            if not slots:
                continue
            # In the middle of a run a slot is at no version.
            for slot in slots:
                targets[slot].reached = f"{run.digest} {self._reading}"
            for slot, suffixes, values in read_run(self._files, run, slots):
                if slot not in targets:
                    continue
                target = targets[slot]
                rows = len(target.new)
                target.new.update(zip(suffixes, values, strict=True))
                rows = len(target.new) - rows
                size = size_of(suffixes, values)
                self.tally.bytes_caught_up += size
                if not run.snapshot:
                    target.log_bytes += size
                yield size + _HELD_BYTES_PER_ROW * rows
            for slot in slots & targets.keys():
                targets[slot].reached = run.digest


def _way(chain: list[Link], digest: str) -> _ChainWay | None:
    """How to get from a version to the head; None if the chain does not have it."""
    for newer, link in enumerate(chain):
        if link.run.digest == digest or link.replaced == digest:
            return _ChainWay(link.run.digest, link.run.snapshot, chain[:newer][::-1])
    return _from_nothing(chain) if digest == "" else None


def _from_nothing(chain: list[Link]) -> _ChainWay:
    return _ChainWay("", False, chain[::-1])


def _rollback(address: bytes, tag: Tag, undo: Undo) -> Update:
    return Update(address, tag.digest, undo.previous, undo.suffixes, undo.values)

"""The chains of an operator's slots: which runs make up each slot, at one batch.

All runs stand in one list, in the order in which they were applied, and one rule reads it:

    a snapshot run restarts the chain of each of its slots;
    a changelog run is appended to the chain of each of its slots.

Nothing is kept per slot but three numbers: where in the list its newest run is, where its chain
begins, and how long it is. Its chain is made when it is asked for. So a batch costs the runs that
it brings; the numbers and the list are copied, which is a fraction of a millisecond at 16 thousand
slots, and older versions stay as they were. Runs that no slot needs any more are left out of the
list when they might be a fourth of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from braided.store.history.runs import RunFile
from braided.store.history.slot_sets import SlotNumbers, decode_slots

__all__ = ["AppliedRun", "Chains", "Link"]

T = TypeVar("T")

_Numbers = npt.NDArray[np.int32]

_FEW = 256  # so many runs are not worth a look at which of them are needed
_TOGETHER = 64  # sets of slots that are looked at at a time: they fit a core's cache
_NOTHING_REPLACED: Mapping[int, str] = {}


class Link(NamedTuple):
    """A run in the chain of a slot."""

    run: RunFile
    order: int
    """Runs of one view are applied by it."""
    replaced: str | None
    """The version whose content a snapshot repeats, where that is known."""


class AppliedRun(NamedTuple):
    """A run in the list."""

    run: RunFile
    slots: SlotNumbers
    replaced: Mapping[int, str] = _NOTHING_REPLACED
    """Of a snapshot: the version of a slot whose content it repeats, where that is known."""


class Chains:
    """The chains of all slots, or of those that are known here; the others are empty. Immutable."""

    __slots__ = ("_heads", "_lengths", "_look_from", "_starts", "runs")

    runs: Sequence[AppliedRun]
    """In the order in which they were applied; some that no slot needs any more may be there."""

    def __init__(
        self,
        runs: Sequence[AppliedRun],
        heads: _Numbers,
        starts: _Numbers,
        lengths: _Numbers,
        look_from: int,
    ) -> None:
        self.runs = runs
        self._heads = heads  # -1 for no run
        self._starts = starts
        self._lengths = lengths
        self._look_from = look_from  # how many runs there must be to look for dead ones

    @classmethod
    def empty(cls, slots: int) -> Chains:
        zeros = np.zeros(slots, dtype=np.int32)
        return cls([], np.full(slots, -1, dtype=np.int32), zeros, zeros, _FEW)

    def apply(self, runs: Iterable[AppliedRun]) -> Chains:
        """The chains after some more runs. What a snapshot replaces is as the runs say it."""
        new = list(runs)
        applied = [*self.runs, *new]
        heads, starts, lengths = self._heads.copy(), self._starts.copy(), self._lengths.copy()
        at = len(self.runs)
        for restart, part in _of_one_kind(new):
            counts = [len(run.slots) for run in part]
            # Of the type that arrays are indexed by: any other is converted at each use.
            slots = np.concatenate([run.slots for run in part], dtype=np.intp)
            positions = np.repeat(np.arange(at, at + len(part), dtype=np.int32), counts)
            heads[slots] = positions  # of a slot that is there several times, the last counts
            if restart:
                starts[slots] = positions
                lengths[slots] = 1
            else:
                lengths += np.bincount(slots, minlength=len(lengths)).astype(np.int32)
            at += len(part)
        after = Chains(applied, heads, starts, lengths, self._look_from)
        return after._shortened() if len(applied) > self._look_from else after

    def following(self, runs: Iterable[RunFile]) -> Chains:
        """The chains after the runs of a batch, whose snapshots repeat what is here."""
        batch: list[AppliedRun] = []
        heads, seen = self._heads.copy(), 0  # with so many runs of the batch
        for run in runs:
            slots = decode_slots(run.slots)
            replaced = _NOTHING_REPLACED
            if run.snapshot:
                for at, earlier in enumerate(batch[seen:], len(self.runs) + seen):
                    heads[earlier.slots] = at
                seen = len(batch)
                replaced = self._digests(slots, heads, batch)
            batch.append(AppliedRun(run, slots, replaced))
        return self.apply(batch)

    @property
    def slots(self) -> int:
        """How many slots the operator has."""
        return len(self._heads)

    def head(self, slot: int) -> str:
        """The digest of the newest run of a slot: the name of its version. Empty for no runs."""
        at = self._heads[slot]
        return "" if at < 0 else self.runs[at].run.digest

    def length(self, slot: int) -> int:
        """How many runs make up a slot."""
        return int(self._lengths[slot])

    def links(self, slots: Iterable[int]) -> dict[int, list[Link]]:
        """The chains of some slots, newest run first; in one pass over the runs."""
        chains: dict[int, list[Link]] = {slot: [] for slot in slots}
        numbers = np.fromiter(chains, np.int64, len(chains))
        numbers = numbers[self._heads[numbers] >= 0]
        if not numbers.size:
            return chains
        wanted = np.zeros(len(self._heads), dtype=bool)
        wanted[numbers] = True
        among = _once(lambda slots: slots[wanted[slots]].tolist())
        starts = dict(zip(numbers.tolist(), self._starts[numbers].tolist(), strict=True))
        first, last = int(self._starts[numbers].min()), int(self._heads[numbers].max())
        for at in range(last, first - 1, -1):
            run, slots, replaced = self.runs[at]
            link = Link(run, at, None)
            for slot in among(slots):
                if at >= starts[slot]:
                    known = replaced.get(slot) if replaced else None
                    chains[slot].append(link if known is None else Link(run, at, known))
        return chains

    def live(self) -> list[AppliedRun]:
        """Every run that some slot needs, in their order."""
        return [self.runs[at] for at in self._live_positions()]

    def _live_positions(self) -> list[int]:
        # Whatever came after the last restart is needed.
        sure = int(self._starts.max(initial=0))
        sets = {id(run.slots): run.slots for run in self.runs[:sure]}
        first = dict(zip(sets, self._first_starts(list(sets.values())), strict=True))
        live = [at for at, run in enumerate(self.runs[:sure]) if first[id(run.slots)] <= at]
        return [*live, *range(sure, len(self.runs))]

    def _first_starts(self, sets: Sequence[SlotNumbers]) -> Iterator[int]:
        """Where the first chain begins, of the slots of each set; many sets at a time."""
        for first in range(0, len(sets), _TOGETHER):
            some = sets[first : first + _TOGETHER]
            lengths = np.array([len(slots) for slots in some])
            starts = self._starts[np.concatenate(some, dtype=np.intp)]
            yield from np.minimum.reduceat(starts, np.cumsum(lengths) - lengths).tolist()

    def _shortened(self) -> Chains:
        """The same without the runs that no slot needs."""
        live = self._live_positions()
        look_from = len(live) * 5 // 4 + _FEW
        if len(live) == len(self.runs):
            return Chains(self.runs, self._heads, self._starts, self._lengths, look_from)
        positions = np.searchsorted(live, np.arange(len(self.runs))).astype(np.int32)
        heads = np.where(self._heads < 0, np.int32(-1), positions[self._heads])
        runs = [self.runs[at] for at in live]
        return Chains(runs, heads, positions[self._starts], self._lengths, look_from)

    def _digests(
        self, slots: SlotNumbers, heads: _Numbers, batch: Sequence[AppliedRun]
    ) -> dict[int, str]:
        there = len(self.runs)
        return {
            slot: (self.runs[at] if at < there else batch[at - there]).run.digest
            for slot, at in zip(slots.tolist(), heads[slots].tolist(), strict=True)
            if at >= 0
        }


def _of_one_kind(runs: Sequence[AppliedRun]) -> Iterator[tuple[bool, Sequence[AppliedRun]]]:
    """The runs in their order, snapshots apart from changelogs, and not too many at a time."""
    first = 0
    for restart, group in itertools.groupby(run.run.snapshot for run in runs):
        end = first + sum(1 for _ in group)
        for begin in range(first, end, _TOGETHER):
            yield restart, runs[begin : min(begin + _TOGETHER, end)]
        first = end


def _once(function: Callable[[SlotNumbers], T]) -> Callable[[SlotNumbers], T]:
    """A function of sets of slots, computed once for each array; runs of a channel share theirs."""
    results: dict[int, T] = {}

    def of(slots: SlotNumbers) -> T:
        key = id(slots)  # the runs that are looked at keep their arrays meanwhile
        if key not in results:
            results[key] = function(slots)
        return results[key]

    return of

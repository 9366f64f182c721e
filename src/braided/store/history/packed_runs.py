"""A long list of runs as short text: how a full manifest holds the runs of the batches before it.

Column by column, and compressed, for the names are alike. Sets of slots, which would be most of it,
are listed once each, and as a bitmap over the slots of the channel that has them all: that of a run
which touched a whole channel, as most do, is empty.
"""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from braided.store.history.chains import AppliedRun
from braided.store.history.runs import RunFile
from braided.store.history.slot_sets import (
    SlotNumbers,
    encode_slots,
    slots_from_steps,
    steps_of,
)

__all__ = ["SlotShares", "pack_runs", "slots_at", "unpack_runs"]

_PACKED_TOGETHER = 32  # sets: more are slower, for large arrays are given back and got anew
_COMPRESSION_LEVEL = 1  # digests are most of what is left, and those are as long at any level


class SlotShares:
    """The slots of each channel, and sets of slots as bits over those of one channel."""

    def __init__(self, table: npt.NDArray[np.int32], channels: int) -> None:
        self._table = table
        order = np.argsort(table, kind="stable").astype(np.int32)
        counts = np.bincount(table, minlength=channels)
        ends = np.cumsum(counts)
        self.slots: list[SlotNumbers] = np.split(order, ends[:-1])
        # Where among the slots of its channel a slot is.
        self._positions = np.empty(len(table), dtype=np.int64)
        self._positions[order] = np.arange(len(table)) - np.repeat(ends - counts, counts)

    def parts(self, slots: SlotNumbers) -> list[tuple[int, bytes]]:
        """The channels that have some of the slots, and which of their own those are."""
        channels = self._table[slots]
        if (channels == channels[0]).all():
            return [(int(channels[0]), self._bits(int(channels[0]), slots))]
        return [
            (channel, self._bits(channel, slots[channels == channel]))
            for channel in np.unique(channels).tolist()
        ]

    def packed(self, sets: Sequence[SlotNumbers]) -> list[tuple[int, bytes]]:
        """Sets, each as bits over the slots of the channel that has them all, or as channel -1 and
        steps. Many at a time, because there are many thousand for each full manifest.
        """
        lengths = np.array([len(slots) for slots in sets])
        # Of the type that arrays are indexed by: any other is converted at each use.
        slots = np.concatenate(sets, dtype=np.intp)
        channels = self._table[slots]
        begins = np.cumsum(lengths) - lengths
        owners = channels[begins]
        apart = np.logical_or.reduceat(channels != np.repeat(owners, lengths), begins)
        sizes = np.array([len(share) for share in self.slots])[owners]
        some = ~apart & (lengths < sizes)
        results = [(channel, b"") for channel in owners.tolist()]
        for number in np.flatnonzero(apart).tolist():
            results[number] = (-1, steps_of(sets[number]))
        if some.any():
            width = int(sizes[some].max())
            rows = np.arange(0, np.count_nonzero(some) * width, width)
            bits = np.zeros(len(rows) * width, dtype=bool)
            chosen = slots[np.repeat(some, lengths)]
            bits[np.repeat(rows, lengths[some]) + self._positions[chosen]] = True
            packed = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")
            octets = (-(-sizes[some] // 8)).tolist()
            numbers = np.flatnonzero(some).tolist()
            for number, row, size in zip(numbers, packed, octets, strict=True):
                results[number] = (results[number][0], row[:size].tobytes())
        return results

    def _bits(self, channel: int, slots: SlotNumbers) -> bytes:
        if len(slots) == len(self.slots[channel]):
            return b""
        bits = np.zeros(len(self.slots[channel]), dtype=np.uint8)
        bits[self._positions[slots]] = 1
        return np.packbits(bits, bitorder="little").tobytes()


def slots_at(bits: bytes, share: SlotNumbers) -> SlotNumbers:
    """Those of a channel's slots that bits say; all of them if there are no bits."""
    if not bits:
        return share
    packed = np.frombuffer(bits, dtype=np.uint8)
    chosen: SlotNumbers = share[
        np.unpackbits(packed, count=len(share), bitorder="little").view(bool)
    ]
    return chosen


class _RunColumns(msgspec.Struct, frozen=True, array_like=True):
    shares: list[bytes]
    """The slots of channels, as steps."""
    set_share: list[int]
    """Of each set of slots the share that it is a part of; -1 for none."""
    set_bits: list[bytes]
    """Which of its share, or steps."""
    names: list[str]
    digests: list[str]
    sizes: list[int]
    footers: list[int]
    sets: list[int]


def pack_runs(runs: Sequence[AppliedRun], table: npt.NDArray[np.int32]) -> str:
    """Runs as text; the table, slot to channel, only makes it short."""
    packing = _packing(table.astype("<i4").tobytes())
    shares, known = packing.shares, packing.sets
    # By the arrays: runs of one channel share theirs, and texts of many slots are long to compare.
    numbers: dict[int, int] = {}
    set_of = [numbers.setdefault(id(run.slots), len(numbers)) for run in runs]
    new = {id(run.slots): run.slots for run in runs if id(run.slots) not in known}
    sets = list(new.values())
    for first in range(0, len(sets), _PACKED_TOGETHER):
        some = sets[first : first + _PACKED_TOGETHER]
        for slots, (share, bits) in zip(some, shares.packed(some), strict=True):
            known[id(slots)] = _PackedSet(slots, share, bits)
    packing.sets = {number: known[number] for number in numbers}
    packed = list(packing.sets.values())
    columns = _RunColumns(
        shares=[steps_of(share) for share in shares.slots],
        set_share=[one.share for one in packed],
        set_bits=[one.bits for one in packed],
        names=[run.run.name for run in runs],
        digests=[run.run.digest for run in runs],
        sizes=[run.run.bytes for run in runs],
        footers=[run.run.footer for run in runs],
        sets=set_of,
    )
    data = zlib.compress(msgspec.msgpack.encode(columns), _COMPRESSION_LEVEL)
    return base64.b64encode(data).decode()


class _PackedSet(NamedTuple):
    slots: SlotNumbers  # kept, so that no other array has its identity
    share: int
    bits: bytes


class _Packing:
    """What is kept from one full manifest to the next, for most runs are in both."""

    def __init__(self, table: npt.NDArray[np.int32]) -> None:
        self.shares = SlotShares(table, 1)
        self.sets: dict[int, _PackedSet] = {}  # by the identity of their arrays


@functools.lru_cache(maxsize=4)
def _packing(table: bytes) -> _Packing:
    return _Packing(np.frombuffer(table, dtype="<i4"))


def unpack_runs(text: str) -> list[AppliedRun]:
    """The runs that `pack_runs` was given; what their snapshots replaced is not told."""
    columns = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)), type=_RunColumns)
    shares = [slots_from_steps(steps) for steps in columns.shares]
    sets: list[tuple[str, SlotNumbers]] = []
    for share, bits in zip(columns.set_share, columns.set_bits, strict=True):
        slots = slots_from_steps(bits) if share < 0 else slots_at(bits, shares[share])
        sets.append((encode_slots(slots), slots))
    runs = []
    for name, digest, size, footer, number in zip(
        columns.names, columns.digests, columns.sizes, columns.footers, columns.sets, strict=True
    ):
        named, slots = sets[number]
        runs.append(AppliedRun(RunFile(name, digest, size, named, footer), slots))
    return runs

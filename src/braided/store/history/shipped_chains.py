"""The chains of a channel's slots as the driver ships them to its task, once per batch.

What a channel gets are the runs that its slots need, in their order, each with the bits of the
channel's slots that it touches: some 60 bytes a run. It travels with what else a task is told of
its batch, or in a file if it is long (`shipped_parts.py`), and no task reads a manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from braided.store.durable.store import Store
from braided.store.history.chains import AppliedRun, Chains
from braided.store.history.manifest import OperatorVersion
from braided.store.history.packed_runs import SlotShares, slots_at
from braided.store.history.runs import RunFile
from braided.store.history.shipped_parts import ShippedParts, ship_parts
from braided.store.history.slot_sets import (
    SlotNumbers,
    encode_slots,
    slots_from_steps,
    steps_of,
)

__all__ = [
    "ChainPacker",
    "ShippedChains",
    "pack_slots",
    "ship_chains",
    "shipped_chains",
    "unpack_chains",
]


class _ShippedRun(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A run as one channel gets it."""

    name: str
    digest: bytes
    size: int
    footer: int
    touched: bytes
    """Which of the channel's slots, see `slots_at`."""
    replaced: list[tuple[bytes, bytes]] = []
    """Of a snapshot: the versions that it repeats, and of which slots."""


class _Shipment(msgspec.Struct, frozen=True, array_like=True):
    share: bytes
    """The channel's slots, as steps."""
    records: list[_ShippedRun]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Shipment).decode


class ChainPacker:
    """Packs the chains of one operator, batch after batch; a run is encoded once."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] | None = None
        self._shares: SlotShares | None = None
        self._runs: Sequence[AppliedRun] = ()
        self._records: list[list[bytes]] = []

    def pack(self, chains: Chains, table: npt.NDArray[np.int32], channels: int) -> list[bytes]:
        """What the task of each channel gets, by the table of its batch."""
        if self._shares is None or self._table is not table:
            self._table, self._shares, self._runs = table, SlotShares(table, channels), ()
        runs = chains.runs
        if not _begins_with(runs, self._runs):
            self._runs = ()
        if not self._runs:
            self._records = [[] for _ in range(channels)]
        for run in runs[len(self._runs) :]:
            for channel, record in _parts(run, self._shares):
                self._records[channel].append(record)
        self._runs = runs
        return [
            b"\x92" + _encode(steps_of(share)) + _list_of(records)
            for share, records in zip(self._shares.slots, self._records, strict=True)
        ]


def _begins_with(runs: Sequence[AppliedRun], before: Sequence[AppliedRun]) -> bool:
    """Whether runs were only added since: the list is added to at its end, or made anew without
    some. The ends tell, for nothing moves up without something in front of it having gone.
    """
    count = len(before)
    return count <= len(runs) and (
        not count or (runs[0] is before[0] and runs[count - 1] is before[-1])
    )


class ShippedChains(ShippedParts, frozen=True, omit_defaults=True):
    """What the tasks of one operator are told in a batch of what their slots are made of."""

    def chains(self, files: Store, channel: int, slots: int) -> Chains:
        """The chains of a channel's slots, of the so many slots of its operator."""
        what = f"what the slots of channel {channel} are made of"
        return unpack_chains(self.part(files, channel, what), slots)


def ship_chains(files: Store, path: str, packed: list[bytes]) -> ShippedChains:
    """What is shipped of packed chains; it is in a file of that name if it is long."""
    return ship_parts(ShippedChains, files, path, packed)


def pack_slots(chains: Chains, slots: Iterable[int]) -> bytes:
    """The chains of some slots, whoever's they are."""
    # As if they were a channel of their own, the first of two.
    table = np.ones(chains.slots, dtype=np.int32)
    table[list(slots)] = 0
    return ChainPacker().pack(chains, table, 2)[0]


def shipped_chains(operators: Mapping[str, OperatorVersion]) -> dict[str, ShippedChains]:
    """What the tasks of operators are told where they go by the tables of the batch before."""
    return {
        name: ShippedChains(ChainPacker().pack(version.chains, version.table, version.channels))
        for name, version in operators.items()
    }


def unpack_chains(data: bytes, slots: int) -> Chains:
    """The chains of a channel's slots, of the so many slots of its operator."""
    shipment = _decode(data)
    share = slots_from_steps(shipment.share)
    sets: dict[bytes, tuple[str, SlotNumbers]] = {}
    runs = []
    for record in shipment.records:
        known = sets.get(record.touched)
        if known is None:
            slots_touched = slots_at(record.touched, share)
            known = sets[record.touched] = encode_slots(slots_touched), slots_touched
        replaced = {
            slot: digest.hex()
            for digest, bits in record.replaced
            for slot in slots_at(bits, share).tolist()
        }
        digest = record.digest.hex()
        run = RunFile(record.name, digest, record.size, known[0], record.footer)
        runs.append(AppliedRun(run, known[1], replaced))
    return Chains.empty(slots).apply(runs)


def _parts(applied: AppliedRun, shares: SlotShares) -> list[tuple[int, bytes]]:
    """A run's record for each of the channels that have slots of it."""
    run, slots, replaced = applied
    versions: dict[int, list[tuple[bytes, bytes]]] = {}
    for digest in set(replaced.values()):
        same = [slot for slot, version in replaced.items() if version == digest]
        for channel, bits in shares.parts(np.array(same, dtype=np.int32)):
            versions.setdefault(channel, []).append((bytes.fromhex(digest), bits))
    return [
        (
            channel,
            _encode(
                _ShippedRun(
                    run.name,
                    bytes.fromhex(run.digest),
                    run.bytes,
                    run.footer,
                    bits,
                    versions.get(channel, []),
                )
            ),
        )
        for channel, bits in shares.parts(slots)
    ]


def _list_of(encoded: list[bytes]) -> bytes:
    """Values that are MessagePack already, as a list."""
    return b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded)

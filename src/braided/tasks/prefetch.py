"""Bringing slots to a host before a batch needs them there: what runs on that host.

It opens the slots at the newest version, which fills the host's cache, and does nothing else. A
slot that is opened by a later batch then lacks that batch's changes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.store.history.shipped_chains import unpack_chains
from braided.store.slots.channel_state import ChannelState
from braided.tasks.channel import cache_of_host
from braided.tasks.state_location import StateLocation

__all__ = ["Fetched", "HostErrand", "SlotShare", "run_errands"]

_AT_ONCE = 256
"""Slots that are held open together; each file is read once for all of them."""


@dataclass(frozen=True)
class SlotShare:
    """Slots of one operator for one host, and what they are made of."""

    operator: str
    meta: OperatorMeta
    slots: tuple[int, ...]
    chains: bytes


@dataclass(frozen=True)
class HostErrand:
    """What a task on a host is to do; one without shares starts a worker, and that is all."""

    location: StateLocation
    shares: tuple[SlotShare, ...] = ()


class Fetched(msgspec.Struct, frozen=True, array_like=True):
    """What came of it."""

    slots: int
    bytes: int
    seconds: float


def run_errands(
    errands: Sequence[HostErrand],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` calls in the partition that has the number of an errand."""

    def run(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in chunks:
            pass
        context = TaskContext.get()
        assert context is not None
        fetched = run_errand(errands[context.partitionId()])
        yield pa.RecordBatch.from_pydict(
            {"fetched": pa.array([msgspec.msgpack.encode(fetched)], pa.binary())}
        )

    return run


def run_errand(errand: HostErrand) -> Fetched:
    begun = perf_counter()
    slots = size = 0
    location = errand.location
    cache = cache_of_host(location.cache, location.flow, location.store)
    for share in errand.shares:
        chains = unpack_chains(share.chains, share.meta.slots)
        view = OperatorVersion.empty(share.meta).with_chains(chains)
        for first in range(0, len(share.slots), _AT_ONCE):
            some = share.slots[first : first + _AT_ONCE]
            state = ChannelState(location.store, cache, share.operator, view, location.limits)
            try:
                state.open_slots(some)
                size += state.bytes_caught_up
            finally:
                state.close()
            slots += len(some)
    return Fetched(slots, size, perf_counter() - begun)

"""Slots from which keys go to other hosts are fetched there, and nothing else is."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.key_moves import KeyMoves
from braided.control.routing.residence import Residence
from braided.control.routing.table import RoutingTable
from braided.hosts.errands import guests_to_fetch, slots_to_fetch

SLOTS, CHANNELS = 6, 3
HOSTS = ("", "a", "b")


class Version:
    """Some slots have state."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def length(self, slot: int) -> int:
        return self._lengths[slot]


numbers = st.integers(0, SLOTS - 1)


@given(
    slots=st.lists(st.integers(0, CHANNELS - 1), min_size=SLOTS, max_size=SLOTS),
    hosts=st.just(()) | st.tuples(*[st.sampled_from(HOSTS)] * CHANNELS),
    lies=st.lists(st.integers(-1, 1), min_size=SLOTS, max_size=SLOTS),
    lengths=st.lists(st.integers(0, 1), min_size=SLOTS, max_size=SLOTS),
    pairs=st.lists(st.tuples(numbers, numbers), max_size=8),
)
def test_a_host_fetches_the_slots_that_it_takes_keys_from_and_does_not_have(
    slots: list[int],
    hosts: tuple[str, ...],
    lies: list[int],
    lengths: list[int],
    pairs: list[tuple[int, int]],
) -> None:
    table = RoutingTable(1, CHANNELS, np.array(slots), hosts=hosts)
    residence = Residence(("b", "a"), np.array(lies, dtype=np.int32))
    moves = KeyMoves.of([b"k"] * len(pairs), [d for d, _ in pairs], [t for _, t in pairs])
    version = cast(Any, Version(lengths))
    found = guests_to_fetch(table, moves, residence, version)
    own = slots_to_fetch("op", table, residence, version)

    def host_of(slot: int) -> str:
        return hosts[slots[slot]] if hosts else ""

    needed = {
        (host_of(taker), donor)
        for donor, taker in pairs
        if lengths[donor]
        and host_of(taker)
        and (lies[donor] < 0 or ("b", "a")[lies[donor]] != host_of(taker))
    }
    fetched = {(host, slot) for host, each in found.items() for slot in each}
    fetched_as_own = {(host, slot) for host, each in own.items() for slot in each}
    assert needed <= fetched | fetched_as_own and fetched <= needed
    assert not fetched & fetched_as_own, "what is to be there for good is fetched as that"

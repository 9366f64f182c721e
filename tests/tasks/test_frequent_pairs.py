"""The most frequent of many items: never too high, and too low by no more than is said."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from braided.tasks.frequent_pairs import FrequentPairs

_PARTS = st.lists(
    st.lists(st.integers(0, 30).map(lambda n: n * n // 30), min_size=1, max_size=60),
    min_size=1,
    max_size=12,
)


def _counted(parts: list[list[int]], room: int) -> FrequentPairs:
    frequent = FrequentPairs(room)
    for part in parts:
        items, counts = np.unique(np.array(part, dtype=np.int64), return_counts=True)
        chosen = frequent.choose(counts)
        frequent.add(items[chosen], counts[chosen])
    return frequent


@given(_PARTS, st.integers(1, 12))
def test_counts_are_within_the_error_that_is_said_and_that_is_small(
    parts: list[list[int]], room: int
) -> None:
    frequent = _counted(parts, room)
    true = Counter(item for part in parts for item in part)
    found = dict(zip(frequent.pairs.tolist(), frequent.counts.tolist(), strict=True))
    assert len(found) == frequent.pairs.size <= room
    assert frequent.total == true.total()
    for item, count in true.items():
        assert found.get(item, 0) <= count <= found.get(item, 0) + frequent.error
    assert frequent.error <= 2 * frequent.total / room


@given(_PARTS)
def test_where_there_is_room_for_all_nothing_is_lost(parts: list[list[int]]) -> None:
    frequent = _counted(parts, 31)
    assert frequent.error == 0
    true = Counter(item for part in parts for item in part)
    assert dict(zip(frequent.pairs.tolist(), frequent.counts.tolist(), strict=True)) == true


def test_an_item_that_begins_to_be_frequent_gets_in() -> None:
    frequent = _counted([[*range(100)]] * 3 + [[*range(200, 300), *[7777] * 50]] * 5, room=20)
    counts = dict(zip(frequent.pairs.tolist(), frequent.counts.tolist(), strict=True))
    assert counts[7777] == 250

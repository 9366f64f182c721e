"""Calls of a columnar operator: which rows of a key come together does not go by the clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braided.kinds.columnar import gathering
from braided.kinds.columnar.gathering import ChunkGathering
from support.cases import cases

_texts = st.sampled_from([None, "", "a", "b" * 40, "c" * 250])
_places = st.lists(
    st.tuples(st.integers(1, 60), st.lists(_texts, min_size=1, max_size=3)), min_size=1, max_size=4
)
"""Of each place how many rows it has, and their texts, over and over."""


def chunks_of(rows: Any, sizes: list[int]) -> list[pa.RecordBatch]:
    """In chunks of these sizes, over and over, each made by itself."""
    chunks, begin, turn = [], 0, 0
    while begin < len(rows):
        some = rows[begin : begin + sizes[turn % len(sizes)]]
        numbers = pa.array(range(begin, begin + len(some)), pa.int64())
        texts = pa.array([text for _, text in some], pa.string())
        lists = pa.array([None if text is None else [text, "x"] for _, text in some])
        places = pa.array([place for place, _ in some], pa.int64())
        lists = lists.cast(pa.list_(pa.string()))
        arrays = [numbers, texts, lists, places]
        chunks.append(pa.RecordBatch.from_arrays(arrays, names=["n", "t", "l", "place"]))
        begin, turn = begin + len(some), turn + 1
    return chunks


def parts_of(chunks: list[pa.RecordBatch], learned: int) -> dict[int, list[int]]:
    """Of each place how many rows every call had; a call's are those of the next one's."""
    gathering._rows_of_newest["op"] = learned
    parts: dict[int, list[int]] = {}
    numbers: list[int] = []
    for call in ChunkGathering("op", can_stop=True)(iter(chunks)):
        numbers += call.column(0).to_pylist()
        places, counts = np.unique(call.column(3).to_numpy(), return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            parts.setdefault(place, []).append(count)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == sum(chunk.num_rows for chunk in chunks)
    return parts


@settings(max_examples=cases(150))
@given(
    places=_places,
    sizes=st.tuples(*[st.lists(st.integers(1, 40), min_size=1, max_size=4)] * 2),
    learned=st.tuples(*[st.sampled_from([1, 7, 1000])] * 2),
    most=st.sampled_from([(10, 1 << 20), (1000, 700), (12, 1500)]),
)
def test_where_a_key_is_divided_follows_from_its_rows_alone(
    places: Any, sizes: Any, learned: Any, most: tuple[int, int]
) -> None:
    rows = [
        (place, texts[number % len(texts)])
        for place, (count, texts) in enumerate(places)
        for number in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "CALL_ROWS", most[0])
        patch.setattr(gathering, "CALL_BYTES", most[1])
        one, other = (
            parts_of(chunks_of(rows, each), rate) for each, rate in zip(sizes, learned, strict=True)
        )
    assert one == other
    for counts in one.values():
        assert max(counts) <= most[0]
        if most[1] == 1 << 20:
            assert counts[:-1] == [most[0]] * (len(counts) - 1), "no more parts than needed"

"""Rows sorted by place alone come out in the order of a full sort, whatever their chunks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.tasks import place_order
from braided.tasks.place_order import PlaceOrder

Row = tuple[int, int, int]
_rows = st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 0), st.integers(0, 30)))


def chunks_of(rows: list[Row], size: int) -> list[pa.RecordBatch]:
    """Order columns (age, sequence), a column of the rows' own, and places."""
    places, ages, sequences = (list(column) for column in zip(*rows, strict=True))
    columns = [ages, sequences, range(len(rows)), places]
    arrays = [pa.array(column, pa.int64()) for column in columns]
    table = pa.Table.from_arrays(arrays, names=["o0", "o1", "v", "place"])
    empty = table.slice(0, 0).to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return [*empty, *table.to_batches(max_chunksize=size)]


def in_order(rows: list[Row], size: int, keep: bool = True) -> list[dict[str, int]]:
    chunks = PlaceOrder(2, keep)(iter(chunks_of(rows, size)))
    return [row for chunk in chunks for row in chunk.to_pylist()]


@pytest.mark.parametrize("memory", [place_order.MEMORY_BYTES, 1])
@given(rows=_rows.filter(bool), size=st.integers(1, 12))
def test_what_spark_has_sorted_by_place_is_put_in_order(
    memory: int, rows: list[Row], size: int
) -> None:
    rows.sort(key=lambda row: row[0])
    numbered = [(*row, number) for number, row in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_order, "MEMORY_BYTES", memory)
        patch.setattr(place_order, "_PIECE_ROWS", 3)
        found = in_order(rows, size)
        bare = in_order(rows, size, keep=False)
    assert [(row["place"], row["o0"], row["o1"], row["v"]) for row in found] == sorted(numbered)
    assert bare == [{"v": row["v"], "place": row["place"]} for row in found]


def test_a_place_waits_no_longer_than_it_lasts() -> None:
    rows = [(place, 0, n) for place in range(3) for n in range(4)]
    read = []

    def counted() -> object:
        for chunk in chunks_of(rows, 2)[1:]:
            read.append(chunk)
            yield chunk

    chunks = PlaceOrder(2, False)(counted())  # type: ignore[arg-type]
    first = next(chunks)
    assert first.column(0).to_pylist() == [0, 1, 2, 3]
    assert len(read) == 3, "the first chunk of the next place tells that this one is complete"


def test_a_hot_place_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_order, "MEMORY_BYTES", 1)
    monkeypatch.setattr(place_order, "_PIECE_ROWS", 2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    chunks = PlaceOrder(2, False)(iter(chunks_of([(0, 0, 9 - n) for n in range(10)], 3)))
    assert next(chunks).column(0).to_pylist() == [9, 8]
    assert list(tmp_path.iterdir())
    chunks.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())

"""Rows sorted by place alone come out in the order of a full sort, whatever their chunks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.tasks import place_order, sorted_runs
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
        patch.setattr(sorted_runs, "_PIECE_ROWS", 3)
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


def test_what_is_read_along_with_a_hot_place_is_complete_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chunk that ends a hot place has other ones, the last of which goes on in the next."""
    monkeypatch.setattr(place_order, "MEMORY_BYTES", 200)
    rows = [(1, 0, n) for n in range(20)]
    rows += [(1, 0, 20), (2, 0, 1), (3, 0, 9)]
    rows += [(3, 0, 2), (3, 0, 3), (4, 0, 1)]
    whole = chunks_of(rows, len(rows))[1]
    chunks = [whole.slice(0, 20), whole.slice(20, 3), whole.slice(23)]
    found = [row for each in PlaceOrder(2, True)(iter(chunks)) for row in each.to_pylist()]
    assert [(row["place"], row["o1"]) for row in found[20:]] == [
        (1, 20), (2, 1), (3, 2), (3, 3), (3, 9), (4, 1)
    ]  # fmt: skip


def test_a_hot_place_takes_memory_for_pieces_of_it_and_not_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However its rows are mixed. Arrow's own take puts a whole column together for each piece."""
    monkeypatch.setattr(place_order, "MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(sorted_runs, "_PIECE_BYTES", 1 << 18)
    size, count = 500, 80
    numbers = np.random.default_rng(1).permutation(size * count)

    def chunks() -> Iterator[pa.RecordBatch]:
        for some in np.split(numbers, count):
            text = pa.array([f"{number:0>1000}" for number in some.tolist()])
            columns = [pa.array(some), text, pa.array(np.full(size, 7))]
            yield pa.RecordBatch.from_arrays(columns, names=["o0", "v", "place"])

    before, most, found = pa.total_allocated_bytes(), 0, []
    for chunk in PlaceOrder(1, False)(chunks()):
        assert chunk.nbytes <= 1 << 18
        found += pc.cast(chunk.column(0), pa.int64()).to_pylist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert found == list(range(size * count))
    assert most < 4 << 20, "the rows have 40 MB"


def test_a_hot_place_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the process is killed: the file has no name, in Spark's local directory."""
    opened: list[Any] = []

    def temporary_file(**options: Any) -> Any:
        opened.append((options["dir"], tempfile.TemporaryFile(**options)))  # noqa: SIM115
        return opened[-1][1]

    monkeypatch.setattr(place_order, "MEMORY_BYTES", 1)
    monkeypatch.setattr(sorted_runs, "_PIECE_ROWS", 2)
    monkeypatch.setattr(sorted_runs, "tempfile", SimpleNamespace(TemporaryFile=temporary_file))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'gone'},{tmp_path}")
    chunks = PlaceOrder(2, False)(iter(chunks_of([(0, 0, 9 - n) for n in range(10)], 3)))
    assert next(chunks).column(0).to_pylist() == [9, 8]
    [(where, file)] = opened
    assert where == str(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not file.closed
    chunks.close()  # type: ignore[attr-defined]
    assert file.closed

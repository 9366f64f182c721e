"""A task that is told to stop: where it stops, what it keeps, and that every attempt does so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.orders.line import OrderLine, line_to
from braided.orders.post import OrderPost
from braided.store.durable.local_store import LocalStore
from braided.tasks.carry import CarriedColumns, Cut, _read_one
from braided.tasks.columns import PLACE
from braided.tasks.pieces import Grain, Pieces
from braided.tasks.spec import BatchSpec
from braided.tasks.task_line import TaskLine
from support.order_peers import becomes, patience, patient_post

TOKEN = "try-1"
SPEC = BatchSpec(TOKEN, 7, 0, 0, 0, {}, None)


@pytest.fixture
def post() -> Iterator[OrderPost]:
    post = patient_post()
    with patience():
        yield post
    post.close()


def chunk(begin: int, rows: int, per_key: int = 1) -> pa.RecordBatch:
    numbers = np.arange(begin, begin + rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array(numbers // per_key)], ["v", PLACE]
    )


def attempt(line: OrderLine, channel: int = 0, operator: str = "op") -> Cut:
    chunks = [chunk(0, 100), chunk(100, 100)]
    task_line = TaskLine(line, SPEC, operator, channel)
    return Cut(iter(chunks), None, task_line, Pieces(operator, Grain.ROW))


def test_it_stops_between_two_pieces_and_keeps_the_rest(post: OrderPost, tmp_path: Path) -> None:
    line = line_to(post.address)
    cut, rows = attempt(line), 0
    for piece in cut.through():
        rows += piece.num_rows
        if rows >= 20 and not post.is_stopped(TOKEN):
            post.stop(TOKEN)
            assert becomes(lambda: line.is_stopped(TOKEN))
    assert 20 <= rows < 200
    assert post.cuts(TOKEN) == {("op", 0): rows}
    store = LocalStore(tmp_path)
    kept = cut.keep(
        store, "op", "rest", CarriedColumns(order=3, has_order=False, width=1, channel=2)
    )
    assert kept is not None and kept.rows == 200 - rows
    columns = pa.Table.from_batches(list(_read_one(store, "rest", kept.digest))).to_pydict()
    assert columns["v"] == list(range(rows, 200))
    assert max(columns["__braided_o0"]) < -1  # before all that is carried with its order
    assert columns["__braided_o1"] == sorted(columns["__braided_o1"])
    # Rows of a split key may be in the files of several channels: their order is one all the same.
    assert {number >> 40 for number in columns["__braided_o1"]} == {2}
    assert columns["__braided_o2"] == [0] * kept.rows


def test_another_attempt_of_the_channel_stops_at_the_same_row(post: OrderPost) -> None:
    line = line_to(post.address)
    post.stop(TOKEN)
    assert line.agree(TOKEN, "op", 0, 37) == 37
    again = attempt(line)
    assert sum(piece.num_rows for piece in again.through()) == 37
    other = attempt(line, channel=1)
    assert list(other.through()) == []  # it had not begun
    assert other.is_cut


def test_a_stop_that_comes_when_all_is_done_cuts_nothing(post: OrderPost) -> None:
    line = line_to(post.address)
    cut = attempt(line)
    assert sum(piece.num_rows for piece in cut.through()) == 200
    post.stop(TOKEN)
    assert not cut.is_cut
    assert cut.keep(LocalStore(Path("nowhere")), "op", "x", CarriedColumns(2, False, 1, 0)) is None


def test_a_task_that_nobody_reaches_does_all_its_rows() -> None:
    cut = attempt(line_to(None))
    assert sum(piece.num_rows for piece in cut.through()) == 200


@given(
    sizes=st.lists(st.integers(0, 60), max_size=6),
    per_key=st.integers(1, 20),
    grain=st.sampled_from(Grain),
    limit=st.none() | st.integers(0, 300),
)
def test_pieces_are_all_rows_in_their_order_and_end_where_they_may(
    sizes: list[int], per_key: int, grain: Grain, limit: int | None
) -> None:
    begins = np.cumsum([0, *sizes]).tolist()
    chunks = [chunk(b, n, per_key) for b, n in zip(begins, sizes, strict=False)]
    line = TaskLine(line_to(None), SPEC, "op", 0)
    cut = Cut(iter(chunks), limit, line, Pieces(f"op-{grain}", grain))
    pieces = list(cut.through())
    through = [v for piece in pieces for v in piece.column(0).to_pylist()]
    total = sum(sizes) if limit is None else min(limit, sum(sizes))
    assert through == list(range(total))
    assert cut.is_cut == (total < sum(sizes))
    if limit is None and grain is not Grain.ROW:
        ends = np.cumsum([piece.num_rows for piece in pieces]).tolist()
        allowed = set(begins)
        if grain is Grain.KEY:
            allowed |= set(range(0, sum(sizes) + 1, per_key))
        assert allowed.issuperset(ends)

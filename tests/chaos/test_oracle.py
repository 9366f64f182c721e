"""The oracle of the chaos run: its rows are known, and how they are dealt out changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from support.chaos.flow import STEP, TICK_MS
from support.chaos.oracle import ROWS_PER_FILE, InputRow, Oracle, rows_of_file


def seen_by(*parts: Sequence[InputRow]) -> Oracle:
    oracle = Oracle()
    for part in parts:
        oracle.feed(part)
    return oracle


def rows_of(seed: int, files: int) -> list[InputRow]:
    return [row for number in range(files) for row in rows_of_file(seed, number)]


@given(st.integers(0, 1000), st.integers(1, 8))
def test_rows_are_numbered_and_timed_in_order_and_the_same_for_a_seed(
    seed: int, files: int
) -> None:
    rows = rows_of(seed, files)
    assert rows == rows_of(seed, files)
    assert [row.id for row in rows] == list(range(files * ROWS_PER_FILE))
    assert sorted({row.at_ms for row in rows}) == [row.at_ms for row in rows]


@given(st.integers(0, 1000), st.integers(0, 8 * ROWS_PER_FILE))
def test_where_a_batch_ends_changes_nothing(seed: int, cut: int) -> None:
    rows = rows_of(seed, 8)
    whole, parts = seen_by(rows), seen_by(rows[:cut], rows[cut:])
    assert (whole.output, whole.state()) == (parts.output, parts.state())


@given(st.integers(0, 1000), st.integers(0, 2 * ROWS_PER_FILE - 1))
def test_a_row_that_is_lost_or_comes_twice_is_seen_in_the_state(seed: int, at: int) -> None:
    rows = rows_of(seed, 2)
    lost, twice = rows[:at] + rows[at + 1 :], rows[: at + 1] + rows[at:]
    states = [seen_by(each).state() for each in (rows, lost, twice)]
    for name in ("chain", "totals"):
        assert states[0][name] != states[1][name] and states[0][name] != states[2][name]


def test_two_rows_of_a_key_that_change_places_are_seen_in_the_state() -> None:
    first, second = InputRow(0, 7, 5, 1_000), InputRow(1, 7, 5, 1_000)
    assert seen_by([first, second]).state() != seen_by([second, first]).state()


def test_milestones_and_ticks_come_once_each() -> None:
    rows = [InputRow(n, 0, 1, TICK_MS * n // 4) for n in range(2 * STEP + 1)]
    oracle = seen_by(rows)
    ticks = range(TICK_MS, rows[-1].at_ms + 1, TICK_MS)
    expected = [(0, "rows", STEP), (0, "rows", 2 * STEP), *[(0, "tick", tick) for tick in ticks]]
    assert sorted(oracle.output.items()) == sorted((row, 1) for row in expected)
    assert oracle.state()["milestones"] == {
        0: (2 * STEP, ticks[-1] + TICK_MS, (ticks[-1] + TICK_MS,))
    }

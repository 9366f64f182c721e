"""When a batch should end early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braided.control.early_cut import ChannelProgress, reason_to_cut


def ended(rows: int, seconds: float) -> ChannelProgress:
    return ChannelProgress(rows, seconds, True)


def running(rows: int, seconds: float) -> ChannelProgress:
    return ChannelProgress(rows, seconds, False)


OTHERS = [ended(100, 1.0), ended(110, 1.1), ended(90, 0.9)]


def test_a_channel_that_will_take_much_longer_than_the_others_is_a_reason() -> None:
    reason = reason_to_cut([*OTHERS, running(120, 1.2)], 4, lambda: 1000, 0.2)
    assert reason is not None
    assert (reason.rows_left, round(reason.rest_s, 1), reason.others_s) == (580, 5.8, 1.0)


def test_one_that_is_nearly_done_is_not() -> None:
    assert reason_to_cut([*OTHERS, running(120, 1.2)], 4, lambda: 480, 0.2) is None


def test_nor_one_whose_rest_a_batch_would_not_pay_for() -> None:
    assert reason_to_cut([*OTHERS, running(120, 1.2)], 4, lambda: 600, 2.0) is None


def test_nothing_is_known_before_half_have_ended_or_all_have_begun() -> None:
    slow = [running(10, 1.0), running(10, 1.0)]
    assert reason_to_cut([OTHERS[0], *slow], 3, lambda: 10_000, 0.1) is None
    assert reason_to_cut([*OTHERS, running(10, 1.0)], 5, lambda: 10_000, 0.1) is None
    assert reason_to_cut([*OTHERS, running(0, 3.0)], 4, lambda: 10_000, 0.1) is None


def test_nobody_is_asked_for_rows_where_they_do_not_matter() -> None:
    def rows() -> int:
        raise AssertionError("asked for")

    assert reason_to_cut([*OTHERS, running(120, 1.2)], 4, rows, 2.0) is None
    assert reason_to_cut(OTHERS, 3, rows, 0.1) is None


def test_rows_that_are_not_known_are_no_reason() -> None:
    assert reason_to_cut([*OTHERS, running(120, 1.2)], 4, lambda: None, 0.2) is None


@given(
    st.lists(
        st.builds(
            ChannelProgress,
            rows=st.integers(0, 10_000),
            seconds=st.floats(0, 1000),
            ended=st.booleans(),
        ),
        max_size=8,
    ),
    st.integers(0, 8),
    st.integers(0, 100_000),
    st.floats(0, 100),
)
def test_what_it_says_is_worth_it(
    channels: list[ChannelProgress], count: int, rows: int, overhead_s: float
) -> None:
    reason = reason_to_cut(channels, count, lambda: rows, overhead_s)
    if reason is not None:
        assert reason.rest_s >= reason.others_s
        assert reason.rest_s >= 2 * overhead_s
        assert any(channel.ended for channel in channels)
        assert not all(channel.ended for channel in channels)

"""What a batch takes beside its work, and what channels have to do with it."""

from __future__ import annotations

import pytest

from braided.control.measure.overhead import Overhead
from braided.control.policies.ds2 import Ds2
from braided.control.policy import Limits
from braided.control.routing.table import RoutingTable
from support.operator_views import flow, view


def test_the_slope_is_that_of_the_numbers_seen() -> None:
    overhead = Overhead()
    for channels in (2, 2, 6, 6, 10):
        overhead.add(channels, 0.2 + 0.05 * channels)
    assert overhead.per_channel_s() == pytest.approx(0.05)
    assert overhead.seconds() == pytest.approx(0.7)


def test_half_is_put_down_to_channels_while_only_one_number_is_known() -> None:
    overhead = Overhead()
    assert (overhead.seconds(), overhead.per_channel_s()) == (0.0, 0.0)
    overhead.add(4, 0.8)
    assert overhead.per_channel_s() == pytest.approx(0.1)


def test_a_pause_of_the_machine_is_not_put_down_to_anything() -> None:
    overhead = Overhead()
    for seconds in (0.4, 0.4, 0.4, 5.0):
        overhead.add(2, seconds)
    assert overhead.seconds() == pytest.approx(0.4)


def test_an_overhead_that_falls_with_channels_is_chance() -> None:
    overhead = Overhead()
    overhead.add(2, 0.8)
    overhead.add(4, 0.4)
    assert overhead.per_channel_s() == 0.0


def test_numbers_of_long_ago_are_forgotten() -> None:
    overhead = Overhead()
    overhead.add(1, 9.0)
    for channels in range(2, 9):
        overhead.add(channels, 0.1 * channels)
    assert overhead.per_channel_s() == pytest.approx(0.1)


def test_known_is_what_batches_in_time_had_and_what_comes_with_every_number() -> None:
    overhead = Overhead()
    overhead.add(4, 0.8)
    assert overhead.known_s() == 0.0  # it may be the rows' doing
    overhead.add(8, 0.8)
    assert overhead.known_s() == pytest.approx(0.8)
    overhead = Overhead()
    overhead.add(4, 0.2, is_late=False)
    assert overhead.known_s() == pytest.approx(0.2)
    overhead.add(8, 1.2)  # a sink that was slower than so many
    assert overhead.known_s() == pytest.approx(0.2)
    overhead = Overhead()
    overhead.add(4, 0.6)
    overhead.add(8, 1.2)
    assert overhead.known_s() == pytest.approx(0.0)


LIMITS = Limits(channels_max=64)


def asked(rate: float, channels: int, overhead_s: float, channel_s: float) -> int:
    table = RoutingTable.initial(256, channels)
    load = [rate / 1000 / 256] * 256
    seen = flow(
        view(table, load, arrival_rate=rate, true_rate=1000.0),
        interval_s=1.0,
        overhead_s=overhead_s,
        channel_s=channel_s,
    )
    wishes, _ = Ds2().scale(seen, LIMITS, {})
    return wishes["o"].channels


def test_an_overhead_that_channels_cause_is_not_met_with_channels() -> None:
    # 16 channels are the reason why 4,000 rows/s do not fit; with 8 or so they nearly do.
    assert 6 <= asked(4000, 16, overhead_s=0.3 + 16 * 0.06, channel_s=0.06) <= 10
    # From below it is the same number: nobody is sent up and down again.
    assert 6 <= asked(4000, 4, overhead_s=0.3 + 4 * 0.06, channel_s=0.06) <= 10


def test_where_channels_cost_nothing_the_work_fits_the_interval() -> None:
    assert asked(4000, 2, overhead_s=0.2, channel_s=0.0) == 7  # 4 / (0.8 * 0.8)


def test_more_work_than_there_are_channels_takes_them_all() -> None:
    assert asked(90_000, 2, overhead_s=0.2, channel_s=0.0) == 64


def test_who_is_in_time_is_not_given_more_for_some_rows() -> None:
    # 0.6 / 1 is more than 0.8 * 0.7 and less than 0.95 * 0.7.
    assert asked(600, 1, overhead_s=0.3, channel_s=0.0) == 1
    assert asked(700, 1, overhead_s=0.3, channel_s=0.0) == 2
    # Down again it goes by the room that there should be.
    assert asked(600, 2, overhead_s=0.3, channel_s=0.0) == 2
    assert asked(500, 2, overhead_s=0.3, channel_s=0.0) == 1

"""A batch that is known to be large has its channels before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from braided.control.measure.view import FlowView
from braided.control.outlook import Outlook
from braided.control.policies.ds2 import Ds2
from braided.control.policies.saso import Saso
from braided.control.policy import Limits, Memory, ScalePolicy, Wish
from braided.control.routing.table import RoutingTable
from support.operator_views import flow, view


def outlook(scale: ScalePolicy, limits: Limits | None = None) -> Outlook:
    """One channel's worth of work on two channels."""
    table = RoutingTable.initial(256, 2)
    seen = flow(
        view(table, np.full(256, 1 / 256), arrival_rate=1000.0, true_rate=1000.0, congestion=0.9),
        interval_s=1.0,
        overhead_s=0.1,
    )
    return Outlook(seen, 1.0, scale, limits or Limits(), {})


def test_four_times_the_input_gets_the_channels_for_it() -> None:
    wish = outlook(Ds2()).wishes(4.0, 1.0)["o"]
    assert wish.channels == 6  # 4 / (0.8 * 0.9)
    assert wish.reason.startswith("input comes 4.0 times as fast as before: 4,000 rows/s")


def test_what_took_longer_to_collect_is_no_surge() -> None:
    assert outlook(Ds2()).wishes(4.0, 4.0) == {}
    assert outlook(Ds2()).wishes(1.2, 1.0) == {}


def test_channels_are_never_given_up_ahead() -> None:
    assert outlook(Ds2()).wishes(0.1, 1.0) == {}
    assert outlook(Ds2(), Limits(channels_max=2)).wishes(4.0, 1.0) == {}
    assert outlook(Ds2(), Limits(channels_max=4)).wishes(4.0, 1.0)["o"].channels == 4


def test_delays_and_cool_downs_hold_ahead_of_a_batch_too() -> None:
    plain = outlook(Ds2())
    assert replace(plain, cooling=frozenset("o")).wishes(4.0, 1.0) == {}
    delayed = replace(plain, limits=Limits(up_delay_s=5.0), now_s=20.0)
    assert delayed.wishes(4.0, 1.0) == {}
    assert replace(delayed, wanted_since_s={"o": 17.0}).wishes(4.0, 1.0) == {}
    assert "o" in replace(delayed, wanted_since_s={"o": 16.0}).wishes(4.0, 1.0)


def test_what_is_granted_at_once_waits_for_nothing_ahead_of_a_batch_either() -> None:
    class AtOnce:
        by_rate = True

        def scale(
            self, flow: FlowView, limits: Limits, memory: Memory
        ) -> tuple[Mapping[str, Wish], Memory]:
            return {"o": Wish(5, "now", at_once=True)}, memory

    cooling = replace(outlook(AtOnce(), Limits(up_delay_s=5.0)), cooling=frozenset("o"))
    assert cooling.wishes(4.0, 1.0)["o"].channels == 5


def test_a_bound_on_all_channels_together_is_kept() -> None:
    assert outlook(Ds2(), Limits(total_max=3)).wishes(4.0, 1.0)["o"].channels == 3
    assert outlook(Ds2(), Limits(total_max=2)).wishes(4.0, 1.0) == {}


def test_who_goes_by_its_own_past_is_not_asked() -> None:
    assert outlook(Saso()).wishes(4.0, 1.0) == {}

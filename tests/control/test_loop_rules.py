"""Rules of the loop that a run as a whole hardly shows, each of which somebody could leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from braided.control.events import Decided, Judged
from braided.control.hot_keys import HotKeyRule, pin_change
from braided.control.judging import expect, judge
from braided.control.loop import Controller, Cycle
from braided.control.measure.arrival_rate import ArrivalRate
from braided.control.measure.latency import Latency
from braided.control.measure.measurer import Measurer
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import FlowSample, FlowView, KeyLoad, OperatorSample
from braided.control.policies.balancers import Elasticutor, Rc
from braided.control.policies.ds2 import Ds2, Off, settle
from braided.control.policies.saso import Saso
from braided.control.policy import Bounds, Limits, Memory, Wish
from braided.control.routing.balance import imbalance
from braided.control.routing.executors import Layout
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable
from braided.control.settings import Settings
from braided.control.useful import (
    HottestKey,
    Remote,
    held_up,
    of_cores,
    of_key,
    of_overhead,
    remote_bound,
)
from braided.control.worth import Prices, weigh
from support.operator_views import flow, view

SLOTS = 32


@dataclass
class Wants:
    """A scale policy that wants what it is told to want."""

    channels: dict[str, int]

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {name: Wish(count, "because") for name, count in self.channels.items()}, memory


def operator(table: RoutingTable, rows: float | np.ndarray = 100.0, **others: object) -> object:
    counted = np.broadcast_to(np.asarray(rows, dtype=float), (SLOTS,)).copy()
    busy = counted * 0.001
    fields = {
        "name": "o",
        "table": table,
        "rows": counted,
        "busy_s": busy,
        "keys": counted,
        "state_bytes": np.full(SLOTS, 1000.0),
        "channel_busy_s": np.bincount(table.slots, busy, minlength=table.channels).astype(float),
        "rows_out": float(counted.sum()),
        **others,
    }
    return OperatorSample(**fields)  # type: ignore[arg-type]


def batch(number: int, *operators: object, duration_s: float = 0.9, **others: float) -> FlowSample:
    fields = {"interval_s": 1.0, "collected_s": 1.0, **others}
    return FlowSample(number, duration_s=duration_s, operators=operators, **fields)  # type: ignore[arg-type]


# -- balancing -------------------------------------------------------------------------------


def test_who_is_above_theta_goes_on_to_half_of_what_is_tolerated() -> None:
    chance = np.random.default_rng(1)
    load = chance.uniform(0.5, 1.5, 400)
    table = RoutingTable.initial(400, 8)
    load[table.of(0)] *= 1.6
    for theta in (1.1, 1.4):
        assert imbalance(table, load) > theta
        after = Elasticutor(theta).balance(view(table, load), 8)
        assert imbalance(after, load) <= 1 + (theta - 1) / 2
    assert Rc().theta == Elasticutor().theta


def test_less_than_a_hundredth_of_the_peak_is_not_worth_moving_for() -> None:
    table = RoutingTable(0, 2, np.repeat([0, 1], [101, 99]))
    after = table.next(np.repeat([0, 1], [100, 100]))
    seen = view(table, np.full(200, 0.01))
    assert not weigh(seen, after, Prices(slot_s=0.0)).pays
    assert weigh(seen, after, Prices(slot_s=0.0, least_gain=0.005)).pays


def test_channels_follow_the_load_from_executor_to_executor() -> None:
    controller = Controller(Settings(scale=Off(), executors=2))
    table = Layout.even(SLOTS, 2, 8).table()
    first = np.where(np.arange(SLOTS) < SLOTS // 2, 300.0, 40.0)
    for number in range(4):
        cycle = controller.step(batch(number, operator(table, first)))
        table = cycle.tables.get("o", table)
    layout = controller.layout("o")
    assert layout is not None
    assert len(layout.channels[0]) > len(layout.channels[1])
    assert layout.is_within(table.slots).all()


# -- measuring -------------------------------------------------------------------------------


def measured(sample: FlowSample, times: int = 1) -> FlowView:
    measurer, loads = (
        Measurer(),
        SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS)),
    )
    for _ in range(times):
        seen = measurer.view(sample, {"o": loads})
    return seen


def test_what_waits_in_the_source_is_congestion_and_late_input_is_backlog() -> None:
    table = RoutingTable.initial(SLOTS, 4)
    calm = measured(batch(0, operator(table))).operators["o"]
    assert (calm.congestion, calm.backlog_rows) == (0.0, 0.0)
    waits = measured(batch(0, operator(table, backlog_rows=6400.0))).operators["o"]
    assert waits.congestion == pytest.approx(1 - 1 / 2.9)
    assert (waits.backlog_rows, waits.late_rows) == (6400, 0)
    late = measured(batch(0, operator(table), duration_s=1.5)).operators["o"]
    assert late.backlog_rows == late.late_rows == pytest.approx(1600)


def test_time_of_slots_without_rows_is_load_and_time_of_no_slot_is_overhead() -> None:
    table = RoutingTable.initial(SLOTS, 4)
    rows = np.where(np.arange(SLOTS) < 4, 0.0, 100.0)
    sample = operator(table, rows)
    assert isinstance(sample, OperatorSample)
    busy = sample.busy_s.copy()
    busy[:4] = 0.2
    of_channels = np.bincount(table.slots, busy, minlength=4) + 0.05
    timers = replace(sample, busy_s=busy, channel_busy_s=of_channels.astype(float))
    seen = measured(batch(0, timers, duration_s=1.2))
    assert seen.operators["o"].load[:4] == pytest.approx(0.2 + 2800 / SLOTS * 0.001)
    assert seen.operators["o"].timer_load == pytest.approx(0.8)
    # 0.9 s of the busiest channel are for slots; all else is overhead, whoever spent it.
    assert seen.overhead_s == pytest.approx(1.2 - 0.9)


def test_a_rate_is_calm_in_noise_and_quick_without_it() -> None:
    chance = np.random.default_rng(3)
    noisy = ArrivalRate()
    for _ in range(100):
        noisy = noisy.then(1000 * max(0.0, 1 + 0.3 * chance.standard_normal()), 1.0)
    assert noisy.rows_per_s == pytest.approx(1000, rel=0.15)
    assert noisy.noise == pytest.approx(0.15, rel=0.4)
    assert noisy.then(1600, 1.0).rows_per_s == pytest.approx(noisy.rows_per_s, rel=0.05)
    calm = ArrivalRate()
    for _ in range(10):
        calm = calm.then(1000, 1.0)
    assert calm.then(2000, 1.0).rows_per_s == 2000
    assert calm.then(4000, 2.0).rows_per_s == 2000  # whatever it took to collect
    # One batch without rows is a pause, and two are not.
    assert calm.then(0, 1.0).rows_per_s > 800
    assert calm.then(0, 1.0).then(0, 1.0).rows_per_s == 0
    assert calm.then(0, 1.0).then(1000, 1.0).rows_per_s == pytest.approx(1000, rel=0.1)
    # A window is a time: of short batches it has more.
    short = ArrivalRate()
    for _ in range(300):
        short = short.then(100, 0.1)
    assert len(short.batches) > 100
    assert ArrivalRate().rows_per_s == 0


def test_a_rate_is_rows_per_time_and_a_batch_without_rows_is_time() -> None:
    alternating = ArrivalRate()
    for _ in range(20):
        alternating = alternating.then(300, 0.1).then(0, 2.9)
    assert alternating.pauses
    assert alternating.rows_per_s == pytest.approx(100, rel=0.1)
    assert alternating.noise < 0.05
    doubled = alternating.then(600, 0.1)
    assert not doubled.pauses
    assert doubled.collected_s == pytest.approx(3.0)
    assert doubled.last == doubled.rows_per_s == pytest.approx(200)
    # Several are one pause, as long as it is none that is longer than usual.
    slow = alternating.then(0, 0.5).then(0, 0.5)
    assert slow.then(400, 0.1).last == pytest.approx(100)
    assert slow.then(0, 1.0).rows_per_s < 100
    assert slow.then(0, 1.0).then(0, 3.0).rows_per_s == 0


def test_what_a_batch_without_rows_shows_is_put_to_the_next_one_that_has_some() -> None:
    measurer = Measurer()
    table = RoutingTable.initial(SLOTS, 2)
    loads = {"o": SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS))}

    def after(number: int, rows: float, **others: float) -> FlowView:
        busy = np.full(SLOTS, 0.025)  # 0.8 s in all: of rows, or of timers
        seen = operator(table, rows, busy_s=busy, channel_busy_s=np.full(2, 0.4), rows_out=64.0)
        return measurer.view(batch(number, seen, **others), loads)

    for number in range(0, 20, 2):
        with_rows = after(number, 10.0, duration_s=1.9, collected_s=0.5)
        without = after(number + 1, 0.0, duration_s=0.5, collected_s=1.5)
    one, other = with_rows.operators["o"], without.operators["o"]
    assert (one.pauses, other.pauses) == (False, True)
    assert (with_rows.input_batch, without.input_batch) == (18, 18)
    assert (with_rows.pause_s, without.pause_s) == (0.0, 1.5)
    assert with_rows.collected_s == without.collected_s == 2.0
    for each in (one, other):
        assert each.arrival_rate == pytest.approx(320 / 2.0, rel=0.05)
        assert each.throughput == pytest.approx(320 / 2.4)
        assert each.selectivity == pytest.approx(128 / 320)
        assert each.timer_load == pytest.approx(0.8 / 2.0)
        assert each.channel_load == pytest.approx(np.full(2, 0.4))
        assert each.congestion == pytest.approx(1 - 1.0 / 1.9)
    assert with_rows.is_late and without.is_late
    # When nothing comes any more, that is said.
    stopped = [after(number, 0.0, collected_s=1.5) for number in (20, 21)][-1]
    assert not stopped.operators["o"].pauses
    assert stopped.input_batch is None
    assert not stopped.is_late


def test_rows_that_timers_give_out_in_a_pause_count_for_those_that_came_before_it() -> None:
    measurer = Measurer()
    table = RoutingTable.initial(SLOTS, 1)
    loads = {"o": SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS))}
    for number in range(0, 40, 2):  # few rows and many in turn, and each is given out once
        rows = 10.0 if number % 4 else 1.0
        measurer.view(batch(number, operator(table, rows, rows_out=0.0)), loads)
        pause = operator(table, 0.0, rows_out=rows * SLOTS)
        seen = measurer.view(batch(number + 1, pause), loads)
    assert seen.operators["o"].selectivity == pytest.approx(1.0)


def test_what_channels_did_by_the_table_before_is_not_held_against_the_new_one() -> None:
    measurer = Measurer()
    old = RoutingTable.initial(SLOTS, 2)
    new = old.next(old.slots[::-1])
    loads = {"o": SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS))}

    def after(number: int, table: RoutingTable, rows: float, *busy_s: float) -> np.ndarray:
        seen = operator(table, rows, channel_busy_s=np.array(busy_s))
        return measurer.view(batch(number, seen), loads).operators["o"].channel_load

    after(0, old, 10.0, 0.9, 0.1)
    after(1, old, 0.0, 0.9, 0.1)  # timers, in a pause
    assert after(2, new, 10.0, 0.5, 0.5) == pytest.approx([0.5, 0.5])
    after(3, new, 0.0, 0.3, 0.3)
    assert after(4, new, 10.0, 0.5, 0.5) == pytest.approx([0.4, 0.4])


def test_timers_are_averaged_and_twice_another_load_is_another_load() -> None:
    measurer = Measurer()
    table = RoutingTable.initial(SLOTS, 1)
    loads = {"o": SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS))}
    rows = np.where(np.arange(SLOTS) < 16, 100.0, 0.0)

    def timers(number: int, seconds: float) -> float:
        busy = np.where(rows > 0, 0.001, seconds / 16)
        seen = operator(table, rows, busy_s=busy, channel_busy_s=np.ones(1))
        return measurer.view(batch(number, seen), loads).operators["o"].timer_load

    bursts = [timers(number, 0.8 if number % 4 == 0 else 0.0) for number in range(40)]
    assert min(bursts[20:]) > 0.1 and max(bursts[20:]) < 0.35
    assert timers(40, 1.0) < 0.4
    assert timers(41, 1.0) == pytest.approx(1.0)


def test_a_percentile_of_latency_is_one_of_rows() -> None:
    latency = Latency()
    assert latency.p95_s() is None
    for _ in range(30):
        latency.add(100, 0.5, 1.0)
    assert latency.p95_s() == pytest.approx(0.5 + 0.95)
    latency.add(1000, 3.0, 1.0)  # a fourth of all rows
    assert latency.p95_s() == pytest.approx(4 - 0.05 * 4, rel=0.05)


# -- granting --------------------------------------------------------------------------------


def test_fewer_channels_by_less_than_the_hysteresis_are_not_taken() -> None:
    wants = Wants({"o": 19})
    controller = Controller(Settings(scale=wants, limits=Limits(hysteresis=0.1, calm_batches=1)))
    table = RoutingTable.initial(SLOTS, 20)
    for number in range(5):
        cycle = controller.step(batch(number, operator(table)))
        assert all(t.channels == 20 for t in cycle.tables.values())
        table = cycle.tables.get("o", table)
    wants.channels["o"] = 18
    assert controller.step(batch(6, operator(table))).tables["o"].channels == 18


def test_all_operators_together_stay_within_their_bound() -> None:
    controller = Controller(
        Settings(scale=Wants({"a": 9, "b": 9}), limits=Limits(channels_max=16, total_max=11))
    )
    table = RoutingTable.initial(SLOTS, 4)
    samples = [operator(table, name=name) for name in "ab"]
    cycle = controller.step(batch(0, *samples))
    channels = {name: cycle.tables.get(name, table).channels for name in "ab"}
    assert sum(channels.values()) == 11
    assert max(channels.values()) <= 7


@pytest.mark.parametrize(("after", "word"), [(1000.0, "ineffective"), (1900.0, "effective")])
def test_a_step_up_is_effective_only_if_a_part_of_what_it_promised_came(
    after: float, word: str
) -> None:
    before = RoutingTable.initial(SLOTS, 2)
    seen = view(before, np.full(SLOTS, 0.1), throughput=1000.0, congestion=0.6, arrival_rate=3e3)
    expectation = expect(1, "scale-up", seen, RoutingTable.initial(SLOTS, 4), 1.0)
    assert expectation is not None and expectation.metric == "throughput"
    now = view(
        RoutingTable.initial(SLOTS, 4),
        np.full(SLOTS, 0.1),
        throughput=after,
        congestion=0.6,
        arrival_rate=3e3,
    )
    assert judge(expectation, now).word == word
    # That less comes in by now is no excuse while input waits.
    less = replace(now, arrival_rate=1e3, backlog_rows=9e3)
    assert judge(expectation, less).word == word


def test_a_step_up_in_vain_is_taken_back_at_once_and_said_to_be() -> None:
    wants = Wants({"o": 8})
    controller = Controller(Settings(scale=wants, limits=Limits(channels_max=8)))
    table, channels, said = RoutingTable.initial(SLOTS, 2), [], []
    for number in range(12):
        # Whatever the channels, a batch of 1,600 rows takes 2 s.
        sample = batch(number, operator(table, 50.0, backlog_rows=1e4), duration_s=2.0)
        cycle = controller.step(replace(sample, collected_s=2.0))
        table = cycle.tables.get("o", table)
        channels.append(table.channels)
        said += [e.held for e in cycle.events if isinstance(e, Decided)]
        if number > 2:
            assert "do not help" in controller.bound("o")
    assert channels == [3, 1, *[1] * 10] or channels == [3, 2, *[2] * 10]
    assert any("what holds them up comes after them" in each for each in said)
    words = [e.verdict for e in cycle.events if isinstance(e, Judged)]
    assert "effective" not in words


def test_where_a_batch_is_late_without_its_rows_few_more_channels_are_tried_first() -> None:
    settings = Settings(scale=Wants({"o": 12}), limits=Limits(channels_max=12))
    for took_s, granted in ((1.0, 12), (1.7, 3), (1.9, 3)):  # 0.8 s of it for rows
        controller = Controller(settings)
        sample = batch(0, operator(RoutingTable.initial(SLOTS, 2), 50.0), duration_s=took_s)
        assert controller.step(sample).tables["o"].channels == granted
        outlook = controller.outlook()
        assert outlook is not None
        assert outlook.useful == ({"o": 3} if granted == 3 else {})
        assert ("3 channels are tried first" in controller.bound("o")) == (granted == 3)


def _late(overhead_s: float, channels: int = 20, load: float = 30.0, **others: Any) -> FlowView:
    of_operator = {"arrival_rate": 1000 * load, "congestion": 0.6, **others.pop("operator", {})}
    seen = view(RoutingTable.initial(256, channels), np.full(256, load / 256), **of_operator)
    return flow(seen, interval_s=1.0, overhead_s=overhead_s, **others)


def test_an_overhead_that_nobody_explains_is_met_with_what_the_work_asks_for() -> None:
    # 30 channels' work, in 0.8 of 0.9 of the time.
    unknown = of_overhead(_late(0.52, overhead_known_s=0.0), "o")
    assert unknown is not None and unknown.channels == 42
    assert of_overhead(_late(0.52, overhead_known_s=0.3), "o") is None
    assert of_overhead(_late(0.52), "o") is None  # views that say nothing of it know it
    # What is known is made up for.
    more = of_overhead(_late(0.8, overhead_known_s=0.5), "o")
    assert more is not None and more.channels == 75
    # Who has channels for the work looks a little further, if more of them made it no worse.
    enough = _late(0.8, channels=60, overhead_known_s=0.0)
    look = of_overhead(enough, "o")
    assert look is not None and look.channels == 75
    worse = of_overhead(replace(enough, channel_s=0.01), "o")
    assert worse is not None and worse.channels == 60
    assert "more than 60 channels do not help" in worse.why
    # Where it fills the interval, twice as many at most.
    full = of_overhead(_late(1.5, channels=4, overhead_known_s=0.0), "o")
    known = of_overhead(_late(1.5, channels=4, overhead_known_s=1.5), "o")
    assert full is not None and known is not None
    assert full.channels == known.channels == 8


def test_what_a_late_batch_shows_of_a_sink_takes_no_step_in_vain() -> None:
    full = {"arrival_rate": 30e3, "throughput": 15e3}
    seen = _late(1.2, channels=42, overhead_known_s=0.1, channel_s=0.02, operator=full)
    assert held_up(seen, seen.operators["o"]) == Remote(21, 42, 15e3)

    def is_held_up(operator: dict[str, Any] | None = None, **others: Any) -> bool:
        of_flow = {"channels": 42, "overhead_known_s": 0.1, "channel_s": 0.02, **others}
        other = _late(1.2, **of_flow, operator={**full, **(operator or {})})
        return held_up(other, other.operators["o"]) is not None

    assert is_held_up({"backlog_rows": 1e4, "arrival_rate": 15e3}, load=15.0)  # held back
    assert not is_held_up({"arrival_rate": 15e3}, load=15.0)  # late, and falls no further behind
    assert not is_held_up({"congestion": 0.1})
    assert not is_held_up(overhead_known_s=1.0)
    assert not is_held_up(channel_s=0.0)
    assert not is_held_up(channel_s_known=False)
    assert not is_held_up(channels=21)


def test_in_a_surge_what_the_work_asks_for_grows_with_it() -> None:
    controller = Controller(Settings(scale=Ds2(), limits=Limits(channels_max=64)))
    controller.step(batch(0, operator(RoutingTable.initial(SLOTS, 2), 50.0), duration_s=1.7))
    outlook = controller.outlook()
    assert outlook is not None
    assert (outlook.useful, outlook.by_load) == ({"o": 3}, {"o"})
    later = replace(outlook, cooling=frozenset())
    assert later.wishes(9.0, 1.0)["o"].channels == 27
    assert replace(later, by_load=frozenset()).wishes(9.0, 1.0)["o"].channels == 3


def test_saso_does_not_climb_to_the_top_where_no_level_makes_a_batch_fit() -> None:
    table = RoutingTable.initial(SLOTS, 2)
    seen = view(table, np.full(SLOTS, 1.5 / SLOTS), throughput=1500.0, congestion=0.6)
    full = flow(seen, interval_s=1.0, overhead_s=2.0)
    wishes, _ = Saso().scale(full, Limits(channels_max=64), {})
    assert 2 <= wishes["o"].channels <= 8


def test_operators_may_have_bounds_of_their_own() -> None:
    limits = Limits(
        channels_min=2,
        channels_max=8,
        operators={"a": Bounds(channels_max=1), "b": Bounds(channels_min=12)},
        excluded=frozenset("c"),
    )
    assert (limits.of("a", 4).channels_min, limits.of("a", 4).channels_max) == (1, 1)
    assert (limits.of("b", 4).channels_min, limits.of("b", 4).channels_max) == (12, 12)
    assert (limits.of("c", 5).channels_min, limits.of("c", 5).channels_max) == (5, 5)
    assert limits.of("d", 4) is limits


def test_channels_are_settled_by_how_well_the_rate_is_known() -> None:
    assert settle(6, 7, 9, 11, 0.01) == 9
    assert settle(6, 5, 7, 9, 0.2) == 6
    assert settle(6, 3, 4, 5, 0.05) == 5
    assert settle(6, 3, 4, 5, 0.2) == 6  # not yet
    assert settle(6, 1, 2, 3, 0.2) == 3  # by so much that it does not matter


# -- what channels do not help with ----------------------------------------------------------


def test_a_key_bounds_the_channels_by_its_share_of_the_work() -> None:
    table = RoutingTable.initial(SLOTS, 4)
    seen = view(table, np.full(SLOTS, 4 / SLOTS), rows=100.0)
    heavy = replace(seen, heavy=(KeyLoad(b"k", 1, 1.6, 1.6, 1.6),))
    hottest = HottestKey.seen(None, heavy)
    assert hottest is not None and hottest.share == pytest.approx(0.4)
    rule = HotKeyRule(pins_max=2)
    bound = of_key(heavy, hottest, lambda name, key: f"({key.decode()!r},)", rule)
    assert bound is not None
    assert (bound.channels, bound.why) == (
        3,
        "key ('k',) alone takes 1.6 channels; more than 3 channels do not help",
    )
    # One that can be split is no bound: it need not stay on one channel.
    splits = replace(heavy, can_split=True)
    assert of_key(splits, hottest, lambda name, key: "", rule) is None
    # Unless as many keys as may be are pinned already, and it is none of them.
    for pinned, is_bound in (([b"a"], False), ([b"a", b"b"], True), ([b"a", b"k"], False)):
        crowded = replace(splits, pinned=frozenset(pinned))
        assert (of_key(crowded, hottest, lambda name, key: "", rule) is not None) == is_bound
    # A batch without rows says nothing, and one without heavy keys that there are none.
    assert HottestKey.seen(hottest, replace(seen, rows=0.0)) is hottest
    assert HottestKey.seen(hottest, seen) is None
    assert of_key(seen, None, lambda name, key: "", rule) is None
    # All of a trickle is no bound to the flood that may follow.
    trickle = replace(seen, load=np.full(SLOTS, 0.1 / SLOTS))
    assert of_key(trickle, HottestKey(b"k", 1.0), lambda name, key: "", rule) is None


def test_cores_bound_channels_that_compute_and_not_those_that_wait() -> None:
    seen = view(RoutingTable.initial(SLOTS, 4), np.full(SLOTS, 0.1))
    assert of_cores(seen, 2) is None
    computes, waits = replace(seen, cpu_share=1.0), replace(seen, cpu_share=0.1)
    assert of_cores(computes, None) is None
    for operator_view, channels in ((computes, 2), (waits, 20)):
        bound = of_cores(operator_view, 2)
        assert bound is not None and bound.channels == channels


def test_how_much_of_a_core_a_channel_needs_is_seen_where_cores_are_free() -> None:
    loads = SlotLoads(np.full(SLOTS, 1 / SLOTS), np.full(SLOTS, 0.001), np.zeros(SLOTS))
    measurer = Measurer(cpus=2)

    def seen(channels: int, cpu_s: float) -> float | None:
        sample = operator(RoutingTable.initial(SLOTS, channels), cpu_s=cpu_s)
        return measurer.view(batch(0, sample), {"o": loads}).operators["o"].cpu_share

    assert seen(6, 3.2 / 3) == 1.0  # 2 of 2 cores, and nobody knows how many it would use
    assert seen(1, 1.6) == pytest.approx(0.5)
    assert seen(6, 3.2 / 3) == pytest.approx(0.5)  # it waits for cores
    assert seen(6, 0.32) == pytest.approx(0.1)


def test_what_comes_after_bounds_channels_by_what_is_taken_in() -> None:
    table = RoutingTable.initial(SLOTS, 8)
    seen = view(table, np.full(SLOTS, 0.1), throughput=1500.0, true_rate=1000.0)
    assert remote_bound(seen, 1, 900.0) == Remote(2, 8, 1500.0)  # more than one could do
    assert remote_bound(seen, 4, 1500.0) == Remote(2, 8, 1500.0)
    assert remote_bound(replace(seen, true_rate=100.0), 4, 1500.0) == Remote(4, 8, 1500.0)
    bound = Remote(2, 8, 1500.0)
    assert not bound.is_over(seen)
    assert bound.is_over(replace(seen, throughput=3000.0))
    assert bound.useful(is_over=True).channels == 4
    assert bound.useful(is_over=True, asked=1).channels == 3
    assert bound.useful(is_over=True, asked=9).channels == 4


@pytest.mark.parametrize("pins", [(), (Pin(b"k", 1, 2, 3),)], ids=["counted", "pinned"])
def test_a_step_up_is_judged_where_the_batch_that_has_it_moved_slots_or_a_key_as_well(
    pins: tuple[Pin, ...],
) -> None:
    controller = Controller(Settings(scale=Wants({"o": 8}), limits=Limits(channels_max=8)))
    table = RoutingTable.initial(SLOTS, 2)

    def full(number: int, table: RoutingTable) -> Cycle:
        sample = batch(number, operator(table, 50.0, backlog_rows=1e4), duration_s=2.0)
        return controller.step(replace(sample, collected_s=2.0))

    asked = full(0, table).tables["o"]
    assert asked.channels == 3
    slots = asked.slots if pins else np.roll(asked.slots, 1)
    cycle = full(1, replace(asked, slots=slots, pins=pins))
    assert [e.verdict for e in cycle.events if isinstance(e, Judged)] == ["ineffective"]
    assert cycle.tables["o"].channels <= 2


@pytest.mark.parametrize("waited", [True, False])
def test_channels_given_ahead_of_a_batch_are_judged_where_input_waited_before(waited: bool) -> None:
    wants = Wants({"o": 2})
    controller = Controller(Settings(scale=wants, limits=Limits(channels_max=8)))
    table = RoutingTable.initial(SLOTS, 2)
    took_s = 2.0 if waited else 0.9
    controller.step(batch(0, operator(table, 50.0), duration_s=took_s, collected_s=took_s))
    outlook = controller.outlook()
    assert outlook is not None
    more = replace(rescale(table, 8, np.ones(SLOTS)), epoch=1)
    decided, lines = controller.foreseen(1, outlook.view, "o", Wish(8, "more comes"), more)
    if not waited:
        assert [line.verdict for line in lines if isinstance(line, Judged)] == ["unjudged"]
        return
    assert (decided.metric, decided.before, decided.expected) == ("throughput", 800, 1600)
    assert not lines
    # Twice the rows in the same time take twice as long, on four times the channels.
    wants.channels["o"] = 8
    cycle = controller.step(batch(1, operator(more), duration_s=4.0, collected_s=2.0))
    (judged,) = [e for e in cycle.events if isinstance(e, Judged)]
    assert (judged.decision, judged.verdict) == (decided.decision, "ineffective")
    assert cycle.tables["o"].channels <= 2


def test_channels_given_ahead_of_a_batch_without_rows_for_them_are_not_judged() -> None:
    controller = Controller(Settings(scale=Wants({"o": 2}), limits=Limits(channels_max=16)))
    table = RoutingTable.initial(SLOTS, 2)
    controller.step(batch(0, operator(table, 50.0), duration_s=2.0, collected_s=2.0))
    promises = []
    for number, channels in enumerate((8, 16), 1):
        outlook = controller.outlook()
        assert outlook is not None
        table = replace(rescale(table, channels, np.ones(SLOTS)), epoch=number)
        wish = Wish(channels, "more comes")
        promises.append(controller.foreseen(number, outlook.view, "o", wish, table))
        controller.step(batch(number, operator(table, 0.0), duration_s=0.1, collected_s=0.1))
    (first, _), (_, lines) = promises
    assert first.metric == "throughput"
    said = [(line.decision, line.verdict) for line in lines if isinstance(line, Judged)]
    assert said[0] == (first.decision, "unjudged")


def test_channels_given_ahead_that_were_asked_for_after_the_batch_before_are_judged_once() -> None:
    controller = Controller(Settings(scale=Wants({"o": 8}), limits=Limits(channels_max=8)))
    table = RoutingTable.initial(SLOTS, 2)
    first = batch(0, operator(table, 50.0), duration_s=2.0, collected_s=2.0)
    asked = controller.step(first).tables["o"]
    outlook = controller.outlook()
    assert outlook is not None
    wish = Wish(asked.channels, "more comes")
    _, lines = controller.foreseen(1, outlook.view, "o", wish, asked)
    assert [line.verdict for line in lines if isinstance(line, Judged)] == ["unjudged"]
    cycle = controller.step(batch(1, operator(asked, 50.0), duration_s=2.0, collected_s=2.0))
    assert len([e for e in cycle.events if isinstance(e, Judged)]) == 1


def test_another_balance_is_judged_only_if_slots_are_where_it_wanted_them() -> None:
    controller = Controller(Settings(scale=Off()))
    rows = np.where(np.arange(SLOTS) % 4 == 0, 400.0, 20.0)
    table = RoutingTable.initial(SLOTS, 4)
    asked = controller.step(batch(0, operator(table, rows))).tables["o"]
    moved = asked.slots.copy()
    moved[:2] = (moved[:2] + 1) % 4
    cycle = controller.step(batch(1, operator(replace(asked, slots=moved), rows)))
    assert [e.verdict for e in cycle.events if isinstance(e, Judged)] == ["superseded"]


@pytest.mark.parametrize(
    ("enough", "channels", "granted"), [(2, 2, 4), (2, 4, 12), (3, 3, 4), (3, 5, 12)]
)
def test_what_a_step_in_vain_has_taught_does_not_bound_channels_for_good(
    enough: int, channels: int, granted: int
) -> None:
    # A step to 8 was in vain, long ago: twice as many as are enough are tried first, or as many
    # as the work of rows asks for, and all after that.
    hold = {"until": 3, "times": 1, "arrival_rate": 3200.0}
    remote = {"channels": enough, "tried": 8, "rows_per_s": 1500.0}
    memory = {"operators": {"o": {"remote": remote, "held": {"scale-up": hold}}}}
    settings = Settings(scale=Wants({"o": 12}), limits=Limits(channels_max=12))
    controller = Controller(settings, memory)
    cycle = controller.step(batch(100, operator(RoutingTable.initial(SLOTS, channels))))
    assert cycle.tables["o"].channels == granted
    kept = controller.memory()["operators"]["o"]["remote"]
    assert kept == (remote if granted < 12 else None)


def test_pins_are_not_let_go_by_batches_without_rows() -> None:
    table = RoutingTable.initial(SLOTS, 4)
    seen = view(table, np.full(SLOTS, 0.1), pinned=frozenset([b"k"]), rows=0.0)
    rule, cold = HotKeyRule(cool_batches=3), dict[bytes, int]()
    for _ in range(10):
        change = pin_change(seen, 4, cold, rule)
        assert not change.unpin
        cold = dict(change.cold)
    for _ in range(3):
        change = pin_change(replace(seen, rows=10.0), 4, cold, rule)
        cold = dict(change.cold)
    assert change.unpin == (b"k",)


def test_another_number_of_channels_pays_when_it_has_been_wanted_for_long() -> None:
    table, after = RoutingTable.initial(SLOTS, 4), RoutingTable.initial(SLOTS, 6)
    seen = view(table, np.full(SLOTS, 0.1))
    dear = Prices(slot_s=1.0)
    assert not weigh(seen, after, dear).pays
    assert weigh(seen, after, dear, wanted_s=200.0).pays
    assert not weigh(seen, table.next(np.roll(table.slots, 1)), dear, wanted_s=1e6).pays
    assert flow(seen).operators["o"] is seen


def test_a_step_up_that_saso_takes_back_is_taken_back_at_once() -> None:
    memory: Memory = {}
    for channels in (2, 2, 2, 2, 3):
        table = RoutingTable.initial(SLOTS, channels)
        seen = view(table, np.full(SLOTS, 0.01), throughput=1500.0, congestion=0.6)
        wishes, memory = Saso().scale(flow(seen, interval_s=1.0), Limits(channels_max=16), memory)
    wish = wishes["o"]
    assert (wish.channels, wish.at_once) == (2, True)
    assert "remote (P5)" in wish.reason

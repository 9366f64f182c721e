"""The loop: decisions with reasons, held back, dropped, superseded, judged; and the log of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.events import (
    Decided,
    Event,
    EventLogError,
    Judged,
    Limited,
    Measured,
    Planned,
    encode,
    pack_loads,
    read,
    unpack_loads,
)
from braided.control.judging import extend_hold
from braided.control.loop import Controller, Cycle
from braided.control.measure.moving_cost import MovingRates
from braided.control.measure.view import (
    FlowSample,
    FlowView,
    HeavyKey,
    OperatorSample,
    OperatorView,
)
from braided.control.policies.balancers import Elasticutor, Static
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policies.model import Model
from braided.control.policies.saso import Saso
from braided.control.policy import Limits, Memory, Wish
from braided.control.routing.executors import Layout
from braided.control.routing.rescale import rescale
from braided.control.routing.residence import Residence
from braided.control.routing.table import RoutingTable
from braided.control.settings import Settings
from braided.control.worth import Prices, Worth, weigh
from support.operator_views import view

SLOTS = 32


def sample(
    batch: int,
    table: RoutingTable,
    rows: np.ndarray | None = None,
    speed: np.ndarray | None = None,
    heavy: tuple[HeavyKey, ...] = (),
    pinned: frozenset[bytes] = frozenset(),
) -> FlowSample:
    """A batch of one second; `speed` is by how much each channel is slower than it should be."""
    counted = np.full(SLOTS, 100.0) if rows is None else rows
    busy = counted * 0.001
    if speed is not None:
        busy = busy * speed[table.slots]
    of_channels = np.bincount(table.slots, weights=busy, minlength=table.channels)
    operator = OperatorSample(
        name="o",
        table=table,
        rows=counted,
        busy_s=busy,
        keys=counted,
        state_bytes=np.full(SLOTS, 1000.0),
        channel_busy_s=of_channels.astype(float),
        rows_out=float(counted.sum()),
        heavy=heavy,
        pinned=pinned,
    )
    return FlowSample(batch, 1.0, 1.0, 0.1 + float(of_channels.max()), (operator,))


def of(cycle: Cycle, kind: type[Event]) -> list[Event]:
    return [event for event in cycle.events if isinstance(event, kind)]


@dataclass
class Wants:
    """A scale policy that wants what it is told to want."""

    channels: int

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        return {"o": Wish(self.channels, "because")}, {"asked": memory.get("asked", 0) + 1}


def hot(slot: int = 0, rows: float = 2000.0) -> np.ndarray:
    counted = np.full(SLOTS, 100.0)
    counted[slot : slot + 4] = rows
    return counted


def test_what_a_plan_saves_is_counted_by_the_batch_however_long_that_is() -> None:
    prices = Prices(least_batch_s=0.05)
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    rows = np.full(SLOTS, 100.0)
    rows[:8] = [20, *[117] * 7]  # 39 ms more than the others; half of it can go
    short = Controller(Settings(scale=Off(), balance=Elasticutor(1.01), prices=prices))
    assert not short.step(sample(0, table, rows)).tables
    # The same rates in batches of four seconds, eager ones, whose interval is still one.
    whole = sample(0, table, 4 * rows)
    longer = replace(whole, collected_s=4.0)
    eager = Controller(Settings(scale=Off(), balance=Elasticutor(1.01), prices=prices))
    assert eager.step(longer).tables


def test_a_cycle_measures_decides_plans_and_later_judges() -> None:
    controller = Controller(Settings(scale=Off()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    cycle = controller.step(sample(0, table, hot()))
    after = cycle.tables["o"]
    assert after.epoch == 1
    measured, decided, planned = cycle.events
    assert isinstance(measured, Measured)
    assert measured.imbalance > 3
    assert isinstance(decided, Decided)
    assert (decided.kind, decided.metric) == ("balance", "busiest_share")
    assert decided.expected is not None
    assert decided.before is not None
    assert decided.expected < decided.before
    assert isinstance(planned, Planned)
    assert planned.decisions == (decided.decision,)
    assert planned.moved_slots >= 3
    assert planned.gain_s > planned.cost_s
    # In effect, and it came as expected.
    cycle = controller.step(sample(1, after, hot()))
    (judged,) = of(cycle, Judged)
    assert isinstance(judged, Judged)
    assert (judged.decision, judged.verdict) == (decided.decision, "effective")
    assert judged.observed == pytest.approx(judged.expected, rel=0.01)


def test_nothing_new_is_decided_while_a_request_is_on_its_way() -> None:
    controller = Controller(Settings(scale=Off()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    assert controller.step(sample(0, table, hot())).tables
    assert not controller.step(sample(1, table, hot(8))).tables


def test_somebody_elses_table_supersedes_ours() -> None:
    controller = Controller(Settings(scale=Off()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    controller.step(sample(0, table, hot()))
    theirs = RoutingTable(3, 2, np.arange(SLOTS) % 2)
    (judged,) = of(controller.step(sample(1, theirs)), Judged)
    assert isinstance(judged, Judged)
    assert (judged.verdict, judged.why != "") == ("superseded", True)


def test_a_decision_that_does_not_help_is_marked_and_held_back() -> None:
    controller = Controller(Settings(scale=Off()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    speed = np.array([1.0, 1.0, 1.0, 1.0])
    after = controller.step(sample(0, table, hot(), speed)).tables["o"]
    # Whatever is moved, another channel is slow: a host that is ill, say.
    ill = np.ones(4)
    ill[int(after.slots[0])] = 30.0
    cycle = controller.step(sample(1, after, hot(), ill))
    (judged,) = of(cycle, Judged)
    assert isinstance(judged, Judged)
    assert judged.verdict == "ineffective"
    assert judged.held_until is not None
    # What came once may be an accident; the second time there would be something to move.
    cycle = controller.step(sample(2, after, hot(), ill))
    held = [e for e in of(cycle, Decided) if isinstance(e, Decided) and e.held]
    assert [e.kind for e in held] == ["balance"]
    assert "did not help before" in held[0].held
    assert not cycle.tables
    # Said once; and forgotten when the time is over.
    again = controller.step(sample(3, after, hot(), ill))
    assert not of(again, Decided)
    later = controller.step(sample(judged.held_until + 1, after, hot(), ill))
    assert later.tables


@pytest.mark.parametrize(
    ("kind", "interval_s", "batches"),
    [
        ("scale-up", 1.0, 60),
        ("scale-up", 0.5, 120),
        ("scale-up", 10.0, 6),
        ("balance", 1.0, 10),
        ("balance", 0.1, 100),
        ("balance", 60.0, 4),  # of batches that long, some at least
    ],
)
def test_what_did_not_help_is_held_back_for_a_time_whatever_the_trigger(
    kind: str, interval_s: float, batches: int
) -> None:
    seen = view(RoutingTable.initial(SLOTS, 4), hot())
    once = extend_hold(None, seen, 100, kind, interval_s)
    again = extend_hold(once, seen, 100, kind, interval_s)
    assert (once.until, again.until) == (100 + batches, 100 + 2 * batches)


def test_what_does_not_pay_is_dropped_and_not_repeated_in_every_batch() -> None:
    prices = Prices(slot_s=100.0)
    controller = Controller(Settings(scale=Off(), prices=prices))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    cycle = controller.step(sample(0, table, hot()))
    (planned,) = of(cycle, Planned)
    assert isinstance(planned, Planned)
    assert planned.dropped
    assert not cycle.tables
    assert not of(controller.step(sample(1, table, hot())), Planned)
    assert of(controller.step(sample(25, table, hot())), Planned)


def test_what_saves_less_of_a_batch_than_clocks_can_tell_does_not_pay() -> None:
    table = RoutingTable(0, 2, np.zeros(4, dtype=np.int32))
    after = RoutingTable(1, 2, np.array([0, 0, 1, 1]))
    seen = view(table, np.full(4, 0.02))  # 40 ms of each second
    assert weigh(seen, after, Prices()).pays
    assert not weigh(seen, after, Prices(least_batch_s=0.05)).pays
    assert weigh(seen, after, Prices(least_batch_s=0.05), period_s=2.0).pays


def test_nothing_is_decided_on_the_first_batches_with_rows() -> None:
    controller = Controller(Settings(scale=Off(), settle_batches=2))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    for batch, rows in enumerate((np.zeros(SLOTS), hot(), hot())):
        cycle = controller.step(sample(batch, table, rows))
        assert of(cycle, Measured) and not of(cycle, Decided) and not cycle.tables
    assert controller.step(sample(3, table, hot())).tables


class Turns:
    """A balance policy that has its own reasons: every slot one channel on."""

    weighed = False

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        return operator.table.next((operator.table.slots + 1) % channels, channels)


def test_a_policy_that_is_not_weighed_is_followed_in_every_batch() -> None:
    controller = Controller(Settings(scale=Off(), balance=Turns()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    for batch in range(30):
        table = controller.step(sample(batch, table, hot())).tables["o"]
    assert table.epoch == 30


@dataclass
class Hurries:
    """A scale policy that goes up and down at once."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        wanted = 2 if flow.operators["o"].channels > 4 else 99
        return {"o": Wish(wanted, "in a hurry", at_once=True)}, memory


def test_a_wish_at_once_is_held_to_the_bounds_only() -> None:
    limits = Limits(channels_max=8, cooldown_batches=5)
    controller = Controller(Settings(scale=Hurries(), limits=limits))
    table, seen = RoutingTable.initial(SLOTS, 4), []
    for batch in range(6):
        table = controller.step(sample(batch, table)).tables["o"]
        seen.append(table.channels)
    assert seen == [8, 2, 8, 2, 8, 2]


def test_state_that_has_to_travel_is_part_of_the_price() -> None:
    def priced(*hosts: str, residence: Residence | None = None) -> Worth:
        table = RoutingTable(0, 2, np.zeros(4, dtype=np.int32), hosts=hosts)
        seen = view(table, np.ones(4), state_bytes=np.full(4, 5e9))
        seen = replace(seen, residence=residence)
        return weigh(seen, table.next([0, 0, 1, 1]), Prices())

    assert priced().pays
    assert priced("a", "a").pays
    assert priced("a", "b").moved_bytes == 1e10
    assert not priced("a", "b").pays
    # A channel that has no host yet has another one.
    assert priced("a", "").moved_bytes == 1e10
    # The tables say where channels should run; where state really is may be known better.
    there = Residence(("a", "b"), np.array([0, 0, 1, 0]))
    assert priced("a", "b", residence=there).moved_bytes == 5e9


def test_what_moving_costs_is_what_it_was_seen_to_cost() -> None:
    table = RoutingTable(0, 2, np.zeros(4, dtype=np.int32), hosts=("a", "b"))
    seen = view(table, np.ones(4), state_bytes=np.full(4, 5e9))
    after = table.next([0, 0, 1, 1])
    assert not weigh(seen, after, Prices()).pays
    fast = Prices().measured(MovingRates(bytes_per_s=1e9, slot_s=0.0))
    assert weigh(seen, after, fast).cost_s == pytest.approx(10)
    assert weigh(seen, after, fast).pays


def test_channels_are_bounded_and_fewer_come_only_when_it_is_calm() -> None:
    limits = Limits(channels_min=2, channels_max=6, calm_batches=3)
    wants = Wants(9)
    controller = Controller(Settings(scale=wants, limits=limits))
    table = RoutingTable.initial(SLOTS, 4)
    table = controller.step(sample(0, table)).tables["o"]
    assert table.channels == 6
    wants.channels = 1
    counts = []
    for batch in range(1, 5):
        table = controller.step(sample(batch, table)).tables.get("o", table)
        counts.append(table.channels)
    assert counts == [6, 6, 2, 2]


def test_after_a_change_the_next_one_waits_for_the_cool_down() -> None:
    limits = Limits(cooldown_batches=5, channels_max=30)
    wants = Wants(6)
    controller = Controller(Settings(scale=wants, limits=limits))
    table = controller.step(sample(0, RoutingTable.initial(SLOTS, 4))).tables["o"]
    wants.channels = 9
    cycle = controller.step(sample(1, table))
    (held,) = [e for e in of(cycle, Decided) if isinstance(e, Decided) and e.kind == "scale-up"]
    assert held.held == "cooling down since batch 0"
    # Also where slots move meanwhile, a wish that waits has its line, in every batch.
    cycle = controller.step(sample(2, table, hot()))
    assert cycle.tables["o"].channels == 6
    (limited,) = of(cycle, Limited)
    assert isinstance(limited, Limited)
    assert (limited.factor, limited.wished) == ("cool-down", 9)
    table = cycle.tables["o"]
    assert controller.step(sample(6, table)).tables["o"].channels == 9


def test_a_restart_goes_on_with_what_was_known() -> None:
    settings = Settings(scale=Wants(6), limits=Limits(cooldown_batches=5))
    controller = Controller(settings)
    table = controller.step(sample(0, RoutingTable.initial(SLOTS, 4))).tables["o"]
    memory = json.loads(json.dumps(controller.memory()))
    restarted = Controller(Settings(scale=Wants(9), limits=settings.limits), memory)
    cycle = restarted.step(sample(1, table))
    assert "o" not in cycle.tables or cycle.tables["o"].channels == 6
    assert restarted.memory()["policy"] == {"asked": 2}
    later = [e.decision for e in cycle.events if isinstance(e, Decided)]
    assert min(later, default=99) > 1  # numbers go on as well


def test_hot_keys_are_pinned_and_cooled_keys_let_go() -> None:
    controller = Controller(Settings(scale=Off(), balance=Static()))
    table = RoutingTable.initial(SLOTS, 4)
    heavy = HeavyKey(b"k", 0, 1500.0, 1400.0, 1600.0)
    cycle = controller.step(sample(0, table, hot(), heavy=(heavy,)))
    assert cycle.pin == {"o": (b"k",)}
    (decided,) = of(cycle, Decided)
    assert isinstance(decided, Decided)
    assert (decided.kind, decided.key) == ("pin", b"k".hex())
    pinned = frozenset([b"k"])
    unpinned = [controller.step(sample(batch, table, pinned=pinned)).unpin for batch in range(1, 6)]
    assert unpinned == [{}, {}, {}, {}, {"o": (b"k",)}]


def test_the_same_samples_lead_to_the_same_events() -> None:
    def run() -> list[bytes]:
        controller, table, lines = Controller(), RoutingTable.initial(SLOTS, 4), []
        for batch in range(12):
            cycle = controller.step(sample(batch, table, hot(batch % 3 * 8)))
            table = cycle.tables.get("o", table)
            lines += [encode(event) for event in cycle.events]
        return lines

    assert run() == run()


def test_the_log_can_be_read_back_and_a_torn_last_line_is_passed_over() -> None:
    controller, table = Controller(), RoutingTable.initial(SLOTS, 4)
    events: list[Event] = []
    for batch in range(8):
        cycle = controller.step(sample(batch, table, hot(batch % 2 * 8)))
        table = cycle.tables.get("o", table)
        events += cycle.events
    lines = [encode(event) for event in events]
    assert all(json.loads(line)["type"] for line in lines)
    assert list(read(lines)) == events
    assert list(read([*lines, lines[0][:40]])) == events
    with pytest.raises(EventLogError, match="line 2 is no event"):
        list(read([lines[0], b"{}\n", lines[1]]))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_loads_are_packed_to_within_a_part_of_the_highest(values: list[float]) -> None:
    load = np.array(values)
    error = np.abs(unpack_loads(pack_loads(load)) - load)
    assert error.max() <= load.max() / 65535 * 0.51
    with pytest.raises(EventLogError):
        unpack_loads("nothing")


def test_numbers_that_json_does_not_have_are_not_in_the_log() -> None:
    controller = Controller()
    nothing = sample(0, RoutingTable.initial(SLOTS, 4), np.zeros(SLOTS))
    for event in controller.step(nothing).events:
        for value in json.loads(encode(event)).values():
            assert not isinstance(value, float) or math.isfinite(value)


def test_an_operator_without_rows_gives_its_channels_back() -> None:
    controller = Controller(Settings(limits=Limits(calm_batches=2)))
    table = RoutingTable.initial(SLOTS, 8)
    for batch in range(5):
        rows = None if batch == 0 else np.zeros(SLOTS)
        table = controller.step(sample(batch, table, rows)).tables.get("o", table)
    assert table.channels == 1


def test_executors_stay_as_they_were_asked_for_while_their_table_is_on_its_way() -> None:
    wants = Wants(8)
    controller = Controller(Settings(scale=wants, executors=2))
    old = Layout.even(SLOTS, 2, 4).table()
    first = hot(0, 1000.0)  # the first executor has most of the load
    new = controller.step(sample(0, old, first)).tables["o"]
    asked = controller.layout("o")
    assert asked is not None
    assert len(asked.channels[0]) > len(asked.channels[1])
    controller.step(sample(1, old, first))  # one more batch with the old table
    cycle = controller.step(sample(2, new, first))
    assert controller.layout("o") == asked
    assert "o" not in cycle.tables


def test_there_are_as_many_executors_as_channels_allow_whatever_was_before() -> None:
    for path in ([8], [8, 2, 8], [8, 1, 8], [1, 2, 8], [2, 4, 16]):
        controller = Controller(Settings(scale=Off(), executors=4))
        table = RoutingTable.initial(SLOTS, path[0])
        for batch, channels in enumerate(path):
            table = rescale(table, channels, np.ones(SLOTS))
            table = controller.step(sample(batch, table)).tables.get("o", table)
        layout = controller.layout("o")
        assert layout is not None and len(layout.channels) == 4, path


def test_a_review_waits_while_channels_are_given_up() -> None:
    limits = Limits(channels_max=32, calm_batches=1, cooldown_batches=0)
    wants = Wants(16)
    settings = Settings(
        scale=wants, limits=limits, executors=4, host_channels=1, reshape_every_batches=4
    )
    controller = Controller(settings)
    table = RoutingTable.initial(SLOTS, 16)
    for batch in range(1, 8):
        wants.channels = 16 if batch < 4 else 4  # far fewer than a split would leave ranges
        table = controller.step(sample(batch, table, hot(0, 4000.0))).tables.get("o", table)
    assert table.channels == 4


def test_a_review_is_not_due_because_of_a_restart() -> None:
    settings = Settings(scale=Off(), executors=4, host_channels=8, reshape_every_batches=600)
    table = Layout.even(SLOTS, 4, 8).table()
    controller = Controller(settings)
    controller.step(sample(1233, table, hot(0, 1000.0)))
    restarted = Controller(settings, json.loads(json.dumps(controller.memory())))
    for batch in range(1234, 1240):  # ranges with next to nothing to do, which a review merges
        table = restarted.step(sample(batch, table, hot(0, 1000.0))).tables.get("o", table)
    layout = restarted.layout("o")
    assert layout is not None and len(layout.channels) == 4


def test_executors_at_rest_do_not_trade_channels_for_chance() -> None:
    chance = np.random.default_rng(5)
    prices = Prices(least_batch_s=0.05)
    controller = Controller(Settings(scale=Off(), executors=3, prices=prices))
    table = RoutingTable.initial(SLOTS, 8)
    moved = []
    for batch in range(100):
        cycle = controller.step(sample(batch, table, chance.poisson(0.6, SLOTS).astype(float)))
        if "o" in cycle.tables:
            table = cycle.tables["o"]
            moved.append(batch)
    assert moved == [0]  # when its slots came home


def test_executors_outlive_what_others_do_to_the_channels_and_a_restart() -> None:
    settings = Settings(scale=Off(), executors=4, host_channels=8, reshape_every_batches=2)
    controller = Controller(settings)
    table = Layout.even(SLOTS, 4, 8).table()
    for batch in range(4):  # the three ranges with next to nothing to do are merged
        table = controller.step(sample(batch, table, hot(0, 1000.0))).tables.get("o", table)
    merged = controller.layout("o")
    assert merged is not None and merged.total == 8
    assert len(merged.channels) < 4
    # A user's rescale: the ranges stay, with other channels.
    table = rescale(table, 5, np.ones(SLOTS))
    controller.step(sample(5, table, hot(0, 1000.0)))
    layout = controller.layout("o")
    assert layout is not None
    assert (layout.bounds, layout.total) == (merged.bounds, 5)
    memory = json.loads(json.dumps(controller.memory()))
    assert Controller(settings, memory).layout("o") == layout
    # Who asks for another number of executors gets it.
    other = Controller(replace(settings, executors=2), memory)
    assert other.layout("o") is None
    other.step(sample(6, table, hot(0, 1000.0)))
    fresh = other.layout("o")
    assert fresh is not None and fresh.bounds == (0, SLOTS // 2, SLOTS)


@pytest.mark.parametrize("policy", [Ds2(), Saso(), Model(target_s=0.2)])
def test_nobody_takes_more_channels_than_can_run_at_once(policy: Ds2 | Saso | Model) -> None:
    limits = Limits(channels_max=16, cores=5)
    controller = Controller(Settings(scale=policy, limits=limits))
    table = RoutingTable.initial(SLOTS, 2)
    ups: list[Decided] = []
    for batch in range(12):
        cycle = controller.step(sample(batch, table, np.full(SLOTS, 400.0)))
        ups += [e for e in of(cycle, Decided) if isinstance(e, Decided) and e.kind == "scale-up"]
        table = cycle.tables.get("o", table)
    assert table.channels == 5
    assert ups[-1].channels_after == 5
    assert ups[-1].reason.endswith("; no more than 5 can run at once")
    # Hosts that come make room for more, and those that go take it away.
    for batch in range(12, 30):
        table = controller.step(sample(batch, table, np.full(SLOTS, 400.0)), cores=8).tables.get(
            "o", table
        )
    assert table.channels == 8
    for batch in range(30, 40):
        cycle = controller.step(sample(batch, table, np.full(SLOTS, 400.0)), cores=3)
        table = cycle.tables.get("o", table)
    assert table.channels == 3


def test_cores_bound_what_is_asked_for_and_not_what_has_to_be() -> None:
    limits = Limits(channels_max=16, cores=4)
    assert limits.clamp(9, 256) == 4
    assert limits.levels(256) == (1, 2, 3, 4)
    assert limits.bound(4, 256) == "; no more than 4 can run at once"
    assert limits.bound(3, 256) == limits.bound(3, 3) == ""
    assert Limits(channels_max=4, cores=4).bound(4, 256) == ""
    assert Limits(channels_min=8, channels_max=16, cores=4).clamp(9, 256) == 8
    assert Limits(channels_max=3, cores=4).clamp(9, 256) == 3
    with pytest.raises(ValueError, match="at least one core"):
        Limits(cores=0)


def test_a_table_that_got_hosts_on_its_way_is_still_the_one_that_was_asked_for() -> None:
    controller = Controller(Settings(scale=Off()))
    table = RoutingTable(0, 4, np.arange(SLOTS) // 8)
    asked = controller.step(sample(0, table, hot())).tables["o"]
    placed = replace(asked, hosts=("a", "b", "a", "b"))
    (judged,) = of(controller.step(sample(1, placed, hot())), Judged)
    assert isinstance(judged, Judged)
    assert judged.verdict == "effective"


def test_the_time_of_a_slow_host_is_not_the_weight_of_its_slots() -> None:
    speeds = np.array([1.0, 1.0, 1.0, 0.25])
    slow = sample(0, RoutingTable.initial(SLOTS, 4), speed=1 / speeds)
    told = replace(slow, operators=(replace(slow.operators[0], speeds=speeds),))
    controller = Controller(Settings(scale=Off()))
    cycle = controller.step(told)
    load = cycle.view.operators["o"].load
    assert load == pytest.approx(np.full(SLOTS, 0.1))
    # As many as it can do in the time of the others, and the rate is that of a channel on average.
    assert cycle.tables["o"].counts().tolist() == [10, 10, 10, 2]
    assert cycle.view.operators["o"].true_rate == pytest.approx(1000 * speeds.mean())
    (decided,) = of(cycle, Decided)
    assert isinstance(decided, Decided)
    assert "the busiest channel has 3.25 times the average" in decided.reason

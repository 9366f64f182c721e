"""What the live controller is made of, each part on plain values."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.events import Failed, read
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policy import Bounds
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import OptionError
from braided.options import Options
from braided.spark.offset_log import SparkLog
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.event_log import LocalEventLog, ObjectEventLog, open_event_log
from braided.steering.input_size import known_bytes
from braided.steering.policy_settings import Policies, policies_of
from braided.steering.sampling import waiting_rows
from braided.steering.task_waves import TaskWaves
from braided.store.durable.lease import acquire_lease
from braided.store.durable.local_store import LocalStore
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store
from braided.tasks import slot_meter
from braided.tasks.heavy_keys import HeavyKeys
from braided.tasks.slot_meter import SlotMeter

TABLE = RoutingTable.initial(8, 2)


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "scale", "bounds"),
    [
        ({}, "off", (1, 4)),
        ({"channels": 9}, "off", (1, 9)),
        ({"channels.max": 8}, "ds2", (1, 8)),
        ({"channels.min": 2}, "off", (2, 4)),
        ({"channels.max": 8, "scale": "off"}, "off", (1, 8)),
        ({"scale": "saso"}, "saso", (1, 4)),
        ({"latencyTarget": "500ms", "channels.max": 8}, "model", (1, 8)),
        ({"scale": Ds2()}, "Ds2", (1, 4)),
    ],
)
def test_channels_change_by_themselves_only_if_an_option_asks_for_it(
    options: dict[str, Any], scale: str, bounds: tuple[int, int]
) -> None:
    given = {f"braided.{name}": value for name, value in options.items()}
    policies = policies_of(Options.parse(given, channels=4), 4, 4)
    limits = policies.settings.limits
    assert (policies.scale, policies.balance) == (scale, "elasticutor")
    assert (limits.channels_min, limits.channels_max) == bounds
    if scale == "off":
        assert isinstance(policies.settings.scale.policy, Off)  # type: ignore[attr-defined]
    if scale == "model":
        assert policies.settings.scale.policy.target_s == 0.5  # type: ignore[attr-defined]


def test_settings_of_the_controller_come_from_options() -> None:
    options = {"windowBatches": 3, "executors": 4, "executors.reviewBatches": 50}
    given = {f"braided.{name}": value for name, value in options.items()}
    settings = policies_of(Options.parse(given), 8, 6).settings
    assert (settings.window_batches, settings.executors) == (3, 4)
    assert (settings.reshape_every_batches, settings.host_channels) == (50, 6)


@pytest.mark.parametrize(
    ("options", "pins", "splits"),
    [
        ({}, True, True),
        ({"hotKeys": "split"}, True, True),
        ({"hotKeys": "PIN"}, True, False),
        ({"hotKeys": "off"}, False, False),
        ({"balance": "static"}, False, False),
        ({"balance": "static", "hotKeys": "split"}, True, True),
        ({"balance": "autoflow", "hotKeys": "pin"}, True, False),
    ],
)
def test_hot_keys_are_switched_off_apart_from_balancing(
    options: dict[str, Any], pins: bool, splits: bool
) -> None:
    given = {f"braided.{name}": value for name, value in options.items()}
    policies = policies_of(Options.parse(given), 4, 4)
    rule = policies.settings.hot_keys
    assert (rule.pins_max > 0, rule.may_split) == (pins, splits)
    assert policies.balance == options.get("balance", "elasticutor")


# -- the heaviest keys -----------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=40), st.integers(1, 50))
def test_the_heaviest_keys_are_counted_exactly_however_rows_are_cut_into_chunks(
    runs: list[tuple[int, int]], chunk: int
) -> None:
    rows = sorted(key for key, count in runs for _ in range(count))
    heavy = HeavyKeys()
    for begin in range(0, len(rows), chunk):
        part = np.array(rows[begin : begin + chunk])
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        keys = [b"%d" % key for key in part[starts]]
        heavy.add(keys, part[starts] * 3, starts, len(part))
    counts = sorted(Counter(rows).values(), reverse=True)
    expected = [n for n in counts if n >= max(2, 0.05 * len(rows))][:4]
    found = heavy.heaviest(len(rows))
    assert [each.rows for each in found] == expected
    assert all(each.place == int(each.key) * 3 for each in found)
    assert all(rows.count(int(each.key)) == each.rows for each in found)


# -- proposals and commands ------------------------------------------------------------------


def moved(table: RoutingTable) -> RoutingTable:
    return table.next(np.roll(table.slots, 1))


def taken(commands: Commands) -> RoutingTable:
    return commands.take(lambda name: np.ones(8))["o"]


def test_a_proposal_is_taken_by_the_next_batch_once() -> None:
    commands = Commands({"o": TABLE}, Bell())
    commands.propose({"o": moved(TABLE)})
    assert taken(commands) == moved(TABLE)
    assert taken(commands) == TABLE


def test_a_command_comes_before_a_proposal_and_a_late_one_is_dropped() -> None:
    commands = Commands({"o": TABLE}, Bell())
    commands.propose({"o": moved(TABLE)})
    commands.rescale(4, None)
    now = taken(commands)
    assert (now.channels, now.epoch) == (4, 1)
    commands.done({"o": now})
    commands.propose({"o": moved(TABLE)})  # of the table before
    assert taken(commands) == now


def test_a_command_that_changes_nothing_leaves_the_proposal() -> None:
    commands = Commands({"o": TABLE}, Bell())
    commands.propose({"o": moved(TABLE)})
    commands.rescale(2, None)
    assert taken(commands) == moved(TABLE)


def test_a_batch_gets_the_channels_it_needs_at_least_unless_a_user_asks_for_others() -> None:
    commands = Commands({"o": TABLE}, Bell())
    commands.propose({"o": moved(TABLE)})
    more = commands.take(lambda name: np.ones(8), {"o": 4})["o"]
    assert (more.channels, more.epoch) == (4, TABLE.epoch + 1)
    assert commands.take(lambda name: np.ones(8), {"o": 1})["o"] is TABLE
    commands.rescale(3, None)
    assert commands.take(lambda name: np.ones(8), {"o": 4})["o"].channels == 3


def test_a_pin_joins_whatever_table_the_batch_gets() -> None:
    commands = Commands({"o": TABLE}, Bell())
    pin = Pin(b"hot", hash=11, check=5, slot=6)  # its hash is slot 3's
    commands.propose({"o": moved(TABLE)})
    commands.propose_pin("o", pin)
    now = taken(commands)
    assert (now.epoch, now.pins, now.slots[3]) == (1, (pin,), now.slots[6])
    commands.done({"o": now})
    commands.propose_pin("o", pin)  # once more changes nothing
    assert taken(commands) is now
    commands.rescale(4, None)
    commands.rescale(3, None)
    commands.propose_pin("o", b"hot")
    after = taken(commands)
    assert (after.channels, after.epoch, after.pins) == (3, 3, ())
    assert after.slots[3] == after.slots[6]
    commands.done({"o": after})
    commands.propose({"o": RoutingTable(4, 3, after.slots, (pin,))})  # nobody pins by a table
    assert taken(commands) is after


# -- the event log ---------------------------------------------------------------------------


def event(batch: int) -> Failed:
    return Failed(batch, "policy", "x" * 100, batch)


def events(path: Path) -> list[int]:
    with open(path, "rb") as lines:
        return [found.batch for found in read(lines)]


@pytest.mark.parametrize("left", [b'{"type":"fai', b"x" * 200_000])
def test_half_a_line_that_a_crash_left_is_taken_away(tmp_path: Path, left: bytes) -> None:
    LocalEventLog(tmp_path).add([event(1)])
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(left)
    log = LocalEventLog(tmp_path)
    log.add([event(2)])
    log.add([event(3)])
    assert events(log.path) == [1, 2, 3]


def test_a_log_that_has_only_half_a_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"type":"fai')
    log = LocalEventLog(tmp_path)
    log.add([event(2)])
    assert events(log.path) == [2]


def test_a_large_log_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    log = LocalEventLog(tmp_path, large_bytes=1)
    for batch in range(7):
        log.add([event(batch)])
    kept = {path.name: events(path) for path in tmp_path.iterdir()}
    assert kept == {f"events-{n}.jsonl": [7 - n] for n in range(1, 5)}
    LocalEventLog(tmp_path).add([event(7)])
    assert events(log.path) == [7]


def test_a_log_that_can_not_be_written_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    log = LocalEventLog(tmp_path / "file")
    with caplog.at_level(logging.WARNING, "braided"):
        log.add([event(1)])
        log.add([event(2)])
    assert len(caplog.records) == 1
    assert "events are lost" in caplog.text


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Store:
    return open_store(f"memory://{request.node.name}/braided")


def in_object(store: Store, name: str = "events.jsonl") -> list[int]:
    return [found.batch for found in read(bytes(store.get(name)).splitlines(keepends=True))]


def test_a_driver_that_was_taken_over_from_leaves_the_log_of_its_heir_alone(
    objects: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It stood still, and has in memory what the log was before."""
    first = acquire_lease(objects, "first")
    old = open_event_log(objects, first.held)
    old.add([event(1)])
    old.add([event(2)])  # not written yet: it stops here
    heir = acquire_lease(objects, "heir", takeover=True)
    new = open_event_log(objects, heir.held)
    new.add([event(3)])
    with caplog.at_level(logging.WARNING, "braided"):
        old.close()
    assert in_object(objects) == [1, 3]
    assert "taken over" in caplog.text
    new.add([event(4)])
    new.close()
    assert in_object(objects) == [1, 3, 4]
    first.release()
    heir.release()


def test_a_log_of_objects_is_put_aside_and_the_oldest_go(
    objects: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    milliseconds = itertools.count(8)
    monkeypatch.setattr(time, "time_ns", lambda: next(milliseconds) * 1_000_000)
    objects.put(".events.jsonl.ab12.tmp", b"killed")  # as a store that renames leaves it
    objects.put("events.txt", b"of somebody else's")
    for batch in range(7):
        # A log each, as of queries one after the other: what is older is known by its name.
        ObjectEventLog(objects, lambda: True, large_bytes=1).add([event(batch)])
    kept = {name: in_object(objects, name) for name in objects.list("") if name[-1] == "l"}
    aside = {f"events-{8 + batch}.jsonl": [batch] for batch in range(3, 7)}
    assert kept == {**aside, "events.jsonl": []}
    assert set(objects.list("")) == {*kept, "events.txt"}


# -- what waits in the source ----------------------------------------------------------------


def test_rows_behind_the_latest_offsets_are_waiting() -> None:
    kafka = {
        "endOffset": {"orders": {"0": 40, "1": 20}, "fills": {"0": 3}},
        "metrics": {"avgOffsetsBehindLatest": "10.5", "maxOffsetsBehindLatest": "20"},
    }
    files = {"endOffset": {"logOffset": 3}, "metrics": {}}
    assert waiting_rows({"sources": [kafka, files]}) == 31.5
    assert waiting_rows({"sources": [{"endOffset": None}]}) == 0.0
    assert waiting_rows(None) == 0.0


def test_bytes_of_files_are_told_from_inputs_of_unknown_size() -> None:
    unknown = 2**63 - 1
    assert known_bytes(2766, 8) == 2766
    assert known_bytes(unknown + 1792, 8) == 1792
    assert known_bytes(unknown, 8) is None
    assert known_bytes(2 * unknown, 8) is None
    assert known_bytes(unknown * 16 // 24 + unknown, 8) is None, "unknown, below a projection"
    for width in (1, 8, 20, 41, 300):
        tick = unknown * (8 + width) // 16
        assert known_bytes(tick + 1792, width) == 1792
        assert known_bytes(tick, width) is None


def offsets(checkpoint: Path, batch: int, *sources: str) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    lines = ["v1", '{"batchTimestampMs":0}', *sources, "0"]  # the tick is the last
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


def test_offsets_that_count_rows_tell_the_size_of_a_batch(tmp_path: Path) -> None:
    offsets(tmp_path, 0, '{"t":{"0":5,"1":7}}', '{"u":{"0":1}}')
    offsets(tmp_path, 1, '{"t":{"0":9,"1":8}}', '{"u":{"0":4}}')
    offsets(tmp_path, 2, '{"logOffset":3}', '{"u":{"0":5}}')
    log = SparkLog(LocalStore(tmp_path))
    assert log.rows(0) is None
    assert log.rows(1) == 4 + 1 + 3
    assert log.rows(2) is None


# -- what options say of scaling --------------------------------------------------------------


def chosen(cores: int | None = None, **options: Any) -> Policies:
    given = {f"braided.{name.replace('_', '.')}": value for name, value in options.items()}
    names = ["Parse", "match"]
    return policies_of(Options.parse(given, channels=4), 4, 4, cores, operators=names)


def settings_of(cores: int | None = None, **options: Any) -> Any:
    return chosen(cores, **options).settings


def test_what_scaling_goes_by_comes_from_options() -> None:
    settings = settings_of(
        channels_max=16,
        scale_utilisation=0.6,
        scale_catchUp="30s",
        scale_upDelay="2s",
        scale_downDelay="1m",
        scale_coolDown="500ms",
        scale_exclude="MATCH",
        operator_parse_channels_max=3,
        balance="rc",
        balance_threshold=1.3,
        scale_dryRun=True,
    )
    assert settings.scale.policy == Ds2(utilisation=0.6, catch_up_s=30.0)
    limits = settings.limits
    assert (limits.up_delay_s, limits.calm_s, limits.cooldown_s) == (2.0, 60.0, 0.5)
    assert limits.excluded == {"match"}
    assert limits.of("Parse", 2).channels_max == 3
    assert limits.own == {"Parse": Bounds(1, 3)}  # as a log has it
    assert settings_of(8, channels_max=16, operator_parse_channels_max=12).limits.own == {
        "Parse": Bounds(1, 8)
    }
    assert settings.balance.policy.theta == 1.3
    assert settings.scale_dry_run
    plain = settings_of(channels_max=16)
    assert plain.balance.policy.theta == settings_of(balance="rc").balance.policy.theta == 1.05
    # A bound of one operator is a bound.
    assert isinstance(settings_of(operator_match_channels_max=2).scale.policy, Ds2)
    assert isinstance(settings_of(operator_match_channels_min=2).scale.policy, Off)


def test_operators_that_are_not_there_are_refused() -> None:
    for options in ({"scale_exclude": "parse, macth"}, {"operator_macth_channels_max": 3}):
        with pytest.raises(OptionError, match="there is no macth, but Parse, match"):
            settings_of(**options)
    with pytest.raises(OptionError, match="takes a whole number"):
        settings_of(operator_match_channels_max="many")
    with pytest.raises(OptionError, match="the least is not above the most"):
        settings_of(operator_match_channels_min=9, channels_max=8)


def test_a_bound_above_the_task_slots_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "braided"):
        settings_of(cores=8, channels_max=8)
        settings_of(cores=2, channels_max=8, scale="off")
        assert not caplog.records
        settings_of(cores=2, channels_max=8)
    assert "up to 8 channels are allowed, but Spark runs 2 tasks at a time" in caplog.text


def test_channels_above_the_task_slots_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "braided"):
        waves = TaskWaves(0)
        for channels, cores in ((6, None), (2, 2), (6, 6)):
            waves.see(channels, cores)
        assert not caplog.messages
        for channels in (6, 7):
            waves.see(channels, 2)
        [said] = caplog.messages
        assert "an operator has 6 channels, but Spark runs 2 tasks at a time" in said
        assert "local[6]" in said
        caplog.clear()
        # On a cluster nobody knows at the start how many tasks can run.
        allowed = TaskWaves(chosen(channels_max=8).bound)
        for cores in (None, 8, 2, 2):
            allowed.see(2, cores)
        [said] = caplog.messages
        assert "up to 8 channels are allowed, but Spark runs 2 tasks at a time" in said
    assert chosen(channels_max=8, scale="off").bound == 0


# -- all work counts once ----------------------------------------------------------------------


def test_what_is_done_for_a_chunk_counts_for_its_slots_and_not_for_the_one_that_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = [0]
    monkeypatch.setattr(slot_meter, "perf_counter_ns", lambda: now_ns[0])
    meter = SlotMeter()

    def work(spent_ns: int) -> None:
        now_ns[0] += spent_ns

    work(5)  # before the first slot: nobody's
    meter.enter(1)
    work(10)
    with meter.sharing():
        work(300)
        meter.count([(2, 30), (3, 10)])
        meter.waited_ns += 100  # of these
        work(200)
    work(7)  # it is still in the slot that it was in
    meter.leave()
    assert meter.busy_ns == {1: 17, 2: 300, 3: 100}
    # Where no slot has rows, because timers fired say, each has as much.
    meter.charge([(7, 0), (8, 0)], 100)
    assert meter.busy_ns[7] == meter.busy_ns[8] == 50
    assert meter.cpu_ns() >= 0

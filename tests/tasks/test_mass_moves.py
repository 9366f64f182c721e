"""Many keys change slots in every batch, between channels and hosts, with tasks that run twice and
batches that fail: every key has all that it had, in the slot that the table says, and nowhere else.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.key_moves import moved_keys, slot_of_key
from braided.control.routing.pins import assign_keys, pin_key
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import CheckpointCorruptError
from braided.query.commit import manifest_of
from braided.query.stored_tables import store_assigned, table_of
from braided.store.durable.local_store import LocalStore
from braided.store.history import shipped_parts
from braided.store.history.manifest import OperatorMeta, OperatorVersion
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.shipped_chains import ChainPacker, ship_chains
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.layout import is_timer, timer_ms
from braided.store.slots.slot import SlotState, empty_slot
from braided.store.variables.layout import variable_prefix
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import Codec, ListVariable, MapVariable, ValueVariable
from braided.tasks.channel import Channel
from braided.tasks.emitter import Emitter
from braided.tasks.outcome import Outcome
from braided.tasks.rehousing import rehouse_keys
from braided.tasks.reports import ChannelReport
from braided.tasks.shipped_moves import ship_moves
from braided.tasks.spec import BatchSpec, ChannelSpec
from braided.tasks.state_location import CacheSetting

NAME, SLOTS = "op", 8
PLAIN = Codec(msgspec.msgpack.encode, lambda data: tuple(msgspec.msgpack.decode(data)))
NAMES = ["a", "b", "aa", "c", "d", "x" * 200, "x" * 201, "y" * 700, "y" * 701]
KEYS = [
    (msgspec.msgpack.encode((name,)), (number - 4) * 7_919, number)
    for number, name in enumerate(NAMES)
]
NUMBERS = st.integers(0, len(KEYS) - 1)

_acts = st.one_of(
    st.tuples(st.just("value"), st.sampled_from([1, 500])),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("entry"), st.sampled_from(["u", "v", "w" * 400])),
    st.tuples(st.just("remove"), st.sampled_from(["u", "v", "w" * 400])),
    st.tuples(st.just("timer"), st.integers(0, 5)),
    st.tuples(st.just("clear"), st.just(0)),
)


@dataclass(frozen=True)
class Turn:
    """What a batch does."""

    slots: dict[int, int]
    """Assigned, by number of the key."""
    pin: tuple[int, int] | None
    channels: int
    hosts: tuple[int, ...]
    """On which each channel runs."""
    acts: list[tuple[int, tuple[str, Any]]]
    order: int
    twins: bool
    fails: bool

    def acts_of(self, key: bytes) -> list[tuple[str, Any]]:
        return [each for number, each in self.acts if KEYS[number][0] == key]


turns = st.builds(
    Turn,
    slots=st.dictionaries(NUMBERS, st.integers(0, SLOTS - 1)),
    pin=st.none() | st.tuples(NUMBERS, st.integers(0, SLOTS - 1)),
    channels=st.integers(1, 3),
    hosts=st.tuples(*[st.integers(0, 1)] * 3),
    acts=st.lists(st.tuples(NUMBERS, _acts), max_size=12),
    order=st.integers(0, 5),
    twins=st.booleans(),
    fails=st.booleans(),
)


def act(slot: SlotState, open_key: OpenKey, key: bytes, acts: list[tuple[str, Any]]) -> None:
    value = ValueVariable(open_key, 0, PLAIN, None)
    items = ListVariable(open_key, 1, PLAIN, 10)
    entries = MapVariable(open_key, 2, PLAIN, PLAIN, 10)
    open_key.open(slot, key)
    for what, with_ in acts:
        match what:
            case "value":
                value.update(("z" * with_,))
            case "append":
                items.appendList([(number,) for number in range(with_)])
            case "entry":
                entries.updateValue((with_,), (1,))
            case "remove":
                entries.removeKey((with_,))
            case "timer":
                open_key.set_timer(with_)
            case _:
                value.clear()
                items.clear()
                entries.clear()
    open_key.close()


class Flow:
    """Batches of an operator on a few channels, on two hosts that each have a cache, or none."""

    def __init__(self, home: Path, cached: bool) -> None:
        self.home, self.cached = home, cached
        self.store = LocalStore(home / "braided")
        self.manifests = ManifestLog(self.store)
        self.table = RoutingTable.initial(SLOTS, 2)
        self.meta = OperatorMeta(ordinal=0, slots=SLOTS, key="", state="", codec="")
        self.batch = -1
        self.alone = {key: empty_slot() for key, _, _ in KEYS}
        """Each key in a slot of its own, that nothing ever happens to."""
        self._open_key = OpenKey(now_ms=100)

    @property
    def version(self) -> OperatorVersion | None:
        return self.manifests.view_at(self.batch, "flow").operators.get(NAME)

    def next_table(self, turn: Turn) -> RoutingTable:
        epoch = self.table.epoch + 1
        chosen = [(*KEYS[number], slot) for number, slot in turn.slots.items()]
        columns = [list(each) for each in zip(*chosen, strict=True)] or [[], [], [], []]
        table = replace(
            assign_keys(self.table, KeyAssignment.of(*columns), epoch),
            epoch=epoch,
            channels=turn.channels,
            slots=np.random.default_rng(turn.order).integers(0, turn.channels, SLOTS),
        )
        if turn.pin is not None:
            number, slot = turn.pin
            table = pin_key(table, Pin(*KEYS[number], slot), epoch)
        return table

    def spec_of(self, table: RoutingTable) -> BatchSpec:
        version, files = self.version, self.store
        moves, chains = {}, {}
        if version is not None:
            packed = ChainPacker().pack(version.chains, table.slots, table.channels)
            chains[NAME] = ship_chains(files, f"state/{self.batch + 1}-chains", packed)
            moved = moved_keys(self.table, table)
            if len(moved):
                path = f"state/{NAME}/{self.batch + 1}-%s"
                moves[NAME] = ship_moves(
                    files, lambda what: path % what, moved, table, version.chains
                )
        spec = BatchSpec("t", self.batch + 1, 0, 0, 0, {}, None, moves=moves, chains=chains)
        return BatchSpec.decode(spec.encode())

    def run(self, turn: Turn) -> None:
        table = self.next_table(turn)
        if turn.fails:
            self._reports(table, turn)
        reports = self._reports(table, turn)
        for key, slot in self.alone.items():
            if turn.acts_of(key):
                act(slot, self._open_key, key, turn.acts_of(key))
        outcome = Outcome(
            batch=self.batch + 1,
            batch_time_ms=0,
            watermark_ms=0,
            metas={NAME: self.meta},
            tables={NAME: table},
            reports={NAME: reports},
            outputs=(),
            fed_back=[],
            initial={},
        )
        view = self.manifests.view_at(self.batch, "flow")
        assigned = store_assigned(self.manifests, outcome.batch, outcome.tables, view)
        manifest = manifest_of(outcome, view, "flow", "test", False, assigned=assigned)
        self.manifests.write(manifest)
        self.batch, self.table = self.batch + 1, table

    def _reports(self, table: RoutingTable, turn: Turn) -> list[ChannelReport]:
        spec, found = self.spec_of(table), {}
        order = np.random.default_rng(turn.order).permutation(table.channels).tolist()
        for number in order:
            hosts = (0, 1) if turn.twins else (turn.hosts[number],)
            reports = [self._task(table, turn, spec, number, host) for host in hosts]
            digests = {report.log.digest if report.log else "" for report in reports}
            assert len(digests) == 1, "attempts of one task agree"
            found[number] = reports[-1]
        return [found[number] for number in range(table.channels)]

    def _task(
        self, table: RoutingTable, turn: Turn, batch: BatchSpec, number: int, host: int
    ) -> ChannelReport:
        cache = CacheSetting(str(self.home / f"host {host}")) if self.cached else None
        limits = SnapshotLimits(snapshot_min_bytes=200, snapshot_factor=1.0)
        spec = ChannelSpec(None, self.meta, "flow", self.store, cache, limits, 2, False)
        channel = Channel.open(spec, NAME, batch, number)
        # As a processor does it: who looks for entries has to know which the task has written.
        open_key = OpenKey(now_ms=100)
        for key, pieces in rehouse_keys(channel):
            for suffix in pieces:
                open_key.touch(variable_prefix(suffix, key), suffix)
        for key, hash, check in KEYS:
            slot = slot_of_key(table, hash, check)
            if turn.acts_of(key) and table.slots[slot] == number:
                act(channel.enter(slot), open_key, key, turn.acts_of(key))
        return channel.report(Emitter(spec), 0)

    def is_exact(self) -> None:
        version = self.version
        assert version is not None
        state = ChannelState(self.store, None, NAME, version, SnapshotLimits())
        expected: dict[int, dict[bytes, bytes]] = {slot: {} for slot in range(SLOTS)}
        for key, hash, check in KEYS:
            expected[slot_of_key(self.table, hash, check)] |= self.alone[key].items()
        assert table_of(version, self.manifests) == self.table
        found = {slot: dict(state.slot(slot).scan(b"")) for slot in range(SLOTS)}
        assert found == expected
        timers = {
            slot: [timer_ms(s) for s in items if is_timer(s)] for slot, items in found.items()
        }
        assert version.due == {slot: min(times) for slot, times in timers.items() if times}
        suffixes = [suffix for items in found.values() for suffix in items]
        assert version.keys == sum(suffix[:1] in (b"k", b"K") for suffix in suffixes)


@given(st.lists(turns, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_every_key_has_all_it_had_in_the_slot_that_the_table_says(
    batches: list[Turn], cached: bool, in_files: bool
) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        if in_files:
            patch.setattr(shipped_parts, "_LONG_BYTES", 0)
        flow = Flow(Path(home), cached)
        for turn in batches:
            flow.run(turn)
            flow.is_exact()


def test_a_damaged_list_of_moves_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_parts, "_LONG_BYTES", 0)
    flow = Flow(tmp_path, cached=False)
    rows = [(number, ("value", 1)) for number in range(len(KEYS))]
    quiet = Turn({}, None, 2, (0, 0, 0), rows, 0, False, False)
    flow.run(quiet)
    table = flow.next_table(replace(quiet, slots=dict.fromkeys(range(len(KEYS)), 3)))
    shipped = flow.spec_of(table).moves[NAME]
    assert len(shipped.written) == 2
    for name in shipped.written:
        path = Path(flow.store.path(name))
        path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CheckpointCorruptError, match="which keys come to channel 0"):
        shipped.of(flow.store, 0)
    with pytest.raises(CheckpointCorruptError, match="what the slots of channel 0"):
        shipped.guest_chains(flow.store, SLOTS)

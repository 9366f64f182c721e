"""Chains made on demand from one list of runs: the same as if each slot kept its own."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.errors import CheckpointCorruptError
from braided.store.history import chains as module
from braided.store.history import shipped_parts
from braided.store.history.chains import AppliedRun, Chains
from braided.store.history.manifest import (
    Manifest,
    OperatorMeta,
    OperatorPart,
    OperatorVersion,
    View,
    encode_table,
    to_full,
)
from braided.store.history.packed_runs import pack_runs, unpack_runs
from braided.store.history.runs import RunFile, digest_of
from braided.store.history.shipped_chains import (
    ChainPacker,
    ship_chains,
    shipped_chains,
    unpack_chains,
)
from braided.store.history.slot_sets import encode_slots
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.channel import Channel
from braided.tasks.spec import BatchSpec, ChannelSpec
from braided.tasks.state_location import CacheSetting
from support.small_flow import OPERATOR, SmallFlow

SLOTS = 12
SLOT_SETS = st.frozensets(st.integers(0, SLOTS - 1), max_size=SLOTS)
TABLES = st.lists(st.integers(0, 3), min_size=SLOTS, max_size=SLOTS)
BATCHES = st.lists(st.tuples(SLOT_SETS, SLOT_SETS), max_size=14)
"""What each batch snapshots and logs; channels by turns."""


class Kept(NamedTuple):
    """A run in the chain of a slot, as the oracle has it."""

    digest: str
    replaced: str | None


class PerSlot:
    """The rule, slot by slot: a snapshot restarts a chain, a changelog is appended to it."""

    def __init__(self) -> None:
        self.chains: list[list[Kept]] = [[] for _ in range(SLOTS)]

    def apply(self, runs: list[RunFile], sets: list[frozenset[int]]) -> None:
        for run, slots in zip(runs, sets, strict=True):
            for slot in slots:
                chain = self.chains[slot]
                if run.snapshot:
                    self.chains[slot] = [Kept(run.digest, chain[-1].digest if chain else None)]
                else:
                    self.chains[slot] = [*chain, Kept(run.digest, None)]


def batch_runs(number: int, batch: tuple[frozenset[int], ...]) -> list[tuple[RunFile, frozenset]]:
    """The runs of a batch of two channels: the even slots, and the odd ones."""
    found = []
    for kind, slots in zip(("snap", "log"), batch, strict=True):
        for channel in range(2):
            own = frozenset(slot for slot in slots if slot % 2 == channel)
            if own:
                name = f"state/op/{number}-{channel}-x.{kind}.run"
                run = RunFile(name, digest_of(name.encode()), number, encode_slots(own), 7)
                found.append((run, own))
    return found


def kept(chains: Chains, slots=range(SLOTS)) -> list[list[Kept]]:
    links = chains.links(slots)
    assert all(a.order > b.order for c in links.values() for a, b in pairwise(c))
    return [[Kept(link.run.digest, link.replaced) for link in links[slot][::-1]] for slot in slots]


@given(BATCHES, TABLES, st.integers(1, 40))
def test_chains_on_demand_are_those_kept_per_slot(batches, table, few: int) -> None:
    oracle, packer = PerSlot(), ChainPacker()
    owners = np.array(table, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)  # dead runs are left out early, or late
        chains = Chains.empty(SLOTS)
        older = [(chains, kept(chains))]
        for number, batch in enumerate(batches):
            runs = batch_runs(number, batch)
            oracle.apply([run for run, _ in runs], [slots for _, slots in runs])
            chains = chains.following(run for run, _ in runs)
            assert kept(chains) == oracle.chains
            for slot, chain in enumerate(oracle.chains):
                assert chains.head(slot) == (chain[-1].digest if chain else "")
                assert chains.length(slot) == len(chain)
            needed = {entry.digest for chain in oracle.chains for entry in chain}
            live = [applied.run for applied in chains.live()]
            assert {run.digest for run in live} == needed and len(live) == len(needed)
            assert [run.bytes for run in live] == sorted(run.bytes for run in live)
            shipped = packer.pack(chains, owners, 4)
            for channel, data in enumerate(shipped):
                own = np.flatnonzero(owners == channel).tolist()
                task = unpack_chains(data, SLOTS)
                assert kept(task, own) == [oracle.chains[slot] for slot in own]
                assert [task.head(slot) for slot in own] == [chains.head(slot) for slot in own]
                assert [task.length(slot) for slot in own] == [chains.length(s) for s in own]
            older.append((chains, kept(chains)))
        for version, chain in older:
            assert kept(version) == chain  # what came after has changed nothing


@given(BATCHES, TABLES, TABLES)
def test_a_new_table_ships_all_chains_anew(batches, one, two) -> None:
    chains, packer = Chains.empty(SLOTS), ChainPacker()
    for number, batch in enumerate(batches):
        chains = chains.following(run for run, _ in batch_runs(number, batch))
        owners = np.array(one if number % 3 else two, np.int32)
        for channel, data in enumerate(packer.pack(chains, owners, 4)):
            own = np.flatnonzero(owners == channel).tolist()
            assert kept(unpack_chains(data, SLOTS), own) == kept(chains, own)


@given(BATCHES, TABLES)
def test_packed_runs_are_read_back(batches, table) -> None:
    runs = [run for n, batch in enumerate(batches) for run in batch_runs(n, batch)]
    applied = [AppliedRun(run, np.array(sorted(slots), np.int32)) for run, slots in runs]
    found = unpack_runs(pack_runs(applied, np.array(table, np.int32)))
    assert [run for run, _, _ in found] == [run for run, _ in runs]
    assert [slots.tolist() for _, slots, _ in found] == [sorted(slots) for _, slots in runs]


def test_a_full_manifest_of_many_slots_is_small() -> None:
    slots, channels, batches = 16_384, 64, 320
    owners = np.random.default_rng(1).permutation(slots).astype(np.int32) % channels
    sets = [encode_slots(np.flatnonzero(owners == c).astype(np.int32)) for c in range(channels)]
    names = [
        (f"state/op/{batch}-{c}-{digest_of(b'%d %d' % (batch, c))[:12]}.log.run", c)
        for batch in range(batches)
        for c in range(channels)
    ]
    runs = [RunFile(n, digest_of(n.encode()), 9000, sets[c], 4000) for n, c in names]
    chains = Chains.empty(slots).following(runs)
    meta = OperatorMeta(0, slots, "", "", "")
    operator = OperatorVersion(meta, channels, owners, 0, chains, {}, 0, 0)
    view = View("f", batches - 1, {"op": operator}, ())
    full = to_full(view, Manifest("f", batches, False, "w", 0, 0, {}))
    assert len(msgspec.json.encode(full)) < 1_500_000
    loaded = View.empty().apply(full).operators["op"].chains
    assert kept(loaded, [5]) == kept(chains, [5])
    assert loaded.length(5) == batches


def test_a_packed_run_of_a_slot_that_is_not_there_is_refused() -> None:
    applied = AppliedRun(RunFile("n", "d", 1, encode_slots([9])), np.array([9], np.int32))
    meta = OperatorMeta(0, 4, "", "", "")
    older = pack_runs([applied], np.zeros(10, np.int32))
    part = OperatorPart(1, meta, encode_table([0] * 4), older=older)
    with pytest.raises(CheckpointCorruptError, match="slot that is not there"):
        View.empty().apply(Manifest("f", 3, True, "w", 0, 0, {"op": part}))


@pytest.mark.parametrize("long", [False, True])
def test_a_task_opens_its_slots_without_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    flow = SmallFlow(tmp_path / "checkpoint")
    for number in range(6):
        flow.run(None, {slot: {b"ka": b"%d" % number} for slot in range(number, 6)})
    shipped = shipped_chains({OPERATOR: flow.view()})
    expected = flow.contents(None)
    shutil.rmtree(flow.files.directory / "manifests")
    spec = ChannelSpec(
        None,
        flow.meta,
        flow.flow,
        flow.files,
        CacheSetting(str(tmp_path)),
        SnapshotLimits(),
        0,
        False,
    )
    if long:
        packed = shipped[OPERATOR].packed
        monkeypatch.setattr(shipped_parts, "_LONG_BYTES", 0)
        shipped = {OPERATOR: ship_chains(flow.files, "state/sums/6-chains-a", packed)}
        assert shipped[OPERATOR].file and not shipped[OPERATOR].packed
    batch = BatchSpec("t", flow.batch + 1, 0, 0, 0, {}, None, chains=shipped)
    decoded = BatchSpec.decode(batch.encode())
    assert decoded == batch
    for _ in range(2):  # from runs, then from the cache
        state = Channel.open(spec, OPERATOR, decoded, 0).state
        state.open_slots(range(6))
        assert {slot: dict(state.slot(slot).scan(b"")) for slot in range(6)} == expected
    if long:
        files = flow.files
        data = bytearray(files.get("state/sums/6-chains-a").to_pybytes())
        data[-1] ^= 1
        for damaged, says in (
            (bytes(data), "checksum"),
            (b"", "checksum"),
            (None, "can't be read"),
        ):
            if damaged is None:
                files.delete(["state/sums/6-chains-a"])
            else:
                files.put("state/sums/6-chains-a", damaged)
            with pytest.raises(CheckpointCorruptError, match=f"6-chains-a.*channel 0.*{says}"):
                Channel.open(spec, OPERATOR, decoded, 0)

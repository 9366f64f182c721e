"""Applying manifests: pure, incremental, and the same from a full one as from deltas."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.errors import CheckpointCorruptError
from braided.store.history.manifest import (
    FORMAT,
    NO_FILE,
    AssignedFile,
    CarryFile,
    DeadFile,
    Manifest,
    OperatorMeta,
    OperatorPart,
    PinnedKey,
    View,
    decode_table,
    encode_table,
    format_of,
    problems,
    to_full,
)
from braided.store.history.runs import RunFile
from braided.store.history.slot_sets import encode_slots

SLOTS = 5
META = OperatorMeta(ordinal=0, slots=SLOTS, key="", state="", codec="1")


def run(batch: int, kind: str, slots, tail: str = "a") -> RunFile:
    name = f"state/op/{batch}-0-{tail}.{kind}.run"
    return RunFile(name, f"{batch}{kind}{tail}", 1, encode_slots(slots))


def part(*runs: RunFile, first: bool = False, **more) -> OperatorPart:
    described = {"meta": META, "table": encode_table([0] * SLOTS)} if first else {}
    return OperatorPart(**{"channels": 1, "runs": runs, "new": len(runs), **described, **more})


def manifest(batch: int, operator: OperatorPart, full: bool = False, **more) -> Manifest:
    return Manifest(
        flow="f",
        batch=batch,
        full=full,
        writer="w",
        batch_time_ms=0,
        watermark_ms=0,
        operators={"op": operator},
        **more,
    )


def first(*runs: RunFile, **more) -> Manifest:
    return manifest(0, part(*runs, first=True, **more), full=True)


def chains(view: View) -> list[tuple[str, ...]]:
    operator = view.operators["op"]
    return [tuple(run.digest for run in operator.chain(slot)) for slot in range(SLOTS)]


def test_logs_append_and_snapshots_restart() -> None:
    view = View.empty().apply(first(run(0, "log", [0, 1])))
    view = view.apply(manifest(1, part(run(1, "snap", [0]), run(1, "log", [0, 2]))))
    assert chains(view) == [("1snapa", "1loga"), ("0loga",), ("1loga",), (), ()]
    assert view.operators["op"].head(0) == "1loga" and view.operators["op"].head(4) == ""
    assert view.operators["op"].length(0) == 2


def test_changelogs_of_merged_keys_follow_those_of_tasks() -> None:
    view = View.empty().apply(first(run(0, "log", [0, 1])))
    runs = run(1, "snap", [0]), run(1, "log", [0, 2]), run(1, "log", [0, 1], "m")
    delta = manifest(1, part(*runs, merged=1), format=FORMAT)
    full = to_full(view, delta)
    for after in (view.apply(delta), view.apply(full), View.empty().apply(full)):
        assert chains(after)[:3] == [("1snapa", "1loga", "1logm"), ("0loga", "1logm"), ("1loga",)]
    assert problems(view, manifest(1, part(*runs))) == [
        "run state/op/1-0-m.log.run repeats a slot of another run of its batch"
    ]
    twice = part(*runs, run(1, "log", [1], "n"), merged=2)
    assert problems(view, manifest(1, twice)) == [
        "operator op has a key merged twice, or in a snapshot"
    ]
    assert "4 merged runs of 3" in problems(view, manifest(1, part(*runs, merged=4)))[0]


def test_files_of_diverted_rows_are_kept_through_full_manifests() -> None:
    one, two, three = (DeadFile("op", f"dead/{n}-0-a.parquet", "d", 1) for n in range(3))
    start = msgspec.structs.replace(first(run(0, "log", [0])), dead=(one,))
    view = View.empty().apply(to_full(View.empty(), start))
    view = view.apply(manifest(1, part(), dead=(two,)))
    assert view.dead == (one, two)
    delta = manifest(2, part(), dead=(three,))
    full = to_full(view, delta)
    assert view.apply(full).dead == view.apply(delta).dead == (one, two, three)
    assert View.empty().apply(full).dead == (one, two, three)
    lossy = msgspec.structs.replace(full, dead=(three,))
    assert "every file of diverted rows" in problems(view, lossy)[0]


def test_assigned_keys_are_named_until_a_manifest_says_otherwise() -> None:
    file = AssignedFile("state/op/1-assigned-a", "sum", "a", 7)
    view = View.empty().apply(first(run(0, "log", [0])))
    assert view.operators["op"].assigned == NO_FILE
    parts = {"op": part(run(1, "log", [0, 4]), assigned=file, epoch=1)}
    view = view.apply(manifest(1, parts["op"]))
    delta = manifest(2, part(epoch=1))
    full = to_full(view, delta)
    # Only who reads a manifest that names keys has to know of them.
    assert (format_of(parts), delta.format, full.format) == (4, 2, 4)
    for after in (view.apply(delta), view.apply(full), View.empty().apply(full)):
        assert after.operators["op"].assigned == file and file.name in after.live_files()
    freed = view.apply(manifest(2, part(assigned=NO_FILE, epoch=2)))
    assert freed.operators["op"].assigned == NO_FILE and file.name not in freed.live_files()
    assert "" not in freed.live_files()


def test_pinned_keys_stay_until_a_manifest_says_otherwise() -> None:
    pin = PinnedKey(b"\x91\x07", -(1 << 63), 3, 4)
    view = View.empty().apply(first(run(0, "log", [0]), pins=()))
    pinning = manifest(1, part(run(1, "log", [0, 4]), pins=(pin,), epoch=1))
    assert msgspec.json.decode(msgspec.json.encode(pinning), type=Manifest) == pinning
    view = view.apply(pinning)
    delta = manifest(2, part(epoch=1))
    full = to_full(view, delta)
    for after in (view.apply(delta), view.apply(full), View.empty().apply(full)):
        assert after.operators["op"].pins == (pin,)
    freed = view.apply(manifest(2, part(pins=(), epoch=2)))
    assert freed.operators["op"].pins == ()
    lost = manifest(2, part(pins=(msgspec.structs.replace(pin, slot=SLOTS),), epoch=2))
    assert problems(view, lost) == ["operator op has a key pinned to a slot that is not there"]
    split = manifest(2, part(pins=(msgspec.structs.replace(pin, shares=(1, SLOTS)),), epoch=2))
    assert problems(view, split) == ["operator op has a key pinned to a slot that is not there"]
    # As it was before keys could be split.
    assert msgspec.json.decode(b'["kQc=", 1, 2, 3]', type=PinnedKey).shares == ()


def test_applying_leaves_the_view_before_as_it_was() -> None:
    before = View.empty().apply(first(run(0, "log", [0]), due={0: 5}))
    after = before.apply(manifest(1, part(run(1, "snap", [0]), due={0: None, 1: 9}, keys=3)))
    assert chains(before)[0] == ("0loga",) and before.operators["op"].due == {0: 5}
    assert chains(after)[0] == ("1snapa",) and after.operators["op"].due == {1: 9}
    assert after.operators["op"].keys == 3


BATCHES = st.lists(
    st.tuples(st.sets(st.integers(0, SLOTS - 1)), st.sets(st.integers(0, SLOTS - 1))), max_size=12
)


@given(BATCHES, st.data())
def test_a_full_manifest_says_what_the_deltas_said(batches, data) -> None:
    deltas = [first(run(0, "log", [0, 1, 2]))]
    for number, (snapped, logged) in enumerate(batches, 1):
        runs = [run(number, "snap", snapped)] if snapped else []
        runs += [run(number, "log", logged)] if logged else []
        due = {slot: number for slot in logged} | dict.fromkeys(snapped)
        deltas.append(manifest(number, part(*runs, due=due, keys=number)))
    view = View.empty()
    full_at = data.draw(st.integers(0, len(deltas) - 1))
    fresh = None
    for delta in deltas:
        after = view.apply(delta)
        if delta.batch == full_at and full_at > 0:
            full = to_full(view, delta)
            assert msgspec.json.decode(msgspec.json.encode(full), type=Manifest) == full
            fresh = View.empty().apply(full)
            assert chains(view.apply(full)) == chains(after)
        elif fresh is not None:
            fresh = fresh.apply(delta)
        view = after
        if fresh is not None:
            assert chains(fresh) == chains(view)
            assert fresh.operators["op"].due == view.operators["op"].due
            assert fresh.live_files() == view.live_files()
            assert fresh.operators["op"].keys == view.operators["op"].keys


@given(BATCHES)
def test_live_files_are_those_in_a_chain(batches) -> None:
    view = View.empty().apply(first(run(0, "log", range(SLOTS))))
    for number, (snapped, logged) in enumerate(batches, 1):
        runs = [run(number, "snap", snapped)] if snapped else []
        runs += [run(number, "log", logged)] if logged else []
        view = view.apply(manifest(number, part(*runs)))
    operator = view.operators["op"]
    named = {run.name for slot in range(SLOTS) for run in operator.chain(slot)}
    assert operator.live_files() == named == view.live_files()


def test_a_dropped_operator_is_gone_from_its_batch_on_and_its_files_with_the_views_before() -> None:
    before = View.empty().apply(first(run(0, "log", [0, 1])))
    name = next(iter(before.operators))
    for drops in (
        Manifest("f", 1, False, "w", 0, 0, {}, dropped=(name,)),
        to_full(before, Manifest("f", 1, False, "w", 0, 0, {}, dropped=(name,))),
    ):
        after = before.apply(drops)
        assert not after.operators and not after.live_files()
        # What comes after needs to know no more of it.
        assert not after.apply(Manifest(before.flow, 2, True, "w", 0, 0, {})).operators
    assert before.live_files()
    with pytest.raises(CheckpointCorruptError, match="must name every operator"):
        before.apply(Manifest(before.flow, 1, True, "w", 0, 0, {}))


def test_carry_is_live_only_in_its_own_batch() -> None:
    carried = CarryFile("op", "carry/0-x.arrow", "d", 3)
    view = View.empty().apply(msgspec.structs.replace(first(), carry=(carried,)))
    assert view.live_files() == {"carry/0-x.arrow"} and view.carry == (carried,)
    assert view.apply(manifest(1, part())).live_files() == set()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (manifest(2, part()), "does not follow"),
        (msgspec.structs.replace(manifest(1, part()), flow="g"), "flow g is not flow f"),
        (manifest(1, part(channels=0)), "0 channels"),
        (manifest(1, part(table=encode_table([0, 0, 1, 0, 0]))), "routes to channel 1 of 1"),
        (manifest(1, part(table=encode_table([0, 0]))), "no routing table"),
        (manifest(1, part(run(1, "log", [SLOTS]))), "one that is not there"),
        (manifest(1, part(run(1, "log", []))), "of no slot"),
        (manifest(1, part(run(1, "log", [1]), run(1, "log", [1], "b"))), "repeats a slot"),
        (manifest(1, part(run(1, "log", [1]), run(1, "snap", [1]))), "comes after a changelog"),
        (manifest(1, part(run(1, "log", [1]), new=0)), "must be new"),
        (manifest(1, part(new=1)), "1 new runs of 0"),
        (manifest(1, part(due={SLOTS: 1})), "timer in a slot"),
        (manifest(1, part(meta=msgspec.structs.replace(META, slots=9))), "9 slots, not 5"),
        (
            msgspec.structs.replace(manifest(1, part()), operators={"new": part()}),
            "new but is not described",
        ),
        (
            msgspec.structs.replace(manifest(1, part()), operators={"new": part(first=True)}),
            "ordinal 0, which is not free",
        ),
        (
            msgspec.structs.replace(manifest(1, part()), operators={}, full=True),
            "must name every operator",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_that_breaks_a_rule_is_refused(broken: Manifest, says: str) -> None:
    view = View.empty().apply(first(run(0, "log", [0])))
    assert any(says in problem for problem in problems(view, broken)), problems(view, broken)
    with pytest.raises(CheckpointCorruptError, match="does not continue"):
        view.apply(broken)
    assert chains(view) == [("0loga",), (), (), (), ()]


def test_the_first_manifest_is_a_full_one() -> None:
    delta = msgspec.structs.replace(first(), full=False)
    assert problems(View.empty(), delta) == ["the first manifest of a flow must be a full one"]
    assert View.empty().apply(to_full(View.empty(), delta)).batch == 0


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=40))
def test_a_table_is_read_back(channels: list[int]) -> None:
    table = decode_table(encode_table(channels), len(channels))
    assert table.tolist() == channels
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1

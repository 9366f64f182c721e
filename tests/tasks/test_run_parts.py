"""The parts that every kind of run is composed of, on one channel without Spark."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from time import process_time_ns
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.spark.worker_process import local_directory
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.store.slots.layout import timer_suffix
from braided.tasks import slot_meter
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.emitter import Emitter, WaitingRows
from braided.tasks.groups import GroupSource, group_chunk
from braided.tasks.pieces import Grain
from braided.tasks.slot_meter import SlotMeter
from braided.tasks.spec import BatchSpec, ChannelSpec
from braided.tasks.timers import clock_ms, due_timers, timer_tags

CODEC = KeyCodec(pa.schema([("k", pa.int64())]))


def _chunk(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    """Rows (slot, key) in their order."""
    slots, keys = np.array(rows, np.int64).T
    return pa.record_batch({"k": pa.array(keys), "place": pa.array((slots << PLACE_SHIFT) + keys)})


def _spec(directory: Path, keep_order: bool = False) -> ChannelSpec:
    meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
    return ChannelSpec(
        None, meta, "flow", LocalStore(directory), None, SnapshotLimits(), 2, keep_order
    )


def _channel(directory: Path, cut: int | None = None, **more: Any) -> Channel:
    batch = BatchSpec("t", 0, 50, 20, 0, more.get("due", {}), cut)
    return Channel.open(_spec(directory), "o", batch, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1))
def test_groups_are_the_runs_of_equal_keys(rows: list[tuple[int, int]]) -> None:
    rows = sorted((slot, slot * 10 + key) for slot, key in rows)
    grouped = group_chunk(_chunk(rows), CODEC, [0])
    keys = [value for (value,) in map(CODEC.decode, grouped.keys)]
    spans = list(zip(grouped.begins, grouped.ends, strict=True))
    assert [row for begin, end in spans for row in rows[begin:end]] == rows
    assert [rows[begin] for begin, _ in spans] == list(zip(grouped.slots, keys, strict=True))
    assert len(keys) == len(set(rows))
    assert grouped.key_columns[0].to_pylist() == keys


@pytest.mark.parametrize("cut", [None, 4])
def test_rows_are_counted_by_slot_up_to_the_cut(tmp_path: Path, cut: int | None) -> None:
    channel = _channel(tmp_path, cut)
    source = GroupSource(channel, CODEC, [0], 1, Grain.ROW)
    rows = [(0, 1), (0, 2), (2, 3), (2, 3), (2, 3), (5, 4)]
    chunks = [_chunk(rows[:3]), _chunk(rows[3:])]
    assert sum(len(grouped.keys) for grouped in source.read(iter(chunks))) == (
        5 if cut is None else 4
    )
    taken = rows[:cut]
    assert channel.rows_in == len(taken)
    assert channel.meter.rows == Counter(slot for slot, _ in taken)
    heaviest = source.heaviest()[0]
    assert (CODEC.decode(heaviest.key), heaviest.rows) == ((3,), Counter(taken)[2, 3])
    rest = source.keep_rest()
    assert (0 if rest is None else rest.rows) == len(rows) - len(taken)


def test_timers_are_due_in_slots_that_were_touched_and_in_those_the_driver_names(
    tmp_path: Path,
) -> None:
    channel = _channel(tmp_path, due={"o": {0: [3], 1: [7]}})
    for slot in (1, 3, 7):
        for ms in (21, 20, 9):
            channel.state.slot(slot).put(*timer_suffix(ms, b"key"))
    channel.enter(1)
    now_ms = clock_ms("EventTime", channel.batch)
    timers = due_timers(channel, now_ms)
    assert timers == [(9, b"key", 1), (20, b"key", 1), (9, b"key", 3), (20, b"key", 3)]
    assert clock_ms("ProcessingTime", channel.batch) == 50
    tags = timer_tags(timers, 3)
    assert tags[0] == tags[2] and tags[0] < tags[1]
    assert all(len(tag) == 3 and 0 <= number < 1 << 63 for tag, number in tags)


def test_time_is_shared_by_rows_and_none_is_lost_between_slots() -> None:
    meter = SlotMeter()
    meter.charge([(1, 3), (2, 1)], 400)
    assert meter.busy_ns == {1: 300, 2: 100}
    # A slot without rows, in which timers fired say, is written like any other.
    meter.charge([(1, 3), (3, 0)], 400)
    assert meter.busy_ns == {1: 600, 2: 100, 3: 100}
    meter.enter(1)
    meter.enter(2)
    meter.waited_ns += 10**12  # somebody else's
    meter.leave()
    meter.leave()
    assert meter.busy_ns[1] > 600 and meter.busy_ns[2] < 100
    assert meter.rows == {1: 0, 2: 0}


@pytest.mark.parametrize(
    ("used_ns", "queued_ns", "waited_ns", "needed_ns"),
    [
        (300, 700, 0, 1000),  # it computes, and others keep the cores busy
        (300, 0, 0, 300),  # it sleeps for the rest
        (50, 500, 0, 100),  # it sleeps, and has to queue whenever it wakes: a tenth of half of it
        (300, 900, 0, 1000),
        (200, 0, 500, 200),
        (900, 0, 500, 500),  # also while it waited for rows, which is no work
        (0, 0, 1000, 0),
    ],
)
def test_who_has_to_queue_for_a_core_needs_it_all_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used_ns: int,
    queued_ns: int,
    waited_ns: int,
    needed_ns: int,
) -> None:
    counted, now_ns, cpu_ns = tmp_path / "schedstat", [10**6], [10**5]
    counted.write_text("100000 5000 3\n")
    monkeypatch.setattr(slot_meter, "_SCHEDSTAT", str(counted))
    monkeypatch.setattr(slot_meter, "perf_counter_ns", lambda: now_ns[0])
    monkeypatch.setattr(slot_meter, "process_time_ns", lambda: cpu_ns[0])
    meter = SlotMeter()
    now_ns[0] += 1000
    cpu_ns[0] += used_ns
    meter.waited_ns += waited_ns
    counted.write_text(f"200000 {5000 + queued_ns} 7\n")
    assert meter.cpu_ns() == needed_ns


@pytest.mark.parametrize("found", [None, "", "nothing"])
def test_where_nobody_counts_the_queue_the_time_on_a_core_is_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    if found is not None:
        (tmp_path / "schedstat").write_text(found)
    monkeypatch.setattr(slot_meter, "_SCHEDSTAT", str(tmp_path / "schedstat"))
    meter = SlotMeter()
    begun_ns = process_time_ns()
    while process_time_ns() - begun_ns < 5_000_000:
        pass
    used_ns = process_time_ns() - begun_ns
    assert used_ns <= meter.cpu_ns() < 1.5 * used_ns


@pytest.mark.parametrize("keep_order", [False, True])
def test_output_leaves_with_the_tags_of_its_rows(tmp_path: Path, keep_order: bool) -> None:
    def emit(values: list[int]) -> tuple[list[dict[str, int]], Emitter]:
        emitter = Emitter(_spec(tmp_path, keep_order))
        # Two chunks, as an encoder may make of rows that do not go together.
        waiting = WaitingRows(
            emitter,
            lambda rows: (pa.record_batch({"v": part}) for part in (rows[:1], rows[1:])),
            SlotMeter(),
        )
        waiting.rows += values
        waiting.tags += [(0, value, 7) for value in values] if keep_order else []
        chunks = list(waiting.flush())
        assert not waiting.rows and not waiting.tags
        return [row for chunk in chunks for row in chunk.to_pylist()], emitter

    rows, emitter = emit([4, 5, 6])
    assert [row["v"] for row in rows] == [4, 5, 6] and emitter.rows_out == 3
    order = [row.get("__braided_o1") for row in rows]
    assert order == ([4, 5, 6] if keep_order else [None] * 3)
    again, other = emit([4, 5, 6])[1], emit([4, 6, 5])[1]
    assert emitter.digest() == again.digest()
    assert (emitter.digest() != other.digest()) == keep_order
    # Two slices of one chunk have other rows in the same buffers.
    whole, digests = pa.record_batch({"v": [1, 2]}), set()
    for row in range(2):
        sliced = Emitter(_spec(tmp_path, keep_order))
        sliced.emit(whole.slice(row, 1), [(0, 0, 0)])
        digests.add(sliced.digest())
    assert len(digests) == (2 if keep_order else 1)


def test_something_is_kept_beside_what_spark_gives_an_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/slow/blockmgr-1,/fast/blockmgr-2")
    kept = {user: local_directory(user) for user in map(str, range(20))}
    assert set(kept.values()) == {"/fast", "/slow"}
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/fast/blockmgr-3,/slow/blockmgr-4")
    assert {user: local_directory(user) for user in kept} == kept
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert local_directory("a") == tempfile.gettempdir()

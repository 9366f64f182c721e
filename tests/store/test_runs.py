"""Runs: what is written is read back, and damage is always found."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided.errors import CheckpointCorruptError
from braided.store.durable.local_store import LocalStore
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store
from braided.store.history import run_blocks, runs
from braided.store.history.runs import (
    RunFile,
    batch_of,
    digest_of,
    read_run,
    slots_of,
    write_run,
)
from braided.store.history.slot_sets import encode_slots
from support.cases import cases

CHANGES = st.dictionaries(
    st.integers(0, 300),
    st.dictionaries(st.binary(min_size=1, max_size=6), st.none() | st.binary(max_size=9)),
    max_size=8,
).map(
    lambda slots: [(slot, list(slots[slot]), list(slots[slot].values())) for slot in sorted(slots)]
)
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=cases(40),
)


def gathered(found) -> dict[int, dict[bytes, bytes | None]]:
    out: dict[int, dict[bytes, bytes | None]] = {}
    for slot, suffixes, values in found:
        out.setdefault(slot, {}).update(zip(suffixes, values, strict=True))
    return out


@SHARED
@given(CHANGES, st.sets(st.integers(0, 300)))
def test_a_run_is_read_back(tmp_path: Path, changes, wanted: set[int]) -> None:
    files = LocalStore(tmp_path)
    run = write_run(files, "state/op/3-0-a.log.run", changes)
    whole = {slot: dict(zip(s, v, strict=True)) for slot, s, v in changes}
    assert slots_of(run) == sorted(whole)
    held = {slot: items for slot, items in whole.items() if items}
    assert gathered(read_run(files, run)) == held
    assert gathered(read_run(files, run, wanted)) == {s: held[s] for s in held.keys() & wanted}


@SHARED
@given(CHANGES, st.sets(st.integers(0, 300)), st.integers(9, 60), st.integers(9, 60), st.data())
def test_where_blocks_end_follows_from_the_rows_alone(
    tmp_path: Path, changes, wanted: set[int], shared: int, full: int, data
) -> None:
    files = LocalStore(tmp_path)
    parts = []
    for slot, suffixes, values in changes:
        cut = data.draw(st.integers(0, len(suffixes)))
        parts += [(slot, suffixes[:cut], values[:cut]), (slot, suffixes[cut:], values[cut:])]
    held = {slot: dict(zip(s, v, strict=True)) for slot, s, v in changes if s}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_blocks, "_SHARED_BYTES", shared)
        patch.setattr(run_blocks, "_BLOCK_BYTES", full)
        patch.setattr(run_blocks, "_PIECE_BYTES", 50)
        one = write_run(files, "state/op/3-0-a.log.run", changes)
        two = write_run(files, "state/op/3-0-b.log.run", iter(parts))
        assert one.digest == two.digest and files.get(one.name) == files.get(two.name)
        patch.setattr(runs, "_READ_WHOLE_BYTES", 0)
        patch.setattr(runs, "_READ_TOGETHER_BYTES", data.draw(st.integers(1, 200)))
        assert gathered(read_run(files, one)) == held
        assert gathered(read_run(files, one, wanted)) == {s: held[s] for s in held.keys() & wanted}


class CountingStore(LocalStore):
    """Files that say what was read of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bytes_read = 0

    def get(self, name: str) -> pa.Buffer:
        data = super().get(name)
        self.bytes_read += data.size
        return data

    def get_ranges(self, name, spans):  # type: ignore[no-untyped-def]
        parts = super().get_ranges(name, spans)
        self.bytes_read += sum(part.size for part in parts)
        return parts


def large_run(files: LocalStore, slots: int = 40, rows: int = 400) -> RunFile:
    noise = random.Random(3)
    return write_run(
        files,
        "state/op/7-2-a.snap.run",
        (
            (n, [b"k%05d" % i for i in range(rows)], [noise.randbytes(100) for _ in range(rows)])
            for n in range(slots)
        ),
    )


def test_of_a_large_run_only_the_wanted_slots_are_read(tmp_path: Path) -> None:
    files = CountingStore(tmp_path)
    run = large_run(files)
    assert run.bytes > 40 * 40_000
    for wanted in ({17}, {0, 39}, {5, 6, 7}):
        files.bytes_read = 0
        found = list(read_run(files, run, wanted))
        assert {slot for slot, _, _ in found} == wanted
        assert sum(len(keys) for _, keys, _ in found) == 400 * len(wanted)
        assert files.bytes_read < run.footer + len(wanted) * 400 * 114


def test_an_empty_slot_at_the_end_of_a_large_run_is_read_from_an_object_store() -> None:
    store = open_store(Location.of("memory://empty-slots/store"))
    noise = random.Random(3)
    large = [b"k%05d" % i for i in range(4000)], [noise.randbytes(100) for _ in range(4000)]
    run = write_run(store, "7-2-a.snap.run", [(0, *large), (1, [], []), (2, [], [])])
    assert run.bytes > 256 << 10 and slots_of(run) == [0, 1, 2]
    assert not [rows for _, *rows in read_run(store, run, {1, 2}) if rows[0]]
    assert gathered(read_run(store, run, {0, 2}))[0] == dict(zip(*large, strict=True))


def test_a_run_larger_than_memory_is_written_and_read_in_parts(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)

    def parts() -> Iterator[tuple[int, list[bytes], list[bytes]]]:
        noise = random.Random(3)
        for start in range(0, 40_000, 1000):
            keys = [b"k%08d" % key for key in range(start, start + 1000)]
            yield 5, keys, [noise.randbytes(1000) for _ in keys]

    tracemalloc.start()
    try:
        run = write_run(files, "7-0-a.snap.run", parts())
        count = sum(len(keys) for _, keys, _ in read_run(files, run))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40_000 and run.bytes > 40_000_000
    assert peak < 20 << 20, peak


@pytest.mark.parametrize("damage", ["block", "footer", "cut", "gone"])
def test_damage_in_a_large_run_is_found_by_who_reads_it(tmp_path: Path, damage: str) -> None:
    files = LocalStore(tmp_path)
    run = large_run(files)
    path = tmp_path / run.name
    content = bytearray(path.read_bytes())
    if damage == "block":
        content[0] ^= 1
    elif damage == "footer":
        content[-5] ^= 1
    elif damage == "cut":
        del content[-5:]
    path.write_bytes(content)
    if damage == "gone":
        path.unlink()
    with pytest.raises(CheckpointCorruptError) as caught:
        list(read_run(files, run, {0, 1}))
    message = str(caught.value)
    assert str(path) in message and "slots 0, 1 " in message and "batch 7" in message
    if damage == "block":
        # Another slot is as good as it was.
        assert {slot for slot, _, _ in read_run(files, run, {30})} == {30}


@SHARED
@given(CHANGES, st.sets(st.integers(0, 300)))
def test_a_run_of_an_earlier_version_is_read(tmp_path: Path, changes, wanted: set[int]) -> None:
    files = LocalStore(tmp_path)
    rows = [(slot, *row) for slot, s, v in changes for row in zip(s, v, strict=True)]
    columns = [[row[n] for row in rows] for n in range(3)]
    types = [pa.int32(), pa.binary(), pa.binary()]
    batch = pa.record_batch(
        [pa.array(c, t) for c, t in zip(columns, types, strict=True)],
        names=["slot", "key", "value"],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        for start in range(0, batch.num_rows, 3):
            writer.write_batch(batch.slice(start, 3))
    data = sink.getvalue()
    files.put("state/op/3-0-a.snap.arrow", data)
    text = encode_slots(slot for slot, _, _ in changes)
    run = RunFile("state/op/3-0-a.snap.arrow", digest_of(data), data.size, text)
    assert run.snapshot
    held = {slot: dict(zip(s, v, strict=True)) for slot, s, v in changes if s}
    assert gathered(read_run(files, run, wanted)) == {s: held[s] for s in held.keys() & wanted}
    files.put(run.name, bytes(data.size))
    with pytest.raises(CheckpointCorruptError, match="checksum does not match"):
        list(read_run(files, run))


def test_content_decides_the_digest_and_the_name_does_not(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    changes = [(1, [b"ka", b"kb"], [b"1", None])]
    one = write_run(files, "4-0-a.log.run", iter(changes), base="x")
    two = write_run(files, "4-0-b.log.run", changes, base="x")
    other = write_run(files, "4-0-c.log.run", changes, base="y")
    assert one.digest == two.digest != other.digest


def test_a_worker_need_not_import_pandas_for_a_run(tmp_path: Path) -> None:
    program = (
        "import sys; from braided.store.durable.local_store import LocalStore\n"
        "from braided.store.history.runs import *\n"
        "before = 'pandas' in sys.modules\n"
        "files = LocalStore(sys.argv[1])\n"
        "run = write_run(files, '1-0-a.log.run', [(3, [b'ka', b'kb'], [b'1', None])])\n"
        "assert list(read_run(files, run)) == [(3, [b'ka', b'kb'], [b'1', None])]\n"
        "sys.exit(not before and 'pandas' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)


def test_slots_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ascend"):
        write_run(LocalStore(tmp_path), "1-0-a.log.run", [(2, [b"k"], [b"1"]), (1, [b"k"], [b"1"])])


@given(
    st.sets(st.integers(0, 5000)) | st.sets(st.integers(0, 200_000), max_size=4),
    st.integers(0, 300),
)
def test_sets_of_slots_are_read_back(slots: set[int], more: int) -> None:
    slots |= set(range(1000, 1000 + more))
    text = encode_slots(slots)
    assert slots_of(RunFile("n", "d", 0, text)) == sorted(slots)
    assert encode_slots(np.array(sorted(slots), np.int32)) == text
    assert len(text) <= 4 * (max(slots, default=0) // 8 + 3) / 3 + 1
    assert len(text) <= 4 * (4 * len(slots) + 3) / 3 + 1


def test_few_slots_are_a_bitmap_as_they_always_were() -> None:
    assert encode_slots([0, 9]) == "AQI="


@SHARED
@given(st.data())
def test_any_damage_is_found_and_named(tmp_path: Path, data) -> None:
    files = LocalStore(tmp_path)
    run = write_run(files, "state/op/7-2-a.log.run", [(5, [b"ka"], [b"1"]), (9, [b"kb"], [None])])
    path = tmp_path / run.name
    content = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[where] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[where:]
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError) as caught:
        list(read_run(files, run, {9}))
    message = str(caught.value)
    assert str(path) in message and "slots 9 " in message and "batch 7" in message


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    run = write_run(files, "7-0-a.log.run", [(n, [b"k"], [b"1"]) for n in range(40)])
    files.delete([run.name])
    with pytest.raises(CheckpointCorruptError, match=r"is missing.*14, 15 and 24 more.*batch 7"):
        list(read_run(files, run))


def test_the_batch_is_in_the_name() -> None:
    assert batch_of("state/op/12-3-ab.log.run") == 12
    assert batch_of("out/7-x") == 7
    assert batch_of("state/op/readme") is None
    assert batch_of("out/x-7") is None

"""Runs: what is written is read back, and damage is always found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided.errors import CheckpointCorruptError
from braided.store.durable.local_store import LocalStore
from braided.store.history import runs
from braided.store.history.runs import RunFile, batch_of, bitmap_of, read_run, slots_of, write_run
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
    run = write_run(files, "state/op/3-0-a.log.arrow", changes)
    whole = {slot: dict(zip(s, v, strict=True)) for slot, s, v in changes}
    assert slots_of(run) == sorted(whole)
    held = {slot: items for slot, items in whole.items() if items}
    assert gathered(read_run(files, run)) == held
    assert gathered(read_run(files, run, wanted)) == {s: held[s] for s in held.keys() & wanted}


@pytest.mark.parametrize("limit", ["_ROWS_PER_RECORD_BATCH", "_BYTES_PER_RECORD_BATCH"])
@pytest.mark.parametrize("most", [1, 3, 10])
def test_slots_may_span_record_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(runs, limit, most)
    files = LocalStore(tmp_path)
    changes = [(n, [b"k%d" % i for i in range(n)], [b"%d" % n] * n) for n in range(1, 9)]
    run = write_run(files, "1-0-a.log.arrow", changes)
    reader = pa.ipc.open_file(files.get(run.name))
    batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
    assert len(batches) > 3 and sum(batch.num_rows for batch in batches) == 36
    if limit == "_ROWS_PER_RECORD_BATCH":
        assert max(batch.num_rows for batch in batches) == most
    assert gathered(read_run(files, run, {2, 7})) == {
        n: {b"k%d" % i: b"%d" % n for i in range(n)} for n in (2, 7)
    }


def test_content_decides_the_digest_and_the_name_does_not(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    changes = [(1, [b"ka", b"kb"], [b"1", None])]
    one = write_run(files, "4-0-a.log.arrow", iter(changes), base="x")
    two = write_run(files, "4-0-b.log.arrow", changes, base="x")
    other = write_run(files, "4-0-c.log.arrow", changes, base="y")
    assert one.digest == two.digest != other.digest


def test_a_run_is_plain_arrow(tmp_path: Path) -> None:
    files = LocalStore(tmp_path)
    run = write_run(files, "1-0-a.log.arrow", [(3, [b"ka", b"kb", b"kc"], [b"1", None, b""])])
    table = pa.ipc.open_file(files.get(run.name)).read_all()
    table.validate(full=True)
    assert table.to_pydict() == {
        "slot": [3, 3, 3],
        "key": [b"ka", b"kb", b"kc"],
        "value": [b"1", None, b""],
    }


def test_a_worker_need_not_import_pandas_for_a_run(tmp_path: Path) -> None:
    program = (
        "import sys; from braided.store.durable.local_store import LocalStore\n"
        "from braided.store.history.runs import *\n"
        "before = 'pandas' in sys.modules\n"
        "files = LocalStore(sys.argv[1])\n"
        "run = write_run(files, '1-0-a.log.arrow', [(3, [b'ka', b'kb'], [b'1', None])])\n"
        "assert list(read_run(files, run)) == [(3, [b'ka', b'kb'], [b'1', None])]\n"
        "sys.exit(not before and 'pandas' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)


def test_slots_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ascend"):
        write_run(
            LocalStore(tmp_path), "1-0-a.log.arrow", [(2, [b"k"], [b"1"]), (1, [b"k"], [b"1"])]
        )


@given(st.sets(st.integers(0, 5000)))
def test_a_bitmap_holds_the_slots(slots: set[int]) -> None:
    assert slots_of(RunFile("n", "d", 0, bitmap_of(slots))) == sorted(slots)


def test_a_bitmap_is_little_endian_base64() -> None:
    assert bitmap_of([0, 9]) == "AQI="


@SHARED
@given(st.data())
def test_any_damage_is_found_and_named(tmp_path: Path, data) -> None:
    files = LocalStore(tmp_path)
    run = write_run(files, "state/op/7-2-a.log.arrow", [(5, [b"ka"], [b"1"]), (9, [b"kb"], [None])])
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
    run = write_run(files, "7-0-a.log.arrow", [(n, [b"k"], [b"1"]) for n in range(40)])
    files.delete([run.name])
    with pytest.raises(CheckpointCorruptError, match=r"is missing.*14, 15 and 24 more.*batch 7"):
        list(read_run(files, run))


def test_the_batch_is_in_the_name() -> None:
    assert batch_of("state/op/12-3-ab.log.arrow") == 12
    assert batch_of("out/7-x") == 7
    assert batch_of("state/op/readme") is None
    assert batch_of("out/x-7") is None

"""Pairs of keys counted on the way out: right within the bounds, and small."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

import braided
from braided.kinds.operator.key_by_key import KeyByKey
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.kinds.processor.run import ProcessorRun
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.key_pairs import (
    KeyPairs,
    PairReport,
    PairSetting,
    PairTarget,
    can_be_counted,
)
from braided.tasks.spec import BatchSpec, TaskSpec
from support.channel_runs import finished
from support.processors.flow import ProcessorFlow

TAG = pa.schema([("tag", pa.string())])
CODEC = KeyCodec(TAG)
TARGET = PairTarget("tags", (1,), TAG)


def _tag(text: str | None) -> bytes:
    return CODEC.encode_batch([pa.array([text], pa.string())])[0]


def _counted(
    rows: list[tuple[str, str | None]], setting: PairSetting, chunk: int = 100, batch: int = 0
) -> PairReport:
    """Rows of keys in their order, in chunks that go across the borders of keys."""
    pairs, before = KeyPairs(setting, batch), None
    for position, (key, _) in enumerate(rows):
        if key != before:
            pairs.opened(key.encode(), position)
            before = key
        is_last = position == len(rows) - 1
        if (position + 1) % chunk == 0 or is_last:
            begin = position - position % chunk
            columns = [list(column) for column in zip(*rows[begin : position + 1], strict=True)]
            arrays = [pa.array(column, pa.string()) for column in columns]
            pairs.emitted(pa.RecordBatch.from_arrays(arrays, names=["key", "tag"]), begin)
    (report,) = pairs.reports()
    return report


_ROWS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y", "z", None])),
    min_size=20,
    max_size=400,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


@given(_ROWS, st.integers(1, 50))
def test_every_row_is_counted_or_held_out_and_belongs_to_its_key(
    rows: list[tuple[str, str | None]], chunk: int
) -> None:
    report = _counted(rows, PairSetting((TARGET,), every=1), chunk)
    counts = report.decode()
    true = Counter((key.encode(), _tag(tag)) for key, tag in rows)
    found: Counter[tuple[bytes, bytes]] = Counter()
    for (a, b), weight in zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True):
        found[counts.here[a], counts.there[b]] += int(weight)
    held = Counter((counts.here[a], counts.there[b]) for a, b in counts.held.tolist())
    assert counts.error == 0
    assert found + held == true
    assert counts.total == sum(found.values())


@given(st.integers(0, 10_000), st.sampled_from([256, 1024, 4096]))
def test_a_small_sketch_keeps_its_bounds(seed: int, size: int) -> None:
    chance = Random(seed)
    rows = sorted(
        (f"k{int(chance.paretovariate(0.6)) % 50:02d}", f"t{int(chance.paretovariate(0.6)) % 99}")
        for _ in range(700)
    )
    report = _counted(rows, PairSetting((TARGET,), every=1, sketch_bytes=size), 256)
    counts = report.decode()
    assert counts.held_weight == 1.0  # all that were held out are there, for so few rows
    true = Counter((key.encode(), _tag(tag)) for key, tag in rows)
    true.subtract((counts.here[a], counts.there[b]) for a, b in counts.held.tolist())
    found = {
        (counts.here[a], counts.there[b]): weight
        for (a, b), weight in zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True)
    }
    assert counts.total == sum(true.values())
    for pair, count in true.items():
        counted = found.get(pair, 0.0)
        assert counted <= count <= counted + counts.error
    room = max(8, size // 64)
    assert len(found) <= room
    assert counts.error <= 3.5 * counts.total / room  # what the sketch itself promises


def test_a_report_is_no_larger_than_it_may_be() -> None:
    rows = [(f"key {n // 4:06d}", f"tag {n:06d}") for n in range(40_000)]
    setting = PairSetting((TARGET,), every=1, report_bytes=8192)
    report = _counted(rows, setting, 8192)
    assert len(msgspec.msgpack.encode(report)) < 8192 * 1.2
    assert 0 < len(report.counts) // 4 < 10_000
    assert report.error >= 1  # pairs are missing, and that is said


def test_a_sample_is_like_all_rows_and_the_same_every_time() -> None:
    rows = [(f"k{n // 1000:02d}", f"t{n % 8}") for n in range(40_000)]
    setting = PairSetting((TARGET,), every=8)
    report = _counted(rows, setting, 8192)
    assert report == _counted(rows, setting, 8192)
    counts = report.decode()
    assert counts.total == pytest.approx(40_000 / 8 * 7 / 8, rel=0.1)
    # Tags come in turns of 8, and so many rows lie between those that are chosen, on average.
    by_tag = Counter[bytes]()
    for (_, b), weight in zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True):
        by_tag[counts.there[b]] += weight
    assert len(by_tag) == 8
    assert max(by_tag.values()) < 1.5 * min(by_tag.values())
    assert 64 <= len(counts.held) <= 128


def test_the_same_rows_are_chosen_however_small_the_chunks_are() -> None:
    chance = Random(5)
    rows = sorted((f"k{chance.randrange(60):02d}", f"t{chance.randrange(9)}") for _ in range(9_000))
    setting = PairSetting((TARGET,), every=16)
    whole = _counted(rows, setting, 9_000)
    assert whole.total > 400
    assert all(_counted(rows, setting, chunk) == whole for chunk in (1, 7, 24, 1000))


def test_keys_with_few_rows_are_chosen_in_one_batch_or_another() -> None:
    # Each has its rows at the same positions in every batch, as in a stream that changes little.
    rows = [(f"k{n // 4:03d}", "t") for n in range(2_000)]
    counted: Counter[bytes] = Counter()
    for batch in range(200):
        counts = _counted(rows, PairSetting((TARGET,), every=16), 2_000, batch).decode()
        for (a, _), weight in zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True):
            counted[counts.here[a]] += int(weight)
        counted.update(counts.here[a] for a, _ in counts.held.tolist())
    assert len(counted) == 500
    assert counted.total() == pytest.approx(200 * 2_000 / 16, rel=0.05)
    assert max(counted.values()) < 4 * counted.total() / 500


def test_keys_of_several_columns_and_all_simple_types_are_counted() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.timestamp("us", "UTC"))])
    assert can_be_counted(schema)
    assert not can_be_counted(pa.schema([("s", pa.struct([("x", pa.int64())]))]))
    chunk = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 1, 2, None] * 5, pa.int64()),
            pa.array([0.0, -0.0, float("nan"), None] * 5),
            pa.array([1, 1, 2, None] * 5, pa.timestamp("us", "UTC")),
        ],
        schema=schema,
    )
    pairs = KeyPairs(PairSetting((PairTarget("next", (0, 1, 2), schema),), every=1))
    pairs.opened(b"here", 0)
    pairs.emitted(chunk, 0)
    (report,) = pairs.reports()
    assert set(report.there) <= set(KeyCodec(schema).encode_batch(chunk.columns))
    assert sum(report.decode().weight) + len(report.held) // 8 * report.held_weight == 20


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_that_are_one_key_are_one_pair(kind: pa.DataType) -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64)
    values = [0.0, -0.0, *bits.view(np.float64).tolist(), None] * 8
    chunk = pa.RecordBatch.from_arrays([pa.array(values, kind, from_pandas=False)], names=["x"])
    pairs = KeyPairs(PairSetting((PairTarget("next", (0,), pa.schema([("x", kind)])),), every=1))
    pairs.opened(b"here", 0)
    pairs.emitted(chunk, 0)
    (report,) = pairs.reports()
    counts = report.decode()
    assert len(report.there) == len(counts.pairs) == 3
    assert sum(counts.weight) + counts.held_weight * len(counts.held) == len(values)


def test_keys_that_give_out_nothing_are_not_kept() -> None:
    pairs = KeyPairs(PairSetting((TARGET,), every=1))
    tracemalloc.start()
    try:
        for number in range(50_000):
            pairs.opened(b"silent %06d" % number, 0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000  # 2 bytes a key, where each note of one takes 40 and more
    rows = pa.array(["x"] * 20)
    pairs.opened(b"loud", 0)
    pairs.emitted(pa.RecordBatch.from_arrays([rows, rows], names=["key", "tag"]), 0)
    pairs.opened(b"silent", 20)
    (report,) = pairs.reports()
    assert report.here == (b"loud",)


# -- in the tasks of operators and processors --------------------------------------------------

ROWS = StructType([StructField("k", StringType()), StructField("v", LongType())])
OUT = StructType([StructField("n", LongType()), StructField("tag", StringType())])
SETTING = PairSetting((TARGET,), every=1)


class Tags(braided.Operator):
    """Gives out no column of its own key."""

    n: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[int, str]]:
        for _ in range(row.v % 3):
            self.n += 1
            yield self.n, f"{row.k}-{row.v % 4}"


class TagTables(braided.Operator):
    n: int = 0

    def onBatch(self, rows: pa.Table) -> Iterator[Any]:
        values = [v for v in rows["v"].to_pylist() for _ in range(v % 3)]
        tags = [f"{self.key.k}-{v % 4}" for v in values]
        yield pa.table({"n": pa.array([0] * len(tags), pa.int64()), "tag": tags})


class TagProcessor(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for _ in range(row.v % 3):
                yield Row(n=0, tag=f"{row.k}-{row.v % 4}")

    def close(self) -> None: ...


def _chunks(rows: list[tuple[str, int]]) -> list[pa.RecordBatch]:
    keys, values = (list(column) for column in zip(*rows, strict=True))
    order = list(range(len(rows)))
    table = pa.table(
        {
            "o0": pa.array([0] * len(rows), pa.int64()),
            "o1": pa.array(order, pa.int64()),
            "k": pa.array(keys, pa.string()),
            "v": pa.array(values, pa.int64()),
            "place": pa.array([(ord(key[0]) % 4) << PLACE_SHIFT for key in keys], pa.int64()),
        }
    )
    return list(table.to_batches(max_chunksize=37))


def _spec(home: Path, counted: bool = True) -> TaskSpec:
    packed: Any = None
    meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
    spec = TaskSpec(packed, meta, "flow", LocalStore(home), None, SnapshotLimits(), 2, True)
    return replace(spec, pairs=SETTING) if counted else spec


@pytest.mark.parametrize("operator", [Tags, TagTables])
def test_an_operator_that_feeds_another_tells_pairs_it_has_no_column_for(
    tmp_path: Path, operator: Any
) -> None:
    rows = sorted((f"{'abcdefgh'[n % 8]}", n * 7 % 13) for n in range(500))
    rows.sort(key=lambda row: (ord(row[0][0]) % 4, row[0]))
    program = Program("acts", operator, "None", ROWS, ROWS[:1], (0,), OUT)
    batch = BatchSpec("t", 0, 0, 0, 0, {}, None)
    channel = Channel.open(_spec(tmp_path), "acts", batch, 0)
    chunks, report = finished(OperatorRun(channel, program, KeyByKey), _chunks(rows))
    given = Counter(row["tag"] for chunk in chunks for row in chunk.to_pylist())
    _check(report.pairs, given)
    plain = Channel.open(_spec(tmp_path / "plain", counted=False), "acts", batch, 0)
    others, other = finished(OperatorRun(plain, program, KeyByKey), _chunks(rows))
    assert not other.pairs
    assert others == chunks
    assert other.result() == report.result()


def _check(reports: tuple[PairReport, ...], given: Counter[str]) -> None:
    counts = reports[0].decode()
    keys = KeyCodec(pa.schema([("k", pa.string())]))
    found: Counter[str] = Counter()
    rows = [*zip(counts.pairs.tolist(), counts.weight.tolist(), strict=True)]
    rows += [(pair, counts.held_weight) for pair in counts.held.tolist()]
    for (a, b), weight in rows:
        (tag,), (key,) = CODEC.decode(counts.there[b]), keys.decode(counts.here[a])
        assert tag.startswith(f"{key}-")
        found[tag] += int(weight)
    assert found == given


def test_a_processor_tells_them_too(tmp_path: Path) -> None:
    rows = sorted((f"{'abcdefgh'[n % 8]}", n * 7 % 13) for n in range(300))
    rows.sort(key=lambda row: (ord(row[0][0]) % 4, row[0]))
    flow = ProcessorFlow(tmp_path / "flow", TagProcessor(), "n long, tag string", "None")
    spec = replace(_spec(tmp_path), meta=flow.meta)
    channel = Channel.open(spec, "P", BatchSpec("t", 0, 0, 0, 0, {}, None), 0)
    chunks, report = finished(ProcessorRun(channel, flow.program), _chunks(rows))
    given = Counter(row["tag"] for chunk in chunks for row in chunk.to_pylist())
    _check(report.pairs, given)

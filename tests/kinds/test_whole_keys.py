"""The short way through a chunk comes to the same as opening and closing key by key."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

import braided
from braided.errors import BraidedError
from braided.kinds.operator.key_by_key import CALL_ROWS, KeyByKey
from braided.kinds.operator.key_runner import KeyRunner
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.kinds.operator.way import Way
from braided.kinds.operator.whole_keys import WholeKeys
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.runs import RunFile
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.channel import Channel as TaskChannel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, TaskSpec
from support.cases import cases

ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
OUTPUT = StructType([StructField("k", StringType()), StructField("n", LongType())])
FORGET, REMIND, CANCEL, SILENT, WRONG, UNSTORABLE = range(6)


class _Acts(braided.Operator, abstract=True):
    n: int = 0

    def act(self, value: int) -> bool:
        """Does what a value says; whether there is something to tell."""
        if value == WRONG:
            raise ValueError("wrong")
        if value == UNSTORABLE:
            self.n = "one"  # type: ignore[assignment]
            return False
        if value == SILENT:
            return False
        self.n += 1
        if value == FORGET:
            self.forget()
        elif value == REMIND:
            self.setTimer(self.n * 10)
        elif value == CANCEL:
            self.deleteTimer(10)
        return True

    def onTimer(self, fired: Any) -> Iterator[tuple[str, int]]:
        yield self.key.k, -self.n


class ByRow(_Acts):
    def onRow(self, row: Any) -> Iterator[tuple[str, int]]:
        if self.act(row.v):
            yield row.k, self.n


class ByTable(_Acts):
    def onBatch(self, rows: pa.Table) -> Iterator[Any]:
        for value in rows["v"].to_pylist():
            if self.act(value):
                yield self.key.k, self.n
        if rows.num_rows == 2:
            yield pa.table({"k": [self.key.k], "n": [1000 + self.n]})


class Returns(_Acts):
    def onRow(self, row: Any) -> Any:
        return [{"n": self.n, "k": row.k}] if self.act(row.v) else None


class Channel:
    """Batches of one channel, each on the runs of those before."""

    def __init__(self, way: type[Way], operator: Any, directory: str) -> None:
        meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
        packed: Any = None
        self._way = way
        self._spec = TaskSpec(
            packed, meta, "flow", LocalStore(directory), None, SnapshotLimits(), 2, False
        )
        self._program = Program("acts", operator, "ProcessingTime", ROW, ROW[:1], (0,), OUTPUT)
        self._runs: tuple[RunFile, ...] = ()

    def batch(self, now_ms: int, chunks: list[pa.RecordBatch]) -> tuple[Any, ...]:
        spec = BatchSpec("t", 0, now_ms, 0, 0, {}, None, initial={"acts": self._runs})
        opened = TaskChannel.open(self._spec, "acts", spec, 0)
        run = OperatorRun(opened, self._program, self._way)
        try:
            given = [row for chunk in run.process(iter(chunks)) for row in chunk.to_pylist()]
            report = run.finish()
        except BraidedError as error:
            return type(error), str(error)
        self._runs += () if report.log is None else (report.log,)
        return given, _without_times(report)


def _without_times(report: ChannelReport) -> ChannelReport:
    slots = tuple(msgspec.structs.replace(slot, busy_ns=0) for slot in report.slots)
    log = report.log and msgspec.structs.replace(report.log, name="")
    return msgspec.structs.replace(
        report, attempt="", busy_ns=0, waited_ns=0, commit_ns=0, cpu_ns=None, slots=slots, log=log
    )


def _chunks(rows: list[tuple[int, str, int]], size: int) -> list[pa.RecordBatch]:
    slots, keys, values = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "k": pa.array(keys, pa.string()),
            "v": pa.array(values, pa.int64()),
            "place": pa.array([slot << PLACE_SHIFT for slot in slots], pa.int64()),
        }
    )
    return table.to_batches(max_chunksize=size)


_keys = st.sampled_from([*"abcdefgh", "long" * 150])
_values = st.sampled_from([FORGET, REMIND, CANCEL, SILENT, *range(10, 20)])


@st.composite
def _batch(draw: st.DrawFn, values: st.SearchStrategy[int]) -> list[pa.RecordBatch]:
    """Rows in the order in which a task gets them; now and then two keys of a place take turns."""
    runs = draw(st.lists(st.tuples(_keys, st.lists(values, min_size=1, max_size=3)), min_size=1))
    if draw(st.integers(0, 4)):
        runs = list(dict(runs).items())
    rows = [(ord(key[0]) % 4, key, value) for key, given in runs for value in given]
    rows.sort(key=lambda row: row[0])
    return _chunks(rows, draw(st.integers(1, 40)))


@pytest.mark.parametrize("operator", [ByRow, ByTable, Returns])
@settings(max_examples=cases(40))
@given(batches=st.lists(_batch(_values), min_size=1, max_size=4))
def test_the_short_way_gives_the_same_output_state_and_report(
    operator: Any, batches: list[list[pa.RecordBatch]]
) -> None:
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as long:
        channels = Channel(WholeKeys, operator, short), Channel(KeyByKey, operator, long)
        for number, chunks in enumerate(batches):
            ours, theirs = (channel.batch(number * 15, chunks) for channel in channels)
            assert ours == theirs


@pytest.mark.parametrize("operator", [ByRow, ByTable])
@settings(max_examples=cases(50))
@given(chunks=_batch(st.sampled_from([WRONG, UNSTORABLE, *range(10, 40)])))
def test_errors_are_the_same_on_the_short_way(operator: Any, chunks: list[pa.RecordBatch]) -> None:
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as long:
        ours = Channel(WholeKeys, operator, short).batch(0, chunks)
        assert ours == Channel(KeyByKey, operator, long).batch(0, chunks)


@pytest.mark.parametrize("operator", [ByRow, ByTable])
def test_the_short_way_is_the_one_taken(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    opened = KeyRunner.open

    def open_key(self: Any, slot: int, key: bytes, key_row: Any) -> None:
        taken.append(key_row.k)
        opened(self, slot, key, key_row)

    monkeypatch.setattr(KeyRunner, "open", open_key)
    keys = [f"{number:05}" for number in range(CALL_ROWS + 1)]
    with tempfile.TemporaryDirectory() as directory:
        rows = [(0, key, 10) for key in keys]
        channel = Channel(WholeKeys, operator, directory)
        given, _ = channel.batch(0, _chunks(rows, len(rows)))
    assert [row["k"] for row in given] == keys
    ends = [keys[0], keys[-1]]
    assert taken == ends, "only the first and the last key of a chunk may have more rows"


class Sizes(braided.Operator):
    n: int = 0

    def onBatch(self, rows: pa.Table) -> Iterator[Any]:
        self.n += 1
        yield self.key.k, rows.num_rows


@pytest.mark.parametrize("many", [CALL_ROWS, CALL_ROWS + 1])
def test_a_key_with_very_many_rows_gets_them_in_parts(many: int) -> None:
    rows = [(0, key, 0) for key in "ab" + "c" * many + "de"]
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as long:
        ours = Channel(WholeKeys, Sizes, short).batch(0, _chunks(rows, len(rows)))
        assert ours == Channel(KeyByKey, Sizes, long).batch(0, _chunks(rows, len(rows)))
    sizes = [row["n"] for row in ours[0] if row["k"] == "c"]
    assert sizes == ([many] if many == CALL_ROWS else [CALL_ROWS, 1])


def test_two_keys_of_one_place_that_take_turns_both_count_all_their_rows() -> None:
    rows = [(0, key, 10) for key in "xabababy"]
    with tempfile.TemporaryDirectory() as directory:
        given, _ = Channel(WholeKeys, ByRow, directory).batch(0, _chunks(rows, 10))
    counted = [(row["k"], row["n"]) for row in given]
    assert counted == [("x", 1), *((key, n) for n in (1, 2, 3) for key in "ab"), ("y", 1)]

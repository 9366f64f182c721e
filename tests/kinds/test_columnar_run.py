"""Columnar operators without Spark: against a plain dictionary, whatever the chunks."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

import braided
from braided.errors import OperatorError, OutputSchemaError, StateValueError
from braided.flow.route import GroupingKeys
from braided.kinds.columnar import gathering, key_states
from braided.kinds.columnar.program import ColumnProgram
from braided.kinds.columnar.run import ColumnRun
from braided.kinds.columnar.step import ColumnStep
from braided.operator.columns import column_codec
from braided.store.columnar.fields import evolve
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.runs import RunFile
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.layout import TIMER, timer_parts
from braided.tasks import place_order
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, SplitKey, TaskSpec
from support.cases import cases
from support.moved_keys import moved
from support.spent_time import Clock

ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
OUTPUT = StructType([StructField("k", StringType()), StructField("n", LongType())])
DROP, REMIND, CANCEL, SILENT, UNSET = 100, 101, 102, 103, 104
SLOTS = 4

Rows = list[tuple[str | None, int]]


class Acts(braided.ColumnOperator):
    """Counts and sums; what a key's last value says is done with it."""

    n: pa.int64() = 0
    values: pa.list_(pa.int64()) = None
    name: pa.string() = "new"

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        v = rows["v"].to_numpy()
        acting = v != SILENT
        n = state["n"].to_numpy() + np.bincount(index, acting).astype(int)
        values = [list(each or []) for each in state["values"].to_pylist()]
        for i, value in zip(index.tolist(), v.tolist(), strict=True):
            if value != SILENT:
                values[i].append(value)
        changed = np.bincount(index, acting) > 0
        last = np.r_[index[1:] != index[:-1], True]
        due = [
            (10 + value) * 1_000 if act == REMIND else None if act == CANCEL else old
            for act, value, old in zip(
                v[last].tolist(), n.tolist(), state["due"].cast("int64").to_pylist(), strict=True
            )
        ]
        new = {
            "n": n,
            "values": [
                None if act == UNSET else new if ch else old
                for act, new, ch, old in zip(
                    v[last].tolist(), values, changed, state["values"].to_pylist(), strict=True
                )
            ],
            "name": pa.array([f"n{each}" if each else "new" for each in n.tolist()]),
            "due": pa.array(due, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "remove": v[last] == DROP,
        }
        positions = np.flatnonzero(acting)
        out = {"k": rows["k"].take(pa.array(positions)), "n": v[positions]}
        return new, out, positions

    def onDue(self, state: Any, due: Any) -> Any:
        assert state["due"].null_count == len(state)
        ms = due.cast("int64").to_numpy() // 1000
        return {"n": state["n"].to_numpy() + 1000}, {"k": self.keys["k"], "n": -ms}


class Model:
    """The same in a dictionary."""

    def __init__(self) -> None:
        self.fields: dict[str | None, dict[str, Any]] = {}

    def batch(self, rows: Rows, now_ms: int) -> list[tuple[str | None, int]]:
        given = [(k, v) for k, v in rows if v != SILENT]
        for key in dict.fromkeys(k for k, _ in rows):
            mine = [v for k, v in rows if k == key]
            fresh = {"n": 0, "values": None, "name": "new", "due": None}
            fields = self.fields.setdefault(key, dict(fresh))
            acts = [v for v in mine if v != SILENT]
            fields["n"] += len(acts)
            if acts:
                fields["values"] = [*(fields["values"] or []), *acts]
            fields["name"] = f"n{fields['n']}" if fields["n"] else "new"
            if mine[-1] == UNSET:
                fields["values"] = None
            if mine[-1] == REMIND:
                fields["due"] = 10 + fields["n"]
            elif mine[-1] == CANCEL:
                fields["due"] = None
            if mine[-1] == DROP or fields == fresh:
                del self.fields[key]
        for key, fields in self.fields.items():
            if fields["due"] is not None and fields["due"] <= now_ms:
                given.append((key, -fields["due"]))
                fields["due"] = None
                fields["n"] += 1000
        return given


class Line:
    """Batches of one channel, each on the runs of those before."""

    def __init__(self, operator: Any, directory: str, keep_order: bool = False) -> None:
        state = column_codec(operator).describe()
        meta = OperatorMeta(ordinal=0, slots=SLOTS, key="", state=state, codec="")
        packed: Any = None
        self.spec = TaskSpec(
            packed, meta, "flow", LocalStore(directory), None, SnapshotLimits(), 2, keep_order
        )
        self.program = ColumnProgram("acts", operator, "ProcessingTime", ROW, ROW[:1], (0,), OUTPUT)
        self.runs: tuple[RunFile, ...] = ()
        self.batches = 0

    def batch(
        self, chunks: list[pa.RecordBatch], now_ms: int = 0, due: bool = True, **more: Any
    ) -> tuple[list[dict[str, Any]], ChannelReport]:
        slots = {"acts": {0: list(range(SLOTS))}} if due else {}
        spec = BatchSpec(
            "t", self.batches, now_ms, 0, 0, slots, None, initial={"acts": self.runs}, **more
        )
        channel = Channel.open(self.spec, "acts", spec, 0)
        run = ColumnRun(channel, self.program)
        try:
            given = [row for chunk in run.process(iter(chunks)) for row in chunk.to_pylist()]
            report = run.finish()
        except BaseException:
            run.abandon()
            raise
        self.runs += () if report.log is None else (report.log,)
        self.batches += 1
        return given, report

    def stored(self) -> tuple[dict[str | None, dict[str, Any]], dict[str | None, int]]:
        """Fields and timers of all keys, the latter from where they lie."""
        spec = BatchSpec("t", self.batches, 0, 0, 0, {}, None, initial={"acts": self.runs})
        channel = Channel.open(self.spec, "acts", spec, 0)
        codec = column_codec(self.program.operator).at(self.spec.meta.history)
        keys = self.program.keys
        fields, timers = {}, {}
        for number in range(SLOTS):
            for raw, record in channel.state.slot(number).records():
                [key] = keys.decode(raw)
                columns, _ = codec.read([record])
                [fields[key]] = pa.Table.from_arrays(columns, codec.names).to_pylist()
            for item in channel.state.slot(number).scan(TIMER):
                ms, raw = timer_parts(*item)
                [key] = keys.decode(raw)
                timers[key] = ms
        channel.close()
        return fields, timers


def slot_of(key: str | None) -> int:
    return len(key or "") % SLOTS


def chunks_of(rows: Rows, size: int, shares: Any = None) -> list[pa.RecordBatch]:
    """Rows as a task gets them: sorted by place, of which several keys have one."""
    numbered = []
    for number, (key, value) in enumerate(rows):
        slot = slot_of(key) if shares is None else shares(number, key)
        place = slot << PLACE_SHIFT | (sum(map(ord, key or "")) % 3)
        numbered.append((place, number, key, value))
    numbered.sort(key=lambda row: row[0])
    places, numbers, keys, values = (list(column) for column in zip(*numbered, strict=True))
    columns = {
        "__braided_o0": pa.array([0] * len(rows), pa.int64()),
        "__braided_o1": pa.array(numbers, pa.int64()),
        "k": pa.array(keys, pa.string()),
        "v": pa.array(values, pa.int64()),
        "__braided_place": pa.array(places, pa.int64()),
    }
    return pa.table(columns).to_batches(max_chunksize=size)


_keys = st.sampled_from([None, "", "a", "b", "bb", "ba", "ccc", "dddd", "e" * 600])
_values = st.sampled_from([DROP, REMIND, CANCEL, SILENT, UNSET, *range(8)])
_batches = st.lists(
    st.tuples(st.lists(st.tuples(_keys, _values), max_size=30), st.integers(1, 40)), max_size=4
)


@settings(max_examples=cases(40))
@given(batches=_batches, keep_order=st.booleans(), call_rows=st.sampled_from([1, 3, 1 << 16]))
def test_state_output_and_timers_are_those_of_a_dictionary(
    batches: list[tuple[Rows, int]], keep_order: bool, call_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        line, model = Line(Acts, home, keep_order), Model()
        for number, (rows, size) in enumerate(batches):
            now_ms = number * 6
            # Keys that are cut at the edges of calls would act on the last row of each call.
            rows = _acting_last(rows)
            patch.setattr(gathering, "CALL_ROWS", max(call_rows, len(rows)))
            given, report = line.batch(chunks_of(rows, size) if rows else [], now_ms)
            expected = model.batch(rows, now_ms)
            assert _multiset((row["k"], row["n"]) for row in given) == _multiset(expected)
            if keep_order and rows:
                ordered = sorted(given, key=lambda row: [row[f"__braided_o{i}"] for i in range(3)])
                rows_out = [(row["k"], row["n"]) for row in ordered if row["n"] >= 0]
                assert rows_out == [(k, v) for k, v in rows if v != SILENT]
                tags = [tuple(row[f"__braided_o{i}"] for i in range(3)) for row in given]
                assert len(set(tags)) == len(tags)
            fields, timers = line.stored()
            assert fields == _with_times(model.fields)
            due = {k: f["due"] for k, f in model.fields.items() if f["due"] is not None}
            assert timers == due
            assert report.rows_in == len(rows)


def _acting_last(rows: Rows) -> Rows:
    """What a key is told by a row counts if the row is its last in a batch."""
    last = {key: number for number, (key, _) in enumerate(rows)}
    return [
        (key, value if value < 8 or value == SILENT or last[key] == number else 1)
        for number, (key, value) in enumerate(rows)
    ]


def _multiset(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


def _with_times(fields: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    times = {}
    for key, each in fields.items():
        due = each["due"]
        ms = None if due is None else pa.scalar(due * 1000, pa.timestamp("us", "UTC")).as_py()
        times[key] = {**each, "due": ms}
    return times


class Sizes(braided.ColumnOperator):
    calls: pa.int64() = 0

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        calls = state["calls"].to_numpy() + 1
        return {"calls": calls}, {"k": self.keys["k"], "n": np.bincount(index)}


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_key_at_the_edge_of_chunks_has_all_its_rows_in_one_call(
    size: int, tmp_path: Path
) -> None:
    rows: Rows = [(key, n) for key in ("a", "bb", "ccc", "dddd") for n in range(7)]
    line = Line(Sizes, str(tmp_path))
    given, _ = line.batch(chunks_of(rows, size))
    assert _multiset((row["k"], row["n"]) for row in given) == _multiset(
        (key, 7) for key in ("a", "bb", "ccc", "dddd")
    )


def test_a_key_of_very_many_rows_gets_them_in_several_calls_and_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "CALL_ROWS", 10)
    line = Line(Sizes, str(tmp_path))
    given, _ = line.batch(chunks_of([("a", 0)] * 25 + [("bb", 0)] * 3, 4))
    assert sum(row["n"] for row in given if row["k"] == "a") == 25
    fields, _ = line.stored()
    assert fields["a"]["calls"] == 3 and fields["bb"]["calls"] == 1


class Grown(braided.ColumnOperator):
    """Keys of 100 bytes each, which are due at 10 ms."""

    text: pa.string() = "x" * 100

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        text = [f"{each[:99]}y" for each in state["text"].to_pylist()]
        due = np.full(len(state), 10_000, "M8[us]")
        return {"text": text, "due": due}, {"k": rows["k"], "n": np.full(len(rows), len(state))}

    def onDue(self, state: Any, due: Any) -> Any:
        return None, {"k": self.keys["k"], "n": np.full(len(due), -len(due))}


def test_a_call_has_no_more_keys_than_their_state_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["a", "b", "bb", "bc", "ccc", "dddd", "e" * 600]
    rows: Rows = [(key, n) for n in range(3) for key in keys]
    seen, states = [], []
    for most in (1 << 20, 300, 1):
        monkeypatch.setattr(key_states, "STATE_BYTES", most)
        line = Line(Grown, str(tmp_path / str(most)), keep_order=True)
        given = [row for now in (0, 10) for row in line.batch(chunks_of(rows, 4), now)[0]]
        sizes = {abs(row.pop("n")) for row in given}
        assert max(sizes) == {1 << 20: 7, 300: 2, 1: 1}[most]
        seen.append(given)
        states.append(line.stored())
    assert seen[0] == seen[1] == seen[2]
    assert states[0] == states[1] == states[2]


def test_attempts_that_came_to_other_calls_have_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backwards(braided.ColumnOperator):
        calls: pa.int64() = 0

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            turned = np.arange(len(index))[::-1]
            out = rows.take(pa.array(turned)).rename_columns(["k", "n"])
            return {"calls": state["calls"].to_numpy() + 1}, out, turned

    rows: Rows = [(key, n) for n in range(9) for key in ("a", "bb", "ccc", "d")]
    digests = set()
    for call_rows, size in ((19, 1), (25, 5), (1000, 100)):
        monkeypatch.setattr(gathering, "CALL_ROWS", call_rows)
        line = Line(Backwards, str(tmp_path / str(size)), keep_order=True)
        given, report = line.batch(chunks_of(rows, size))
        assert len(given) == len(rows)
        digests.add(report.output_digest)
    assert len(digests) == 1 and "" not in digests


def test_unchanged_keys_write_nothing(tmp_path: Path) -> None:
    class Seldom(braided.ColumnOperator):
        n: pa.int64() = 0

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            most = np.zeros(len(state), int)
            np.maximum.at(most, index, rows["v"].to_numpy())
            return {"n": np.maximum(state["n"].to_numpy(), most)}

    line = Line(Seldom, str(tmp_path))
    _, report = line.batch(chunks_of([("a", 5), ("bb", 0)], 10))
    assert report.keys_added == 1, "a key that is as new has no state"
    assert line.batch(chunks_of([("a", 3), ("bb", 0)], 10))[1].log is None
    _, report = line.batch(chunks_of([("a", 3), ("bb", 1)], 10))
    assert report.log is not None and report.keys_added == 1


def test_what_numpy_masks_is_null_and_lists_may_be_empty(tmp_path: Path) -> None:
    class Masks(braided.ColumnOperator):
        n: pa.int64() = 0
        pair: pa.list_(pa.float64(), 2) = None
        empty: pa.list_(pa.float64()) = None

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            hidden = np.ma.array([7], mask=[True])
            pair = np.ma.array([[1.0, 2.0]], mask=[[False, True]])
            out = {"k": rows["k"], "n": np.ma.array([5], mask=[True])}
            return {"n": hidden, "pair": pair, "empty": np.empty((1, 0))}, out

    line = Line(Masks, str(tmp_path))
    assert line.batch(chunks_of([("a", 1)], 1))[0] == [{"k": "a", "n": None}]
    assert line.stored()[0] == {"a": {"n": None, "pair": [1.0, None], "empty": []}}


@pytest.mark.parametrize("nothing", [[], (), np.zeros(0, int), np.zeros(1, bool)])
def test_an_output_without_rows_has_no_positions(nothing: Any, tmp_path: Path) -> None:
    class Silent(braided.ColumnOperator):
        n: pa.int64() = 0

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            return {"n": state["n"].to_numpy() + 1}, {"k": [], "n": []}, nothing

    line = Line(Silent, str(tmp_path), keep_order=True)
    assert line.batch(chunks_of([("a", 1)], 1))[0] == []
    assert line.stored()[0] == {"a": {"n": 1}}


# --- what can't be ----------------------------------------------------------------------------


def failing(answer: Any) -> Any:
    class Wrong(braided.ColumnOperator):
        n: pa.int64() = 0
        x: pa.list_(pa.float32(), 2) = None

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            return answer(self, state, rows, index)

    return Wrong


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (lambda *_: 1 / 0, OperatorError, r"(?s)'acts' raised ZeroDivisionError.*k='a'.*1 / 0"),
        (lambda self, *_: self.n, OperatorError, r"state\['n'\]"),
        (lambda *_: {"n": [1]}, StateValueError, "1 values of 'n' for 2 keys"),
        (lambda *_: {"n": ["x", "y"]}, StateValueError, "does not fit the field's type int64"),
        (lambda *_: {"n": [0.5, 1.0]}, StateValueError, "does not fit the field's type int64"),
        (lambda *_: {"n": np.array([0.5, 1.0])}, StateValueError, "ndarray of float64 for 'n'"),
        (lambda *_: {"n": np.zeros((2, 2))}, StateValueError, "does not fit"),
        (lambda *_: {"x": np.zeros((2, 3))}, StateValueError, "lists have 3 items"),
        (lambda *_: {"x": np.zeros((2, 0))}, StateValueError, "lists have 0 items"),
        (lambda *_: {"x": np.full((2, 2), 1e300)}, StateValueError, "too large for a float"),
        (lambda *_: {"n": ["7", "8"]}, StateValueError, "string is not turned into int64"),
        (lambda *_: {"n": np.int64(5)}, StateValueError, "does not fit"),
        (lambda *_: {"remove": [2, 0]}, StateValueError, "neither 0 nor 1"),
        (lambda *_: {"m": [1, 2]}, StateValueError, "'m', which is no field of the class"),
        (lambda *_: {"due": [1, 2]}, StateValueError, "a class that has onDue"),
        (lambda *_: 5, OutputSchemaError, "returned int 5"),
        (lambda *_: (None, None, None, None), OutputSchemaError, "tuple of 4"),
        (lambda *_: (None, {"k": ["a"]}), OutputSchemaError, "1 rows for 3 rows and 2 keys"),
        (
            lambda *_: (None, {"k": ["a", "b"], "m": [1, 2]}),
            OutputSchemaError,
            r"columns \['k', 'm'\]",
        ),
        (
            lambda *_: (None, {"k": ["a"], "n": ["x"]}, [0]),
            OutputSchemaError,
            "output column 'n'",
        ),
        (lambda *_: (None, {"k": ["a"], "n": [1]}, [3]), OutputSchemaError, r"not in 0..2"),
        (lambda *_: (None, {"k": ["a"], "n": [1]}, [0, 1]), OutputSchemaError, "2 positions"),
        (lambda *_: (None, {"k": ["a"], "n": [1]}, 0), OutputSchemaError, "int 0 as positions"),
    ],
)
def test_what_a_hook_does_wrong_is_told_with_operator_key_and_batch(
    answer: Any, error: Any, said: str, tmp_path: Path
) -> None:
    line = Line(failing(answer), str(tmp_path))
    with pytest.raises(error, match=said) as raised:
        line.batch(chunks_of([("a", 5), ("bb", 0), ("a", 1)], 10))
    assert "'acts'" in str(raised.value) and "k='a'" in str(raised.value)
    assert "batch" in str(raised.value)


# --- what state and output may be -------------------------------------------------------------


def pandas_of(columns: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    "shape", [dict, pa.table, pa.RecordBatch.from_pydict, pandas_of], ids=lambda each: each.__name__
)
def test_state_and_output_may_be_anything_with_columns(shape: Any, tmp_path: Path) -> None:
    def answer(self: Any, state: Any, rows: Any, index: Any) -> Any:
        keys = self.keys["k"].to_pylist()
        return shape({"n": [4, 5]}), shape({"n": [1, 2], "k": keys})

    line = Line(failing(answer), str(tmp_path))
    given, _ = line.batch(chunks_of([("a", 5), ("bb", 0), ("a", 1)], 10))
    assert given == [{"k": "a", "n": 1}, {"k": "bb", "n": 2}]
    fields, _ = line.stored()
    assert fields == {"a": {"n": 4, "x": None}, "bb": {"n": 5, "x": None}}


def test_a_mask_says_which_rows_the_output_came_from(tmp_path: Path) -> None:
    def answer(self: Any, state: Any, rows: Any, index: Any) -> Any:
        mask = rows["v"].to_numpy() > 0
        return {"x": np.ones((2, 2))}, rows.filter(pa.array(mask)).rename_columns(["k", "n"]), mask

    line = Line(failing(answer), str(tmp_path), keep_order=True)
    given, _ = line.batch(chunks_of([("a", 5), ("bb", 0), ("a", 1)], 10))
    assert [(row["__braided_o1"], row["k"], row["n"]) for row in given] == [
        (0, "a", 5),
        (2, "a", 1),
    ]


def test_times_without_a_zone_are_utc_in_numpy_and_local_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Times(braided.ColumnOperator):
        n: pa.int64() = 0

        def onRows(self, state: Any, rows: Any, index: Any) -> Any:
            assert self.batchTime == np.datetime64(3_600_000_000, "us")
            return {"due": answers[self.keys["k"][0].as_py()]}

        def onDue(self, state: Any, due: Any) -> None:
            """Never asked."""

    noon = datetime(2024, 1, 1, 12)
    answers = {
        "a": np.array([noon], "datetime64[us]"),
        "bb": [noon],
        "ccc": pa.array([noon.replace(tzinfo=UTC)]),
        "dddd": [noon.replace(tzinfo=timezone(timedelta(hours=1)))],
    }
    monkeypatch.setenv("TZ", "Etc/GMT-3")
    time.tzset()
    try:
        line = Line(Times, str(tmp_path))
        for key in answers:
            line.batch(chunks_of([(key, 1)], 1), now_ms=3_600_000, due=False)
        _, timers = line.stored()
    finally:
        monkeypatch.undo()
        time.tzset()
    utc_ms = int(noon.replace(tzinfo=UTC).timestamp() * 1000)
    hour = 3_600_000
    assert timers == {"a": utc_ms, "bb": utc_ms - 3 * hour, "ccc": utc_ms, "dddd": utc_ms - hour}


def test_turns_have_each_key_once_and_its_rows_in_order() -> None:
    index = np.array([0, 0, 0, 1, 2, 2])
    assert [turn.tolist() for turn in braided.turns(index)] == [[0, 3, 4], [1, 5], [2]]
    assert list(braided.turns(np.array([], int))) == []


def test_a_matrix_of_lists_has_nan_for_null() -> None:
    column = pa.chunked_array([pa.array([[1, 2], None], pa.list_(pa.float32(), 2))] * 2)
    found = braided.matrix(column.slice(1, 2))
    assert np.isnan(found[0]).all() and found[1].tolist() == [1, 2]


# --- keys that move ---------------------------------------------------------------------------


def test_a_key_that_changes_slots_takes_state_and_due_along(tmp_path: Path) -> None:
    line = Line(Acts, str(tmp_path))
    line.batch(chunks_of([("a", REMIND)], 10))
    [key] = line.program.keys.encode_batch([pa.array(["a"])])
    moves = {"acts": moved([(key, slot_of("a"), 3)])}
    given, _ = line.batch([], now_ms=50, moves=moves)
    assert given == [{"k": "a", "n": -11}]
    fields, timers = line.stored()
    assert fields["a"]["n"] == 1001 and not timers


# --- a new version of the class ---------------------------------------------------------------


class Reminded(braided.ColumnOperator):
    """Every key is due at 10 ms, and told the time at which it was."""

    n: pa.int64() = 0

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        return {"n": state["n"].to_numpy() + 1, "due": np.full(len(state), 10_000, "M8[us]")}

    def onDue(self, state: Any, due: Any) -> Any:
        return None, {"k": self.keys["k"], "n": due.cast("int64").to_numpy() // 1000}


class RemindedLater(Reminded):
    """The same, but those of before are due at 30 ms."""

    more: pa.int64() = 0

    @classmethod
    def upgrade(cls, old: Any) -> Any:
        return {"due": np.full(old.num_rows, 30_000, "M8[us]")}

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        return {"more": state["more"].to_numpy() + (rows["v"].to_numpy()[:1] == SILENT)}


@pytest.mark.parametrize("rows", [[], [("a", 1)], [("a", SILENT)]])
def test_timers_follow_what_upgrade_says_of_due(rows: Rows, tmp_path: Path) -> None:
    """Whether a key comes up because of rows, which change it or not, or of its old timer."""
    line = Line(Reminded, str(tmp_path))
    line.batch(chunks_of([("a", 1)], 10))
    assert line.stored()[1] == {"a": 10}
    later = column_codec(RemindedLater)
    *earlier, state = evolve(later, "acts", (line.spec.meta.state,))
    meta = msgspec.structs.replace(line.spec.meta, state=state, earlier=tuple(earlier))
    line.spec = replace(line.spec, meta=meta)
    line.program = replace(line.program, operator=RemindedLater)
    if rows:
        assert line.batch(chunks_of(rows, 10), now_ms=5)[0] == []
        assert line.stored()[1] == {"a": 30}
    assert line.batch([], now_ms=20)[0] == []
    assert line.stored()[1] == {"a": 30}
    assert line.batch([], now_ms=30)[0] == [{"k": "a", "n": 30}]
    assert line.stored()[1] == {}
    assert line.batch([], now_ms=40)[0] == []


# --- keys that are split ----------------------------------------------------------------------


class Merges(braided.ColumnOperator):
    n: pa.int64() = 0
    most: pa.int64() = None

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        most = np.full(len(state), -1)
        np.maximum.at(most, index, rows["v"].to_numpy())
        before = state["most"].fill_null(-1).to_numpy()
        return {"n": state["n"].to_numpy() + np.bincount(index), "most": np.maximum(most, before)}

    def merge(self, state: Any, other: Any) -> Any:
        most = [
            max((each for each in pair if each is not None), default=None)
            for pair in zip(state["most"].to_pylist(), other["most"].to_pylist(), strict=True)
        ]
        return {"n": state["n"].to_numpy() + other["n"].to_numpy(), "most": most}


class MergesByFields(braided.ColumnOperator):
    n: pa.int64() = braided.merged("sum", default=0)
    most: pa.int64() = braided.merged("max", default=None)
    onRows = Merges.onRows


@pytest.mark.parametrize("operator", [Merges, MergesByFields])
def test_shares_of_a_split_key_are_merged_into_its_state(operator: Any, tmp_path: Path) -> None:
    line = Line(operator, str(tmp_path))
    line.batch(chunks_of([("a", 7), ("a", 3), ("bb", 1)], 10))
    [key] = line.program.keys.encode_batch([pa.array(["a"])])
    home = slot_of("a")
    split = {"acts": [SplitKey(key, home, 0)]}
    rows: Rows = [("a", n) for n in range(20)] + [("bb", 9)]
    shares = chunks_of(rows, 6, lambda number, key: number % 3 if key == "a" else slot_of(key))
    _, report = line.batch(shares, split=split)
    [whole] = report.wholes
    assert len(report.partials) == 3
    fields, _ = line.stored()
    assert fields["a"] == {"n": 2, "most": 7} and fields["bb"] == {"n": 2, "most": 9}
    step = ColumnStep(
        "acts", operator, ROW[:1], GroupingKeys(("k",)), ROW, OUTPUT, "ProcessingTime"
    )
    merge = step.merge_parts
    assert merge is not None
    meta = line.spec.meta
    batch = BatchSpec("t", 1, 0, 0, 0, {}, None)
    parts = [each.record for each in report.partials]
    merged = merge(meta, batch, key, whole.record, parts)  # type: ignore[arg-type]
    columns, _ = column_codec(operator).read([merged])
    assert [column.to_pylist() for column in columns] == [[22], [19]]


def test_an_operator_with_due_times_can_not_be_split() -> None:
    step = ColumnStep("acts", Acts, ROW[:1], GroupingKeys(("k",)), ROW, OUTPUT, "ProcessingTime")
    assert step.merge_parts is None and step.fires
    assert replace(step, operator=Sizes).merge_parts is None


def test_to_put_rows_in_order_and_to_divide_them_is_work_for_their_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.spends(place_order, "_descends", 60_000)
    clock.spends(gathering, "_divisions", 4_000)
    # In slots 1 and 2. The last place of a chunk may go on, and is put in order by itself.
    chunks = chunks_of([("a", 1), ("a", 2), ("a", 3), ("bb", 1)], 10)
    _, report = Line(Acts, str(tmp_path)).batch(chunks, due=False)
    busy_ns = {slot.slot: slot.busy_ns for slot in report.slots}
    assert report.busy_ns == 2 * 60_000 + 4_000
    assert busy_ns == {1: report.busy_ns * 3 // 4, 2: report.busy_ns // 4}

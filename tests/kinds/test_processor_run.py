"""StatefulProcessors in a task, batch by batch on plain Arrow chunks, without Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    ValueState,
)
from pyspark.sql.types import StructType

from braided.errors import (
    CheckpointMismatchError,
    OperatorError,
    OutputSchemaError,
    StateValueError,
)
from braided.kinds.processor.contents import ProcessorContents
from braided.kinds.processor.handle import DriverHandle, ProcessorHandle
from braided.store.durable.local_store import LocalStore
from support.channel_runs import open_reads
from support.processors.flow import SETTINGS, ProcessorFlow

OUT = "k string, n long, said string"


class Counting(StatefulProcessor):
    """Counts the rows of a key in all three kinds of state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.seen = handle.getListState("seen", "v long")
        self.by = handle.getMapState("by", "odd boolean", "n int")
        assert isinstance(self.total, ValueState)
        assert isinstance(self.seen, ListState)
        assert isinstance(self.by, MapState)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        assert type(key) is tuple
        total = (self.total.get() or (0,))[0]
        for row in rows:
            assert isinstance(row, Row) and row.k == key[0]
            total += 1
            self.seen.appendValue((row.v,))
            odd = (row.v % 2 == 1,)
            before = self.by.getValue(odd)
            self.by.updateValue(odd, ((0 if before is None else before.n) + 1,))
        self.total.update((total,))
        said = f"{[v for (v,) in self.seen.get()]} {sorted(self.by.iterator())}"
        yield Row(k=key[0], n=total, said=said)


def test_state_goes_from_batch_to_batch(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Counting(), OUT)
    assert flow.run([("a", 1), ("a", 2), ("b", 3)]) == [
        {"k": "a", "n": 2, "said": "[1, 2] [((False,), (1,)), ((True,), (1,))]"},
        {"k": "b", "n": 1, "said": "[3] [((True,), (1,))]"},
    ]
    assert flow.run([("a", 4)]) == [
        {"k": "a", "n": 3, "said": "[1, 2, 4] [((False,), (2,)), ((True,), (1,))]"}
    ]


def test_a_batch_that_is_not_committed_leaves_no_trace(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Counting(), OUT)
    flow.run([("a", 1)])
    flow.run([("a", 2)], commit=False)
    assert [row["n"] for row in flow.run([("a", 3)])] == [2]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_a_key_is_called_once_however_its_rows_are_cut(tmp_path: Path, chunk: int) -> None:
    flow = ProcessorFlow(tmp_path, Counting(), OUT)
    rows = [(k, v) for k in "abcde" for v in range(4)]
    assert sorted((row["k"], row["n"]) for row in flow.run(rows, chunk=chunk)) == [
        (k, 4) for k in "abcde"
    ]


class Impatient(Counting):
    """Reads the first row only."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        return [Row(k=key[0], n=next(rows).v)]


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_rows_that_a_processor_leaves_are_skipped(tmp_path: Path, chunk: int) -> None:
    flow = ProcessorFlow(tmp_path, Impatient(), OUT)
    rows = [(k, v) for k in "abc" for v in (7, 8, 9)]
    given = flow.run(rows, chunk=chunk)
    assert sorted((row["k"], row["n"], row["said"]) for row in given) == [
        (k, 7, None) for k in "abc"
    ]


class Frames(Counting):
    """Gives out a frame for each frame, and keeps the sum."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        total = (self.total.get() or (0,))[0]
        for frame in rows:
            assert list(frame.columns) == ["k", "v"] and list(frame.index) == [*range(len(frame))]
            total += frame["v"].sum()  # a number of numpy's
            self.total.update((total,))
            yield pd.DataFrame({"n": [total], "k": [key[0]], "said": [str(len(frame))]})


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_frames_are_not_cut_where_chunks_are(tmp_path: Path, chunk: int) -> None:
    flow = ProcessorFlow(tmp_path, Frames(), OUT, pandas=True)
    rows = [(k, v) for k in "abc" for v in (1, 2, 3)]
    for total in (6, 12):
        given = flow.run(rows, chunk=chunk)
        assert sorted(map(str, given)) == sorted(
            str({"k": k, "n": total, "said": "3"}) for k in "abc"
        )


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_frames_end_where_they_have_the_rows_or_the_bytes_that_spark_allows(
    tmp_path: Path, chunk: int
) -> None:
    def lengths(**limits: int) -> dict[str, list[int]]:
        settings = replace(SETTINGS, **limits)
        home = tmp_path / str(limits)
        flow = ProcessorFlow(home, Frames(), OUT, pandas=True, settings=settings)
        found: dict[str, list[int]] = {"a": [], "b": []}
        for row in flow.run([("a", 1)] * 7 + [("b", 2)] * 3, chunk=chunk):
            found[row["k"]].append(int(row["said"]))
        return found

    row_bytes = 8 + 4 + 1  # the number; the text and where it ends, about which Arrow adds some
    assert lengths(rows_max=3) == {"a": [3, 3, 1], "b": [3]}
    assert lengths(bytes_max=1) == {"a": [1] * 7, "b": [1] * 3}
    assert lengths(bytes_max=4 * row_bytes, rows_max=2) == {"a": [2, 2, 2, 1], "b": [2, 1]}
    by_bytes = lengths(bytes_max=4 * row_bytes)
    assert 3 <= by_bytes["a"][0] <= 4 and sum(by_bytes["a"]) == 7


class Scribbling(Frames):
    """Changes the frame that it was given in every way there is."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            assert type(frame.index) is pd.RangeIndex and [*map(str, frame.dtypes)] == [
                "object",
                "int64",
            ]
            before = frame["v"].tolist()
            frame.loc[0, "v"] = -1
            frame["v"] += 100
            frame["more"] = "x"
            frame.index = frame.index + 7
            said = f"{before} {frame['v'].tolist()} {frame.columns.tolist()}"
            yield pd.DataFrame([[said, key[0]]], columns=["said", "k"]).assign(n=len(frame))


@pytest.mark.filterwarnings("error")
def test_a_frame_is_the_processors_own(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Scribbling(), OUT, pandas=True)
    given = flow.run([(k, v) for k in "abc" for v in (1, 2)], chunk=100)
    said = "[1, 2] [99, 102] ['k', 'v', 'more']"
    assert sorted(map(str, given)) == [str({"k": k, "n": 2, "said": said}) for k in "abc"]


class Alarm(StatefulProcessor):
    """A timer for each row, at its value."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v < 0:
                self.handle.deleteTimer(-row.v)
            else:
                self.handle.registerTimer(row.v)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n = (self.fired.get() or (0,))[0] + 1
        self.fired.update((n,))
        left = list(self.handle.listTimers())
        ms = expiredTimerInfo.getExpiryTimeInMs()
        if ms == 50:
            self.handle.registerTimer(51)
        yield Row(k=key[0], n=ms, said=f"{n} {left}")


@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
def test_timers_fire_in_the_order_of_time_also_without_rows(tmp_path: Path, mode: str) -> None:
    flow = ProcessorFlow(tmp_path, Alarm(), OUT, time_mode=mode)

    def at(ms: int, rows: list[tuple[str, int]]) -> list[tuple[str, int, str]]:
        given = flow.run(rows, now_ms=ms, watermark_ms=ms)
        return [(row["k"], row["n"], row["said"]) for row in given]

    assert at(5, [("a", 30), ("b", 20), ("a", 10), ("a", 5), ("b", 40)]) == [
        ("a", 5, "1 [5, 10, 30]")
    ]
    assert at(30, [("b", -40), ("c", 50)]) == [
        ("a", 10, "2 [10, 30]"),
        ("b", 20, "1 [20]"),
        ("a", 30, "3 [30]"),
    ]
    # One that a handler sets waits for the next batch, even if its time has come.
    assert at(60, []) == [("c", 50, "1 [50]")]
    assert at(61, []) == [("c", 51, "2 [51]")]
    assert at(99, []) == []
    assert not any(place[:1] == b"t" for place in flow.stored())


class Fading(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "v long", 10)
        self.seen = handle.getListState("seen", "v long", 10)
        self.by = handle.getMapState("by", "v long", "n long", 10)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        said = f"{self.last.get()} {list(self.seen.get())} {sorted(self.by.keys())}"
        for row in rows:
            self.last.update((row.v,))
            self.seen.appendValue((row.v,))
            self.by.updateValue((row.v,), (1,))
        yield Row(k=key[0], n=0, said=said)


def test_what_has_expired_is_not_there_and_leaves_the_slot(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Fading(), OUT)

    def at(ms: int, rows: list[tuple[str, int]]) -> list[str]:
        return [row["said"] for row in flow.run(rows, now_ms=ms)]

    assert at(0, [("a", 1)]) == ["None [] []"]
    assert at(5, [("a", 2)]) == ["(1,) [(1,)] [(1,)]"]
    assert at(10, [("a", 3)]) == ["(2,) [(2,)] [(2,)]"]
    assert at(30, [("a", 4)]) == ["None [] []"]
    # Another key of that slot comes by when all has expired.
    assert at(90, [("a", 5)]) == ["None [] []"]
    assert sorted(place[:1] for place in flow.stored()) == [b"k", b"l", b"m", b"x", b"x", b"x"]


class Rich(StatefulProcessor):
    schema = "n int, x double"

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("s", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        said = repr(self.state.get())
        for row in rows:
            self.write(row)
        yield Row(k=key[0], n=0, said=said)

    def write(self, row: Row) -> None:
        self.state.update((row.v, 0.5))


class Wider(Rich):
    schema = "x double, more string, n long"

    def write(self, row: Row) -> None:
        self.state.update((1.5, "more", 1 << 40))


class Fewer(Rich):
    schema = "n double"

    def write(self, row: Row) -> None:
        self.state.update((2.5,))


class Other(Rich):
    schema = "n string, x double"


class Strict(Rich):
    schema = "n int not null, x double"


def test_fields_may_come_go_move_and_widen(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Rich(), OUT)
    flow.run([("a", 1), ("b", 2)])
    flow.restart(Wider())
    assert [row["said"] for row in flow.run([("a", 0)])] == ["(0.5, None, 1)"]
    flow.restart(Fewer())
    given = sorted(row["said"] for row in flow.run([("a", 0), ("b", 0)]))
    assert given == ["(1099511627776.0,)", "(2.0,)"]
    for changed in (Other, Strict):
        with pytest.raises(CheckpointMismatchError, match=r"INVALID_VALUE_SCHEMA_EVOLUTION.*'n'"):
            flow.restart(changed())


class Listed(Rich):
    def init(self, handle: Any) -> None:
        self.state = handle.getListState("s", self.schema)


class Anew(Rich):
    def init(self, handle: Any) -> None:
        handle.deleteIfExists("s")
        self.state = handle.getValueState("t", self.schema)


def test_a_variable_keeps_its_kind_until_it_is_deleted(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Rich(), OUT)
    flow.run([("a", 1)])
    with pytest.raises(CheckpointMismatchError, match=r"value state .* declared as list state"):
        flow.restart(Listed())
    flow.restart(Anew())
    flow.run([("a", 1)])
    flow.restart(Rich())
    assert [row["said"] for row in flow.run([("a", 1)])] == ["None"]


class Dropped(Rich):
    """Uses a variable that it has deleted."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.deleteIfExists("s")


def test_a_variable_that_is_used_after_it_was_deleted_is_refused_in_every_batch(
    tmp_path: Path,
) -> None:
    flow = ProcessorFlow(tmp_path, Dropped(), OUT)
    for _ in range(2):
        with pytest.raises(OperatorError, match="getting value state: Value state s is not init"):
            flow.run([("a", 1)])
    flow.restart(Rich())
    flow.run([("a", 1)])
    for _ in range(2):
        flow.restart(Dropped())
        flow.run([])
    assert len(flow.meta.history) == 2  # a start that changes nothing leaves no version
    flow.restart(Rich())
    assert [row["said"] for row in flow.run([("a", 1)])] == ["None"]


class Elsewhere(Rich):
    """Declares other variables in tasks than on the driver."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        if isinstance(handle, ProcessorHandle):
            handle.getListState("more", StructType().add("n", "integer"))


def test_a_variable_that_only_tasks_declare_is_refused(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Elsewhere(), OUT)
    with pytest.raises(OperatorError, match=r"list state: 'more' was declared otherwise, or not"):
        flow.run([("a", 1)])


class Bad(StatefulProcessor):
    def __init__(self, what: Any) -> None:
        self.what = what

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n int, d decimal(4,2)")
        self.items = handle.getListState("items", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        return self.what(self, key)


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (lambda p, k: [Row(k=1, n=1)], OutputSchemaError, "column 'k': expected string, got 1"),
        (lambda p, k: [(1, 2)], OutputSchemaError, "must give out Rows with names"),
        (lambda p, k: None, OutputSchemaError, "returned NoneType"),
        (lambda p, k: p.n.update((1 << 40, None)), StateValueError, "'n' takes int, not 1099"),
        (lambda p, k: p.n.update((1,)), StateValueError, "2 fields are required while 1 values"),
        (lambda p, k: p.n.update((1, Decimal("123.4"))), StateValueError, "'d' takes decimal"),
        (lambda p, k: p.n.update(1), OperatorError, r"'int' object is not iterable: .* \(1,\)"),
        (lambda p, k: p.n.update("abc"), StateValueError, "2 fields .* counts as its characters"),
        (lambda p, k: p.items.put([]), OperatorError, "EMPTY_LIST_VALUE"),
        (lambda p, k: p.handle.getValueState("m", "n int"), OperatorError, "INVALID_HANDLE_STATE"),
        (lambda p, k: p.handle.registerTimer(1), OperatorError, "INVALID_TIME_MODE"),
        (lambda p, k: 1 // 0, OperatorError, r"ZeroDivisionError(.|\n)*'a'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, what: Any, error: Any, said: str) -> None:
    flow = ProcessorFlow(tmp_path, Bad(what), OUT, time_mode="None")
    with pytest.raises(error, match=said):
        flow.run([("a", 1)])
    assert open_reads(tmp_path) == 0


def test_wrong_declarations_are_refused_in_sparks_words() -> None:
    handle = DriverHandle("None")
    from braided.testing.ddl import parse_schema

    schema = parse_schema("n int")
    handle.getValueState("n", schema)
    with pytest.raises(PySparkRuntimeError, match=r"DUPLICATE_STATE_VARIABLE_DEFINED.* n has"):
        handle.getListState("n", schema)
    with pytest.raises(PySparkRuntimeError, match="Cannot use TTL for state=m in timeMode=None"):
        handle.getValueState("m", schema, 1000)
    with pytest.raises(PySparkRuntimeError, match="DURATION_MUST_BE_POSITIVE"):
        DriverHandle("ProcessingTime").getMapState("m", schema, schema, -1)
    with pytest.raises(PySparkRuntimeError, match="INVALID_TIME_MODE"):
        handle.registerTimer(1)


def test_what_a_checkpoint_holds_of_a_processor_can_be_read(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Counting(), OUT)
    flow.run([("a", 1), ("a", 2), ("b", 3)])
    view = flow.view.operators["P"]
    reader = ProcessorContents("P", view.meta)
    contents = reader.read(LocalStore(str(tmp_path / "braided")), view, 0, range(view.meta.slots))
    found = {key: state.values for keys in contents.values() for key, state in keys.items()}
    assert sorted(found.values()) == [
        ((1,), [(3,)], {(True,): (1,)}),
        ((2,), [(1,), (2,)], {(True,): (1,), (False,): (1,)}),
    ]
    assert reader.type.simpleString() == (
        "struct<total:struct<n:bigint>,seen:array<struct<v:bigint>>,"
        "by:map<struct<odd:boolean>,struct<n:int>>>"
    )
    totals = reader.column(list(found.values())).field("total")
    assert totals.to_pylist() == [{"n": n} for (n,), _, _ in found.values()]


class Mapping(StatefulProcessor):
    """Sets an entry per row, or drops all of them; says what there is."""

    def init(self, handle: Any) -> None:
        self.by = handle.getMapState("by", "u long", "n long", self.ttl_ms)

    def __init__(self, ttl_ms: int | None) -> None:
        self.ttl_ms = ttl_ms

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v < 0:
                self.by.clear()
            else:
                self.by.updateValue((row.v,), (10 * row.v,))
        said = f"{sorted(self.by.keys())} {self.by.getValue((1,))} {self.by.exists()}"
        yield Row(k=key[0], n=0, said=said)


@pytest.mark.parametrize("ttl_ms", [None, 1000])
@pytest.mark.parametrize("second", [4, -1])
def test_a_key_that_changes_slots_is_the_same_in_that_batch_and_later(
    tmp_path: Path, ttl_ms: int | None, second: int
) -> None:
    said = []
    for pinned in (False, True):
        flow = ProcessorFlow(tmp_path / str(pinned), Mapping(ttl_ms), OUT)
        flow.run([("hot", 1), ("hot", 2), ("hot", 3), ("b", 1)])
        if pinned:
            flow.pin("hot", 3)
        batches = [[("hot", second), ("b", 2)], [("hot", 7)]]
        said.append([sorted(map(str, flow.run(batch))) for batch in batches])
        said[-1].append(flow.stored())
    assert said[0] == said[1]


class OneFrame(StatefulProcessor):
    """Gives out one and the same frame with other values."""

    def init(self, handle: Any) -> None:
        self.frame = pd.DataFrame({"k": ["x"], "n": [0], "said": [""]})

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for value in frame["v"]:
                self.frame.loc[0, "n"] = value
                yield self.frame


def test_what_was_given_out_stays_as_it_was(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, OneFrame(), OUT, pandas=True)
    assert [row["n"] for row in flow.run([("a", 1), ("a", 2), ("b", 3)])] == [1, 2, 3]


class Naming(StatefulProcessor):
    """Names the index and the columns of the frames it is given; says what their names were."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            said = f"{frame.index.name} {frame.columns.name}"
            frame.index.name = frame.columns.name = "mine"
            yield pd.DataFrame({"k": [key[0]], "n": [1], "said": [said]})


def test_the_frame_of_a_key_knows_nothing_of_those_of_others(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, Naming(), OUT, pandas=True)
    given = flow.run([(key, 1) for key in "abcdefgh"], chunk=100)
    assert {row["said"] for row in given} == {"None None"}

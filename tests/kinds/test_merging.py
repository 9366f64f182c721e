"""Split keys without Spark: what the tasks of shares report, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

import braided
from braided.errors import OperatorDefinitionError, OperatorError, StateValueError
from braided.flow.route import GroupingKeys
from braided.kinds.operator.divert import Diverting
from braided.kinds.operator.key_by_key import KeyByKey
from braided.kinds.operator.merging import merge_parts
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.kinds.operator.step import OperatorStep
from braided.kinds.operator.way import Way
from braided.kinds.operator.whole_keys import WholeKeys
from braided.operator.definition import state_codec
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.runs import RunFile
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, SplitKey, TaskSpec

ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
HOME = 2


class Sketch(braided.Operator):
    total: int = 0
    values: list[int] = []  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        self.total += row.v
        self.values.append(row.v)
        yield row

    def merge(self, other: Sketch) -> None:
        self.total += other.total
        self.values = sorted(self.values + other.values)


def program(operator: type[braided.Operator]) -> Program:
    return Program(
        name="sketch",
        operator=operator,
        time_mode="ProcessingTime",
        input=ROW,
        key=StructType(ROW.fields[:1]),
        key_positions=(0,),
        output=ROW,
    )


SKETCH = program(Sketch)


def encoded(key: str) -> bytes:
    (made,) = SKETCH.keys.encode_batch([pa.array([key])])
    return made


def batch(number: int = 3, **more: Any) -> BatchSpec:
    return BatchSpec("t", number, 1_000, 0, 0, {}, None, **more)


def merged(operator: type[braided.Operator], whole: bytes | None, *parts: bytes) -> bytes | None:
    return merge_parts(program(operator), (), batch(), encoded("hot"), whole, parts)


def fields(operator: type[braided.Operator], record: bytes | None) -> dict[str, Any]:
    op = operator()
    state_codec(operator).load(op, record)
    return {field.name: getattr(op, field.name) for field in op._fields}


def dumped(operator: type[braided.Operator], **values: Any) -> bytes:
    op = operator()
    for name, value in values.items():
        setattr(op, name, value)
    return state_codec(operator).dump(op, ())


class Shares:
    """Batches of the one channel that has all slots, each on the runs of those before."""

    def __init__(self, directory: Path, way: type[Way]) -> None:
        meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
        packed: Any = None
        self._spec = TaskSpec(
            packed, meta, "flow", LocalStore(directory), None, SnapshotLimits(), 2, False
        )
        self._runs: tuple[RunFile, ...] = ()
        self._way = way

    def batch(self, rows: list[tuple[int, str, int]], split: list[SplitKey]) -> ChannelReport:
        """Rows with their slots, in chunks of three."""
        spec = batch(initial={"sketch": self._runs}, split={"sketch": split} if split else {})
        run = OperatorRun(Channel.open(self._spec, "sketch", spec, 0), SKETCH, self._way)
        rows = sorted(rows, key=lambda row: row[:2])
        chunks = [
            pa.record_batch(
                {
                    "k": pa.array([k for _, k, _ in part]),
                    "v": pa.array([v for _, _, v in part]),
                    "place": pa.array([slot << PLACE_SHIFT for slot, _, _ in part]),
                }
            )
            for part in (rows[begin : begin + 3] for begin in range(0, len(rows), 3))
        ]
        out = [row for chunk in run.process(iter(chunks)) for row in chunk.to_pylist()]
        assert [(row["k"], row["v"]) for row in out] == [(k, v) for _, k, v in rows]
        report = run.finish()
        self._runs += () if report.log is None else (report.log,)
        return report


@pytest.mark.parametrize("way", [KeyByKey, WholeKeys, Diverting])
def test_a_share_begins_as_new_and_leaves_nothing_in_its_slot(
    tmp_path: Path, way: type[Way]
) -> None:
    channel = Shares(tmp_path, way)
    hot = SplitKey(encoded("hot"), HOME, 0)
    assert channel.batch([(HOME, "hot", 1), (HOME, "cold", 2)], []).partials == ()
    # In slots that follow each other with nothing between them, and in that of its state too.
    rows = [(HOME, "hot", 5), (3, "hot", 7), (3, "hot", 9), (4, "hot", 11), (6, "cold", 1)]
    for _ in range(2):
        report = channel.batch(rows, [hot])
        (whole,) = report.wholes
        assert (whole.key, whole.slot) == (encoded("hot"), HOME)
        assert fields(Sketch, whole.record) == {"total": 1, "values": [1]}
        assert {each.slot: fields(Sketch, each.record)["values"] for each in report.partials} == {
            HOME: [5],
            3: [7, 9],
            4: [11],
        }
        assert [(s.slot, s.rows) for s in report.slots] == [(HOME, 1), (3, 2), (4, 1), (6, 1)]
        assert report.result() != channel.batch(rows[1:], [hot]).result()
    elsewhere = SplitKey(encoded("hot"), HOME, channel=1)
    assert channel.batch([], [elsewhere]).wholes == ()


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=1), min_size=1, max_size=6),
    st.lists(st.integers(-50, 50)),
)
def test_what_is_merged_is_what_a_whole_key_would_be(
    shares: list[list[int]], before: list[int]
) -> None:
    def of(values: list[int]) -> bytes:
        return dumped(Sketch, total=sum(values), values=sorted(values))

    whole = of(before) if before else None
    everything = sorted(before + [value for share in shares for value in share])
    record = merged(Sketch, whole, *map(of, shares))
    assert fields(Sketch, record) == {"total": sum(everything), "values": everything}


class Returns(Sketch):
    def merge(self, other: Sketch) -> Any:
        return Sketch()


class Raises(Sketch):
    def merge(self, other: Sketch) -> None:
        raise KeyError("none")


class Spoils(Sketch):
    def merge(self, other: Sketch) -> None:
        self.total = "many"  # type: ignore[assignment]


class Forgets(Sketch):
    def merge(self, other: Sketch) -> None:
        self.forget()


def test_a_merge_that_fails_says_where() -> None:
    part = dumped(Sketch, total=1)
    with pytest.raises(OperatorDefinitionError, match=r"sketch.merge returned Sketch"):
        merged(Returns, None, part)
    with pytest.raises(OperatorError, match=r"KeyError(.|\n)*hot(.|\n)*merge of 2 shares"):
        merged(Raises, None, part, part)
    with pytest.raises(StateValueError, match=r"hot.* after merge, batch 3"):
        merged(Spoils, None, part)
    assert merged(Forgets, part, part) is None


def test_merge_is_called_with_another_one() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"merge\(self, other\)"):

        class Wrong(Sketch):
            def merge(self) -> None:  # type: ignore[override]
                pass


def test_keys_with_timers_or_two_inputs_stay_whole() -> None:
    class Timed(Sketch):
        def onTimer(self, fired: Any) -> None:
            pass

    class Plain(braided.Operator):
        def onRow(self, row: Any) -> None:
            pass

    step = OperatorStep(
        "sketch", Sketch, SKETCH.key, GroupingKeys(("k",)), ROW, ROW, "ProcessingTime"
    )
    assert step.merge_parts is not None
    for other in (Timed, Plain):
        assert replace(step, operator=other).merge_parts is None
    assert replace(step, sides=(ROW, ROW)).merge_parts is None


class Declared(braided.Operator):
    count: int = braided.merged("sum", default=0)
    least: int | None = braided.merged("min", default=None)
    seen: set[str] = braided.merged("union", default=set())
    best: tuple[int, str] = braided.merged(max, default=(0, ""))

    def onRow(self, row: Any) -> None:
        self.count += 1


def test_fields_say_how_they_merge() -> None:
    one = dumped(Declared, count=2, seen={"a"}, best=(3, "c"))
    other = dumped(Declared, count=5, least=4, seen={"b"}, best=(1, "x"))
    for whole, *parts in ((one, other), (other, one), (None, one, other)):
        assert fields(Declared, merged(Declared, whole, *parts)) == {
            "count": 7,
            "least": 4,
            "seen": {"a", "b"},
            "best": (3, "c"),
        }
    assert fields(Declared, None) == {"count": 0, "least": None, "seen": set(), "best": (0, "")}


def test_all_fields_of_a_class_merge_or_none() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Half.total does not: write `total: "):

        class Half(Declared):
            total: int = 0

    with pytest.raises(OperatorDefinitionError, match=r"Both.merge does so too"):

        class Both(Declared):
            def merge(self, other: Any) -> None:
                pass

    with pytest.raises(OperatorDefinitionError, match=r"'sum', 'min', 'max', 'union'"):
        braided.merged("average", default=0)


def test_a_field_that_begins_with_what_counts_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Fives\.count begins with 5, which merging"):

        class Fives(braided.Operator):
            count: int = braided.merged("sum", default=5)

            def onRow(self, row: Any) -> None:
                self.count += 1

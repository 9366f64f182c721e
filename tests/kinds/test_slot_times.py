"""Which slot the time of a task is booked to, once its rows are done, by a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

import braided
from braided.kinds.operator import key_by_key, whole_keys
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.kinds.operator.whole_keys import WholeKeys
from braided.kinds.processor import run as processor_run
from braided.kinds.processor.output import RowEncoder
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.tasks import timers
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.output import OutputEncoder
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, TaskSpec
from support.channel_runs import finished
from support.processors.flow import ProcessorFlow
from support.spent_time import Clock

LOOK_NS, DECODE_NS, SWEEP_NS, FIRE_NS, ENCODE_NS = 100, 1000, 300, 10_000, 240_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """To look at a timer, to decode a list of keys, to sweep a slot, to fire a timer, to encode
    output: each takes its time, and all else takes none.
    """
    clock = Clock(monkeypatch)
    clock.spends(timers, "timer_parts", LOOK_NS)
    clock.spends(KeyCodec, "decode_batch", DECODE_NS)
    clock.spends(processor_run, "sweep", SWEEP_NS)
    clock.spends(OutputEncoder, "encode", ENCODE_NS)
    clock.spends(RowEncoder, "encode", ENCODE_NS)
    clock.spends(Fires, "fire", FIRE_NS)
    return clock


class Fires:
    """What the timers of operators here do."""

    @staticmethod
    def fire() -> None: ...


def _busy_ns(report: ChannelReport | None) -> dict[int, int]:
    assert report is not None
    return {slot.slot: slot.busy_ns for slot in report.slots}


class Reminds(braided.Operator):
    seen: int = 0

    def onRow(self, row: Any) -> None:
        self.seen += 1
        if row.v:
            self.setTimer(row.v)

    def onTimer(self, fired: Any) -> None:
        Fires.fire()


def _operator_report(home: Path, operator: Any, of_slots: list[tuple[int, str, int]]) -> Any:
    """Of a batch with a row for each slot, key and value."""
    rows = StructType([StructField("k", StringType()), StructField("v", LongType())])
    meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
    packed: Any = None
    spec = TaskSpec(packed, meta, "flow", LocalStore(home), None, SnapshotLimits(), 2, False)
    program = Program("o", operator, "ProcessingTime", rows, rows[:1], (0,), rows)
    batch = BatchSpec("t", 0, 50, 0, 0, {}, None)
    run = OperatorRun(Channel.open(spec, "o", batch, 0), program, WholeKeys)
    slots, keys, values = zip(*of_slots, strict=True)
    places = pa.array([slot << PLACE_SHIFT for slot in slots])
    chunk = pa.record_batch({"k": pa.array(keys), "v": pa.array(values), "place": places})
    return finished(run, [chunk])[1]


def test_an_operators_timers_cost_the_slots_that_have_them(tmp_path: Path) -> None:
    of_slots = [(1, "a", 20), (1, "b", 30), (2, "c", 40), (5, "d", 0)]
    # Three timers are looked at and decoded, for three slots, of which the last has none of them.
    look_ns, decode_ns = 3 * LOOK_NS, DECODE_NS
    assert _busy_ns(_operator_report(tmp_path, Reminds, of_slots)) == {
        1: look_ns * 2 // 4 + decode_ns * 2 // 3 + 2 * FIRE_NS,
        2: look_ns // 4 + decode_ns // 3 + FIRE_NS,
        5: look_ns // 4,
    }


class Gives(braided.Operator):
    n: int = 0

    def onRow(self, row: Any) -> Any:
        self.n += 1
        return [(row.k, row.v)] * row.v


@pytest.mark.parametrize("waiting", [100, 5])
def test_what_is_given_out_is_encoded_for_the_slots_that_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    for module in (key_by_key, whole_keys):
        monkeypatch.setattr(module, "OUTPUT_ROWS", waiting)
    of_slots = [(1, "a", 1), (1, "b", 2), (2, "c", 3), (2, "d", 1), (5, "e", 0), (6, "f", 1)]
    report = _operator_report(tmp_path, Gives, of_slots)
    # Once for all eight rows; or for six of them as soon as there are five, and then for the rest,
    # of which one is of the slot that the task was in.
    expected = {1: 3 / 8, 2: 4 / 8, 5: 0, 6: 1 / 8}
    if waiting == 5:
        expected = {1: 3 / 6, 2: 3 / 6 + 1 / 2, 5: 0, 6: 1 / 2}
    parts = {slot: busy_ns / ENCODE_NS for slot, busy_ns in _busy_ns(report).items()}
    assert parts == pytest.approx(expected, abs=0.001)


class GivesSome(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.v,))
            yield from [Row(k=key[0])] * row.v


def test_what_a_processor_gives_out_is_encoded_for_the_slots_that_it_is_of(tmp_path: Path) -> None:
    flow = ProcessorFlow(tmp_path, GivesSome(), "k string", time_mode="None")
    flow.run([("a", 3), ("b", 0), ("c", 1)])  # in slots 1, 2 and 3
    assert _busy_ns(flow.report) == {1: ENCODE_NS * 3 // 4, 2: 0, 3: ENCODE_NS // 4}


class Expires(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "v long", 10_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.v,))
            if row.v:
                self.handle.registerTimer(row.v)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        Fires.fire()
        yield from ()


def test_a_processors_timers_cost_the_slots_that_have_them_and_so_does_what_expires(
    tmp_path: Path,
) -> None:
    flow = ProcessorFlow(tmp_path, Expires(), "k string")
    flow.run([("a", 20)])  # in slot 1
    assert _busy_ns(flow.report) == {1: SWEEP_NS}
    flow.run([("b", 0), ("c", 0)], now_ms=50)  # in slots 2 and 3
    # Slot 1 is looked at because the driver says so, and is swept because its timer has fired.
    assert _busy_ns(flow.report) == {
        1: LOOK_NS // 3 + DECODE_NS + FIRE_NS + SWEEP_NS,
        2: LOOK_NS // 3 + SWEEP_NS,
        3: LOOK_NS // 3 + SWEEP_NS,
    }

"""A key that is pinned to another slot takes its record and its timers along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

import braided
from braided.kinds.operator.key_by_key import KeyByKey
from braided.kinds.operator.program import Program
from braided.kinds.operator.run import OperatorRun
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.runs import RunFile
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.channel import Channel as TaskChannel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.spec import BatchSpec, TaskSpec
from support.moved_keys import moved

DONOR, TAKER = 3, 5
ROW = StructType([StructField("k", IntegerType())])


class Reminds(braided.Operator):
    rows: int = 0

    def onRow(self, row: Any) -> None:
        self.rows += 1
        self.setTimer(100)

    def onTimer(self, fired: Any) -> Iterator[tuple[int, int]]:
        yield self.key.k, self.rows


PROGRAM = Program(
    name="reminds",
    operator=Reminds,
    time_mode="ProcessingTime",
    input=ROW,
    key=ROW,
    key_positions=(0,),
    output=StructType([StructField("k", IntegerType()), StructField("n", LongType())]),
)


class Channel:
    """Batches of one channel, each on the runs of those before."""

    def __init__(self, directory: Path) -> None:
        meta = OperatorMeta(ordinal=0, slots=8, key="", state="", codec="")
        packed: Any = None
        self._spec = TaskSpec(
            packed, meta, "flow", LocalStore(directory), None, SnapshotLimits(), 2, False
        )
        self._runs: tuple[RunFile, ...] = ()

    def batch(self, now_ms: int, keys: dict[int, int], **more: Any) -> list[tuple[int, int]]:
        """Rows of keys, each in a slot; what came out."""
        spec = BatchSpec("t", 0, now_ms, 0, 0, cut=None, initial={"reminds": self._runs}, **more)
        run = OperatorRun(TaskChannel.open(self._spec, "reminds", spec, 0), PROGRAM, KeyByKey)
        places = [slot << PLACE_SHIFT for slot in keys.values()]
        rows = pa.record_batch({"k": pa.array(keys, pa.int32()), "place": pa.array(places)})
        out = [tuple(r.values()) for chunk in run.process(iter([rows])) for r in chunk.to_pylist()]
        log = run.finish().log
        self._runs += () if log is None else (log,)
        return out


def test_a_timer_fires_once_and_in_its_new_slot(tmp_path: Path) -> None:
    channel = Channel(tmp_path)
    assert channel.batch(1, {7: DONOR, 8: DONOR}, due={}) == []
    (key,) = PROGRAM.keys.encode_batch([pa.array([7], pa.int32())])
    moves = {"reminds": moved([(key, DONOR, TAKER)])}
    assert channel.batch(2, {7: TAKER}, due={}, moves=moves) == []
    due = {"reminds": {0: [DONOR]}}
    assert channel.batch(200, {}, due=due) == [(8, 1)], "the other key's, which stayed"
    due = {"reminds": {0: [TAKER]}}
    assert channel.batch(300, {}, due=due) == [(7, 2)]
    assert channel.batch(400, {}, due={"reminds": {0: [DONOR, TAKER]}}) == []

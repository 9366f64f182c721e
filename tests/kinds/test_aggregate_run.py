"""The task of an aggregation, batch by batch on plain Arrow chunks, without Spark's JVM."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from braided.control.routing.table import RoutingTable
from braided.errors import OperatorError
from braided.kinds.aggregate import run as aggregate_run
from braided.kinds.aggregate.program import AggregateProgram
from braided.kinds.aggregate.run import AggregateRun
from braided.kinds.aggregate.task import AggregateSpec
from braided.query.commit import manifest_of
from braided.store.aggregates.merge import ColumnGroup
from braided.store.codec_names import COLUMNS
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.shipped_chains import shipped_chains
from braided.store.slots.channel_state import SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec
from braided.tasks.state_location import CacheSetting
from support.channel_runs import finished, open_reads
from support.spent_time import Clock

SLOTS = 4
START = datetime(2024, 1, 1, tzinfo=UTC)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
Row = tuple[Any, ...]


class Flow:
    """One channel that sums and counts, by a key or by a window and a key."""

    def __init__(self, home: Path, mode: str, timed: bool = False, sub_keys: int = 1) -> None:
        self.home, self.timed = home, timed
        groups = [("g0", pa.string()), ("g1", WINDOW)] if timed else [("g0", pa.string())]
        self.program = AggregateProgram(
            name="agg",
            mode=mode,
            groups=pa.schema(groups),
            partials=pa.schema([("p0", pa.int64()), ("p1", pa.int64())]),
            key_order=(1, 0) if timed else (0,),
            key_names=("window", "k") if timed else ("k",),
            timed=timed,
            parts=(ColumnGroup("add_checked", 1, "sum(v)"), ColumnGroup("add", 1, "count(1)")),
            sub_keys=sub_keys,
        )
        self.meta = OperatorMeta(ordinal=0, slots=SLOTS, key="", state="", codec=COLUMNS)
        self.manifests = ManifestLog(LocalStore(str(home / "root")))
        self.batch = -1
        self.watermark_s = 0
        self.keep_order = False
        self.reports: list[ChannelReport] = []

    @property
    def view(self) -> Any:
        return self.manifests.view_at(self.batch, "flow")

    def run(
        self, rows: list[Row], watermark_s: int = 0, chunk: int = 3, commit: bool = True
    ) -> list[Row]:
        """A batch: (key, [second at which its window ends,] sum, count) in, results out."""
        now = _ms(watermark_s)
        known = self.view.operators.get("agg")
        due = [s for s, ms in known.due.items() if ms <= now] if known and self.timed else []
        if self.program.mode == "complete":
            due = list(range(SLOTS))
        spec = BatchSpec(
            token="t",
            batch=self.batch + 1,
            batch_time_ms=0,
            watermark_ms=now,
            late_watermark_ms=_ms(self.watermark_s),
            due={"agg": {0: due}},
            cut=None,
            chains=shipped_chains(self.view.operators),
        )
        place = AggregateSpec(
            self.program,
            self.meta,
            "flow",
            LocalStore(self.home / "root"),
            CacheSetting(str(self.home)),
            SnapshotLimits(),
            2,
            self.keep_order,
        )
        task = AggregateRun(Channel.open(place, "agg", spec, 0), self.program)
        parts = [self._chunk(rows[i : i + chunk]) for i in range(0, len(rows), chunk)]
        given, report = finished(task, parts)
        self.reports.append(report)
        assert sum(slot.busy_ns for slot in report.slots) <= report.busy_ns
        if commit:
            table = RoutingTable.initial(SLOTS, 1)
            outcome = Outcome(
                batch=self.batch + 1,
                batch_time_ms=0,
                watermark_ms=now,
                metas={"agg": self.meta},
                tables={"agg": table},
                reports={"agg": [report]},
                outputs=(),
                fed_back=[],
                initial={},
            )
            self.manifests.write(manifest_of(outcome, self.view, "flow", "test", False))
            self.batch += 1
            self.watermark_s = watermark_s
        return sorted(row for out in given for row in self._rows(out))

    def _chunk(self, rows: list[Row]) -> pa.RecordBatch:
        keys = pa.array([row[0] for row in rows], pa.string())
        columns = [keys]
        if self.timed:
            ends = [START + timedelta(seconds=row[1]) for row in rows]
            windows = [{"start": end - timedelta(seconds=10), "end": end} for end in ends]
            columns.append(pa.array(windows, WINDOW))
        sums, counts = self.program.partials.types
        columns += [pa.array([row[-2] for row in rows], sums)]
        columns += [pa.array([row[-1] for row in rows], counts)]
        slots = np.array([len(row[0]) % SLOTS for row in rows], np.int64)
        columns.append(pa.array(slots << PLACE_SHIFT))
        names = [*self.program.groups.names, *self.program.partials.names, "place"]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _rows(self, out: pa.RecordBatch) -> list[Row]:
        tags = 3 if self.keep_order else 0
        names = [*self.program.groups.names, *self.program.partials.names]
        assert out.schema.names[tags:] == names
        out = out.select(names)
        rows = [tuple(row.values()) for row in out.to_pylist()]
        if self.timed:
            return [(k, round((w["end"] - START).total_seconds()), s, n) for k, w, s, n in rows]
        return rows


def _ms(seconds: int) -> int:
    return round((START + timedelta(seconds=seconds)).timestamp() * 1000) if seconds else 0


def test_results_that_a_batch_changed_are_given_out(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "update")
    rows = [("a", 1, 1), ("bb", 2, 1), ("ccc", None, 0), ("dddd", 4, 2), ("eeeee", 5, 1)]
    assert flow.run(rows) == rows
    assert flow.run([("a", 10, 1), ("ccc", 7, 1)]) == [("a", 11, 2), ("ccc", 7, 1)]
    assert flow.run([]) == []
    assert flow.view.operators["agg"].keys == 5


@pytest.mark.parametrize("mode", ["append", "complete", "update"])
def test_what_is_looked_for_and_given_out_at_the_end_costs_the_slots_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # Sub-keys have their results given out at the end as well.
    flow = Flow(tmp_path, mode, mode == "append", sub_keys=2 if mode == "update" else 1)
    rows = [(key, *([5] if flow.timed else []), 1, 1) for key in ("a", "b", "bb")]
    flow.run(rows)
    clock = Clock(monkeypatch)
    clock.spends(aggregate_run, "unwrap", 100)
    clock.spends(KeyCodec, "decode_batch", 3000)
    given = flow.run(rows if mode == "update" else [], watermark_s=9 if flow.timed else 0)
    assert len(given) == 3
    busy_ns = {slot.slot: slot.busy_ns for slot in flow.reports[-1].slots if slot.busy_ns}
    assert busy_ns == {1: 2 * (100 + 1000), 2: 100 + 1000}


def test_a_batch_that_was_not_committed_counts_for_nothing(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "update")
    flow.run([("a", 1, 1)])
    assert flow.run([("a", 10, 1)], commit=False) == [("a", 11, 2)]
    assert flow.run([("a", 10, 1)]) == [("a", 11, 2)]


def test_sub_keys_of_one_key_are_one_result_though_chunks_part_them(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "update", sub_keys=3)
    rows = [("a", 1, 1), ("a", 2, 1), ("bb", 3, 1), ("a", 4, 1), ("bb", 5, 1)]
    assert flow.run(rows, chunk=2) == [("a", 7, 3), ("bb", 8, 2)]
    assert flow.run([("a", 1, 1), ("a", 1, 1)]) == [("a", 9, 5)]


def test_complete_mode_gives_out_what_no_row_touched(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "complete")
    long_key = "k" * 600
    flow.run([("a", 1, 1), (long_key, 2, 1)])
    assert flow.run([("bb", 3, 1)]) == [("a", 1, 1), ("bb", 3, 1), (long_key, 2, 1)]


LONG = "l" * 600
"""Too long for the cache's keys: it lies under a digest."""


@pytest.mark.parametrize("mode", ["append", "update"])
def test_windows_go_when_the_watermark_passes_their_end(tmp_path: Path, mode: str) -> None:
    flow = Flow(tmp_path, mode, timed=True)
    first = [("a", 10, 1, 1), ("a", 20, 2, 1), ("bb", 10, 3, 1), (LONG, 10, 4, 1), (LONG, 20, 5, 1)]
    over, left = [row for row in first if row[1] == 10], [row for row in first if row[1] == 20]
    given = flow.run(first, watermark_s=5)
    assert given == ([] if mode == "append" else sorted(first))
    # One more row for a window that this batch's watermark passes: it is not late yet.
    given = flow.run([("a", 10, 10, 1)], watermark_s=10)
    assert given == (
        sorted([("a", 10, 11, 2), *over[1:]]) if mode == "append" else [("a", 10, 11, 2)]
    )
    view = flow.view.operators["agg"]
    assert view.keys == len(left)
    assert set(view.due.values()) == {_ms(20)}
    # Now it is late, and a chunk of nothing else is nothing to merge.
    assert flow.run([("a", 10, 10, 1), ("bb", 9, 1, 1)], watermark_s=10) == []
    assert flow.run([], watermark_s=60) == (sorted(left) if mode == "append" else [])
    view = flow.view.operators["agg"]
    assert (view.keys, view.bytes) == (0, 0)
    assert not [ms for ms in view.due.values() if ms is not None]


def test_records_of_a_window_share_one_timer(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "append", timed=True)
    flow.run([(f"k{n:03}", 10 + 10 * (n % 2), n, 1) for n in range(40)], watermark_s=1)
    state = Channel.open(
        AggregateSpec(
            flow.program,
            flow.meta,
            "flow",
            LocalStore(tmp_path / "root"),
            CacheSetting(str(tmp_path)),
            SnapshotLimits(),
            2,
            False,
        ),
        "agg",
        BatchSpec("t", 1, 0, 0, 0, {}, None, chains=shipped_chains(flow.view.operators)),
        0,
    ).state
    timers = [place for slot in range(SLOTS) for place, _ in state.slot(slot).scan(b"t")]
    assert len(timers) == 2  # all keys are in one slot, in two windows
    assert flow.view.operators["agg"].keys == 40


def test_an_overflow_names_the_key(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "update")
    flow.run([("a", 2**62, 1), ("bb", 1, 1)])
    with pytest.raises(OperatorError, match=r"sum\(v\) does not fit .* key \{'k': 'a'\}"):
        flow.run([("bb", 1, 1), ("a", 2**62, 1)])
    assert open_reads(tmp_path) == 0


def test_attempts_are_the_same_whatever_chance_decided_in_a_sketch(tmp_path: Path) -> None:
    from datasketches import kll_doubles_sketch

    def ranked(values: range) -> bytes:
        sketch = kll_doubles_sketch(8)
        for value in values:
            sketch.update(float(value))
        return bytes(sketch.serialize())

    flow = Flow(tmp_path, "update")
    flow.program = replace(
        flow.program,
        partials=pa.schema([("p0", pa.binary()), ("p1", pa.int64())]),
        parts=(
            ColumnGroup("kll", 1, "percentile_approx(v, 0.5)"),
            ColumnGroup("add", 1, "count(1)"),
        ),
    )
    flow.keep_order = True  # another operator reads what this one gives out
    long = "k" * 600
    flow.run([("a", ranked(range(50)), 1), (long, ranked(range(50)), 1)])
    added = [("a", ranked(range(50, 100)), 1), (long, ranked(range(70, 90)), 1)]
    for _ in range(6):
        flow.run(added, commit=False)
    attempts = flow.reports[1:]
    assert len({attempt.log.digest for attempt in attempts if attempt.log}) > 1
    assert len({attempt.result() for attempt in attempts}) == 1
    # All that chance has no part in is compared as ever.
    for other in (
        [*added[:1], (*added[1][:2], 2)],
        added[:1],
        [*added, ("b", ranked(range(1)), 1)],
    ):
        flow.run(other, commit=False)
        assert flow.reports[-1].result() != attempts[0].result()

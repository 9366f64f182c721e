"""How well `ds2`, `model` and `saso` follow noise, steps, a slow sink, a hot key and timers.

Rows arrive by a trace (`bench/traces.py`) whether or not anybody keeps up, and a policy chooses the
channels. Per trace and policy:

- `changes`: how often the number of channels changed;
- `overshoot`: the most channels that there were over the most that an oracle has which knows the
  load (`bench/oracle.py`);
- `late_batches`: those that took a tenth longer than the interval, or than the oracle's would where
  these do not end within it;
- `settle_batches`: how many batches after a change of load, or the start, the channels changed
  for the last time before the next; the worst of the trace;
- `cost_ratio`: channel-seconds over the oracle's, and `fixed_cost_ratio` over those of the fewest
  fixed channels that are enough for all of the trace;
- `identical`: whether what was given out is what a plain loop makes of the same rows;
- `bound`: what the progress said last about why more channels do not help.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided
from braided.bench.arrivals import FILE_S, arrive, show_rows
from braided.bench.costly_rows import (
    OUTPUT,
    SESSION_GAP_S,
    CostlyRows,
    CostlySessions,
    numbered,
    sessions,
)
from braided.bench.oracle import Plant
from braided.bench.session import INPUT, Arena, KeyNumbers, Progress, arena, median, with_data
from braided.bench.timeline import Timeline
from braided.bench.traces import Phases, Trace, keys_of, traces
from braided.errors import OptionError
from braided.spark.executors import local_cpus

__all__ = ["POLICIES", "ScaleSize", "cases", "measure", "run", "settle_batches"]

POLICIES = ("ds2", "model", "saso")
_NAME = "work"
_CLOSER = -1
"""A key whose one row comes long after all others, and ends their sessions."""
_STEADY = 3
"""Batches on as many channels, with nothing that waits, before the clock starts."""
_QUICK = {("double", "waiting", "ds2"), ("tenfold", "waiting", "saso"), ("key", "waiting", "model")}


@dataclass(frozen=True)
class ScaleSize:
    """How often batches come, how many channels there may be, and batches before the clock: so
    many, and as many more at most until channels are calm.
    """

    interval_s: float = 1.0
    most: int = 12
    first_batches: int = 5
    patience_batches: int = 15

    def options(self, policy: str) -> dict[str, Any]:
        """Those of a query whose channels the policy chooses."""
        if policy == "model":
            # Rows wait for an interval at most; as long again is for their batch.
            chosen = {"braided.latencyTarget": f"{round(2000 * self.interval_s)}ms"}
        else:
            chosen = {"braided.scale": policy}
        return {**chosen, "braided.channels.max": self.most}


@dataclass
class _ScaleFigures:
    """What a run showed."""

    row_sink_s: float
    outputs: list[Any] = field(default_factory=list)
    begun_s: float | None = None

    def take(self, df: DataFrame, batch: int) -> None:
        """The sink: as slow as it is, whoever it takes rows from."""
        rows = df.toArrow()
        until_s = time.perf_counter() + rows.num_rows * self.row_sink_s
        self.outputs.append(np.stack([rows["k"].to_numpy(), rows["n"].to_numpy()], axis=1))
        time.sleep(max(0.0, until_s - time.perf_counter()))


def run(quick: bool, progress: Progress, only: Sequence[str] = ()) -> dict[str, Any]:
    phases = Phases(2, 5, 4, 6) if quick else Phases(6, 12, 14, 30)
    chosen = cases(traces(phases), quick, only)
    size = ScaleSize(first_batches=4 if quick else 5)
    with arena("scale", cores=size.most) as place:
        # Nobody looks at it. To start a worker for each channel takes longer than a short run.
        _run(
            place,
            traces(Phases(1, 1, 0, 1))[1],
            "ds2",
            ScaleSize(first_batches=2, patience_batches=0),
        )
        progress("warm")
        figures = [measure(place, trace, policy, size, progress) for trace, policy in chosen]
    return {"cases": figures, "quick": quick}


def cases(of: Sequence[Trace], quick: bool, only: Sequence[str]) -> list[tuple[Trace, str]]:
    """Each trace with each policy; of the quick ones few, and of those asked for all that have the
    words of one of them, such as sink/saso.
    """
    every = [(trace, policy) for trace in of for policy in POLICIES]
    if not only:
        return [each for each in every if not quick or _words(*each) in _QUICK]
    wanted: list[tuple[Trace, str]] = []
    for asked in only:
        found = [each for each in every if set(asked.split("/")) <= set(_words(*each))]
        if not found:
            names = ", ".join("/".join(_words(*each)) for each in every)
            raise OptionError(f"there is no case {asked!r}; there are {names}")
        wanted += found
    return [each for each in every if each in wanted]


def _words(trace: Trace, policy: str) -> tuple[str, str, str]:
    return trace.name, trace.work, policy


def measure(
    place: Arena, trace: Trace, policy: str, size: ScaleSize, progress: Progress
) -> dict[str, Any]:
    """One trace with one policy."""
    timeline, identical, bound = _run(place, trace, policy, size)
    plant = _plant(trace, timeline, size, local_cpus(place.spark))
    rows = trace.interval_rows(size.interval_s)
    late_s = plant.late_s(rows)
    cost = timeline.channel_s(trace.length_s)
    figures = {
        "trace": trace.name,
        "work": trace.work,
        "policy": policy,
        "changes": len(timeline.changes),
        "overshoot": round(max(timeline.channels) / max(map(plant.needed, rows)), 2),
        "late_batches": sum(took_s > late_s for took_s in timeline.took_s),
        "settle_batches": settle_batches(timeline, trace.steps_s),
        "cost_ratio": round(cost / plant.own_channel_s(rows), 2),
        "fixed_cost_ratio": round(cost / plant.fixed_channel_s(rows), 2),
        "identical": identical,
        "batches": len(timeline.channels),
        "aside_ms": round(1000 * plant.aside_s),
        "bound": bound,
        "channels": list(timeline.channels),
    }
    progress(
        f"{trace.name:<9}{trace.work:<10}{policy:<6}{figures['changes']:>2} changes, overshoot "
        f"{figures['overshoot']}, {figures['late_batches']} of {figures['batches']} late, "
        f"{figures['cost_ratio']} of the oracle's cost, channels {figures['channels']}"
    )
    return figures


def settle_batches(timeline: Timeline, steps_s: Sequence[float]) -> int:
    """Batches of a new load until channels changed for the last time, at the step that took most.

    A change with its first batch is none too late: its size was known before.
    """
    worst = 0
    for from_s, to_s in zip(steps_s, [*steps_s[1:], float("inf")], strict=True):
        within = [n for n, at_s in enumerate(timeline.starts_s) if from_s < at_s <= to_s]
        changed = [n for n in timeline.changes if n in within]
        if changed:
            worst = max(worst, changed[-1] - within[0])
    return worst


def _plant(trace: Trace, timeline: Timeline, size: ScaleSize, cpus: int | None) -> Plant:
    """What the run shows of costs, so that a slow machine is as slow for the oracle, which has as
    many processors as the query.
    """
    beside_s = [
        took_s - busiest_s - rows * trace.sink_row_s
        for took_s, busiest_s, rows in zip(
            timeline.took_s, timeline.busiest_s, timeline.rows, strict=True
        )
    ]
    return Plant(
        interval_s=size.interval_s,
        row_s=sum(timeline.busy_s) / max(1, sum(timeline.rows)),
        aside_s=max(0.0, median(beside_s)),
        most=size.most,
        sink_row_s=trace.sink_row_s,
        hot_share=trace.hot_share,
        cores=cpus if trace.work == "computing" else None,
    )


def _run(place: Arena, trace: Trace, policy: str, size: ScaleSize) -> tuple[Timeline, bool, str]:
    """The batches, whether the output is right, and why there were no more channels."""
    directory = Path(place.fresh("in-scale"))
    directory.mkdir(parents=True)
    seen = _ScaleFigures(trace.sink_row_s)
    reader = place.spark.readStream.schema(INPUT)
    if trace.is_bounded:
        reader = reader.option("maxFilesPerTrigger", max(1, round(size.interval_s / FILE_S)))
    query = (
        _work(trace, reader.parquet(str(directory)))
        .writeStream.foreachBatch(seen.take)
        .option("checkpointLocation", place.fresh("checkpoint"))
        .option("braided.channels", 1)
        .options(**size.options(policy))
        .trigger(processingTime=f"{size.interval_s} seconds")
        .start()
    )
    try:
        of_feed = (directory, trace, size, seen, query)
        feeder = threading.Thread(target=_feed, args=of_feed, daemon=True)
        feeder.start()
        feeder.join()
        query.processAllAvailable()
        batches = with_data(query.recentProgress)
    finally:
        query.stop()
    timeline = Timeline.of(batches, _NAME, seen.begun_s or 0.0)
    return timeline, _is_right(trace, directory, seen), _bound(batches)


def _work(trace: Trace, rows: DataFrame) -> Any:
    if not trace.sessions:
        operator = CostlyRows.with_(row_s=trace.row_s, computed=trace.computed)
        return braided.stream(rows).groupBy("k").apply(operator, OUTPUT).name(_NAME)
    closing = CostlySessions.with_(
        row_s=trace.row_s, timer_s=trace.timer_s, computed=trace.computed
    )
    timed = rows.withColumn("at", F.col("v").cast("timestamp")).withWatermark("at", "0 seconds")
    keyed = braided.stream(timed).groupBy("k")
    return keyed.apply(closing, OUTPUT, timeMode="EventTime").name(_NAME)


def _feed(
    directory: Path, trace: Trace, size: ScaleSize, seen: _ScaleFigures, query: braided.ElasticQuery
) -> None:
    """Rows arrive as the trace says, whatever becomes of them."""

    drawn = keys_of(trace, size.interval_s)

    def keys(number: int) -> KeyNumbers:
        # Where more comes than can be done, what comes before the clock starts would be in the way.
        is_trickle = trace.is_bounded and seen.begun_s is None
        return drawn(number)[:: 10 if is_trickle else 1]

    def begin(at_s: float) -> None:
        seen.begun_s = at_s

    usual = trace.interval_rows(size.interval_s)[0]
    arrive(
        directory,
        round(trace.length_s / FILE_S),
        keys,
        lambda: _is_steady(with_data(query.recentProgress), usual, size),
        begin,
        lambda: query.isActive,
    )
    if trace.sessions:
        show_rows(directory, np.array([_CLOSER]), time.time() + 2 * SESSION_GAP_S)


def _is_steady(batches: Sequence[Any], usual: int, size: ScaleSize) -> bool:
    """Whether the first batches, which take long, are over, and nothing waits because of them; a
    machine that is too slow for that is not waited for.
    """
    if len(batches) < size.first_batches:
        return False
    last = batches[-_STEADY:]
    channels = {batch["braided"]["operators"][_NAME]["channels"] for batch in last}
    is_calm = len(channels) == 1 and last[-1]["numInputRows"] <= 1.5 * usual
    return is_calm or len(batches) >= size.first_batches + size.patience_batches


def _is_right(trace: Trace, directory: Path, seen: _ScaleFigures) -> bool:
    keys: KeyNumbers = pq.read_table(directory, columns=["k"])["k"].to_numpy()
    expected = sessions(keys[keys != _CLOSER]) if trace.sessions else numbered(keys)
    output = np.concatenate(seen.outputs)
    output = output[np.lexsort((output[:, 1], output[:, 0]))]
    return len(output) > 0 and np.array_equal(output, expected)


def _bound(batches: Sequence[Any]) -> str:
    # The controller says nothing of the first batches.
    said = [batch["braided"]["control"].get("operators", {}).get(_NAME, {}) for batch in batches]
    return next((each["bound"] for each in reversed(said) if each.get("bound")), "")

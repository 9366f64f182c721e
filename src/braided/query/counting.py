"""A batch's rows counted by slot before they are routed, so that its tables fit them.

The input is kept for the batch that follows, so that it is read once, and only the columns that
keys are made of are looked at again. Each partition counts for itself; what comes to the driver is
at most a number for each slot and partition. Only operators are counted that take in what a source
gives out: the rows of others are not there yet. Whatever goes wrong here costs the batch its better
table and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame

from braided import failpoints
from braided.control.events import Counted
from braided.control.routing.table import Loads, RoutingTable
from braided.control.same_batch import PassOutlook, saved_by
from braided.flow.graph import Keyed
from braided.query.behind import late_watermarks
from braided.query.plan import BatchFrames, FlowPlan
from braided.query.progress import StepTimes
from braided.query.version import Version
from braided.spark.catalyst import Catalyst
from braided.spark.jvm import runs_python
from braided.spark.offset_log import BatchTimes
from braided.steering.control_thread import ControlThread
from braided.steering.same_batch import SameBatch
from braided.tasks.failure import is_interrupt
from braided.tasks.spec import BatchSpec

__all__ = ["Arrived", "Counting", "countable"]

log = logging.getLogger("braided")


def countable(plan: FlowPlan) -> dict[str, Keyed]:
    """The operators whose rows can be counted, by name."""
    first = plan.first_operators
    return {plan.flow.step(node).name: node for node in first if plan.stages[node].rows_are_counted}


@dataclass(frozen=True)
class Arrived:
    """A batch that may be counted."""

    df: DataFrame
    batch: int
    times: BatchTimes
    before: Version
    taken: Mapping[str, RoutingTable]
    """The tables by which it would run."""


class Counting:
    """Counts the rows of batches where that pays, and gives them tables."""

    def __init__(self, plan: FlowPlan, same_batch: SameBatch, control: ControlThread) -> None:
        self._plan = plan
        self._nodes = countable(plan)
        self._same_batch = same_batch
        self._control = control
        self._kept: DataFrame | None = None
        self._catalyst: Catalyst | None = None
        self._unpythonic = False
        """Whether it is known that no Python runs in a pass."""
        self._outlook = PassOutlook(False, "")

    def is_due(self, batch: int) -> bool:
        """Whether a batch should be counted if it takes anything in."""
        outlook = self._outlook = self._same_batch.outlook(batch)
        switched = self._same_batch.switched(batch, outlook)
        if switched is not None:
            self._control.note(switched)
        return outlook.counts

    def tables(
        self, arrived: Arrived, spoken_for: Collection[str], steps: StepTimes
    ) -> dict[str, RoutingTable]:
        """The tables of a batch by its rows; those that were taken already where they are as good,
        as a user's are.
        """
        taken, tables = arrived.taken, arrived.before.tables
        names = [
            name
            for name in self._nodes
            if name not in spoken_for and _may_follow_rows(taken[name], tables[name])
        ]
        if not names:
            return dict(taken)
        try:
            with steps.step("count"):
                return self._tables(arrived, names)
        except Exception as error:
            if is_interrupt(error) or isinstance(error, failpoints.Crash):
                raise
            self.let_go()
            words = str(error).split("\n", 1)[0]
            self._same_batch.refuse(f"it failed: {words}")
            log.warning("rows are not counted before they are routed any more: %s", words)
            return dict(taken)

    def let_go(self) -> None:
        """The batch is over, or failed: its input is not kept any longer."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        try:
            kept.unpersist()
        except Exception as error:  # it must not stand in for what ended the batch
            log.debug("counted input is still kept: %s", error)

    def show(self, batch: int) -> dict[str, object]:
        return self._same_batch.show(batch, self._outlook)

    def _tables(self, arrived: Arrived, names: list[str]) -> dict[str, RoutingTable]:
        began_s = time.perf_counter()
        counts = self._count(arrived, names)
        plans = self._same_batch.choose(arrived.taken, arrived.before.tables, counts)
        counted = Counted(
            batch=arrived.batch,
            rows=int(sum(rows.sum() for rows in counts.values())),
            pass_s=time.perf_counter() - began_s,
            saved_s=saved_by(plans),
            moved_slots={name: plan.moved_slots for name, plan in plans.items()},
        )
        self._same_batch.note(counted)
        self._control.note(counted)
        failpoints.reach("counted")
        moved = {name: plan.table for name, plan in plans.items() if plan.moved_slots}
        return {**arrived.taken, **moved}

    def _count(self, arrived: Arrived, names: list[str]) -> dict[str, Loads]:
        df, batch, before, taken = arrived.df, arrived.batch, arrived.before, arrived.taken
        df.sparkSession.sparkContext.setJobDescription(f"braided batch {batch}: counting")
        self._kept = df.persist()
        spec = BatchSpec(
            token="",
            batch=batch,
            batch_time_ms=arrived.times.batch_time_ms,
            watermark_ms=arrived.times.watermark_ms,
            late_watermark_ms=before.watermark_ms,
            due={},
            cut=None,
            behind=late_watermarks(before),
        )
        frames = BatchFrames(self._plan, df, spec, taken, before.view.carry, None)
        counts = {name: frames.counted(self._nodes[name]) for name in names}
        if not self._unpythonic:
            # Carried rows are read by a function of ours, which says nothing of the user's.
            known = set(names) - {file.operator for file in before.view.carry}
            for name in [name for name in counts if name in known and runs_python(counts[name])]:
                del counts[name], self._nodes[name]
                self._same_batch.leave_out(name)
            self._unpythonic = set(self._nodes) <= known
        return {name: self._read(frame, len(taken[name].slots)) for name, frame in counts.items()}

    def _read(self, grouped: DataFrame, slots: int) -> Loads:
        """How many rows there are in each slot."""
        spark = grouped.sparkSession
        if self._catalyst is None:
            self._catalyst = Catalyst(spark)
        halves = self._catalyst.halves(grouped)
        if halves is not None:  # without an exchange, and the stage that would come after it
            grouped = self._catalyst.planned(spark, halves[0])
        counted = grouped.toArrow()
        rows = np.zeros(slots)
        np.add.at(rows, counted.column(0).to_numpy(), counted.column(1).to_numpy())
        return rows


def _may_follow_rows(taken: RoutingTable, before: RoutingTable) -> bool:
    """Whether slots of a table may be moved once more. One by which keys change slots was made for
    a reason; and of hosts that channels are new on it is not known how fast they are there, while
    their slots were brought there for this very batch.
    """
    return taken.keeps_keys_of(before) and (not before.hosts or taken.hosts == before.hosts)

"""What is done when a batch is published, before Spark asks for the next one."""

from __future__ import annotations

import time
from typing import Any

from braided.control.measure.estimator import Estimator
from braided.control.routing.balance import rebalance
from braided.control.routing.table import RoutingTable, moves
from braided.flow.graph import Flow
from braided.hosts.transition import Transition
from braided.migrate.metrics import Commit
from braided.query.after_cuts import AfterCuts
from braided.query.counting import Counting
from braided.query.cutting import Cutter
from braided.query.due import next_alarm
from braided.query.first_states import FirstStates
from braided.query.migrating import Migrations
from braided.query.progress import StepTimes, section
from braided.query.version import Version
from braided.spark.offset_log import SparkLog
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.control_thread import CommittedBatch, ControlThread
from braided.steering.sampling import totals_of
from braided.store.history.garbage import Collector
from braided.tasks.outcome import Outcome

__all__ = ["BetweenBatches"]


class BetweenBatches:
    """Measures, puts commands behind it that took effect, and asks for the next batch."""

    def __init__(
        self,
        flow: Flow,
        first_states: FirstStates,
        spark_log: SparkLog,
        bell: Bell,
        commands: Commands,
        estimator: Estimator,
        control: ControlThread,
        collector: Collector,
        empty_batches: bool,
        migrations: Migrations,
        cutter: Cutter,
        counting: Counting,
        transition: Transition | None = None,
    ) -> None:
        self._flow = flow
        self._first_states = first_states
        self._spark_log = spark_log
        self._bell = bell
        self._commands = commands
        self._estimator = estimator
        self._control = control
        self._collector = collector
        self._empty_batches = empty_batches
        self._migrations = migrations
        self._cutter = cutter
        self._after_cuts = AfterCuts(control.note)
        self._counting = counting
        self._transition = transition

    def settle(
        self, outcome: Outcome, before: Version, after: Version, steps: StepTimes
    ) -> dict[str, Any]:
        """What the batch shows of itself, once all that follows from it is done."""
        self._commands.done(after.tables)
        totals = totals_of(outcome)
        if self._transition is not None:
            totals = self._transition.note_committed(outcome, totals)
        self._estimator.add(totals)
        self.ask_for_next(after, self._spark_log.had_input(outcome.batch))
        self._collector.collect(after.batch)
        cut = outcome.cut if outcome.rows_left else None
        if cut is not None and cut.rebalances:
            self._commands.propose(self._rebalanced(after))
        slowest = [max((r.busy_ns for r in each), default=0) for each in outcome.reports.values()]
        batch_s = sum(steps.ms.values()) / 1000
        self._cutter.learn(batch_s, sum(slowest) / 1e9, cut is not None)
        rows_out = sum(report.rows_out for each in outcome.reports.values() for report in each)
        migration = self._migrations.ended(outcome, rows_out)
        after_cut = self._after_cuts.ended(outcome, Commit(time.monotonic(), rows_out))
        moved = {name: len(moves(before.tables[name], after.tables[name])) for name in after.tables}
        loads = {name: self._estimator.load(name) for name in after.tables}
        content = section(
            after.view, after.tables, outcome.reports, moved, loads, steps, outcome.late
        )
        if migration is not None:
            content["migration"] = migration
        content |= after_cut
        if self._transition is not None:
            content["cluster"] = self._transition.show(outcome)
        content["sameBatch"] = self._counting.show(outcome.batch)
        return {**content, "control": self._control.summary()}

    def _rebalanced(self, version: Version) -> dict[str, RoutingTable]:
        """Tables in which busy channels have handed slots to idle ones, where that helps."""
        tables = {
            name: rebalance(table, self._estimator.load(name))
            for name, table in version.tables.items()
        }
        return {name: table for name, table in tables.items() if table != version.tables[name]}

    def hand_over(self, outcome: Outcome, after: Version) -> None:
        """Leaves the batch with the controller, which makes up its mind in a thread of its own,
        while Spark finds out what the next batch is.
        """
        facts = None if self._transition is None else self._transition.facts(outcome.tables)
        batch = CommittedBatch(outcome, after.view, time.time(), self._estimator.loads(), facts)
        self._control.see(batch)

    def ask_for_next(self, version: Version, had_input: bool) -> None:
        """Rings the bell if there is something to do without input, now or later; `had_input` is
        whether the newest batch took anything in.
        """
        now, due_ms = next_alarm(
            self._flow, version.view, version.watermark_ms, had_input, self._empty_batches
        )
        if now or version.view.carry or self._first_states.are_due(version.view):
            self._bell.ring()
        self._bell.set_due(due_ms)

"""The first step of a batch: when it is, and by which tables it will run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from braided.control.measure.estimator import Estimator
from braided.control.routing.table import RoutingTable
from braided.hosts.transition import Transition
from braided.query.counting import Arrived, Counting
from braided.query.progress import StepTimes
from braided.query.version import Version
from braided.spark.offset_log import BatchTimes, SparkLog
from braided.spark.source_log import Entry, SourceLog
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.control_thread import ControlThread
from braided.steering.input_size import input_size
from braided.tasks.failure import is_interrupt

__all__ = ["Admission", "Admitted"]

log = logging.getLogger("braided")


@dataclass(frozen=True)
class Admitted:
    """A batch that is about to run."""

    batch: int
    times: BatchTimes
    tables: Mapping[str, RoutingTable]
    cut: int | None
    """Rows for each channel to process; the rest is carried."""
    holds_input: bool
    """Whether it does what is carried, and carries what it takes in."""
    offsets: str
    """What Spark has written of the batch."""
    exposed: Mapping[Entry, str]
    """What sources have noted of its input, and others may replace."""


class Admission:
    """Answers the bell, and takes what users and the controller have asked for meanwhile."""

    def __init__(
        self,
        spark_log: SparkLog,
        source_log: SourceLog,
        bell: Bell,
        commands: Commands,
        control: ControlThread,
        estimator: Estimator,
        counting: Counting,
        transition: Transition | None = None,
    ) -> None:
        self._spark_log = spark_log
        self._source_log = source_log
        self._bell = bell
        self._commands = commands
        self._control = control
        self._estimator = estimator
        self._counting = counting
        self._transition = transition

    def admit(self, df: DataFrame, batch: int, before: Version, steps: StepTimes) -> Admitted:
        self._bell.answer(self._spark_log.tick(batch))
        cut = self._commands.cut()
        holds_input = self._commands.holds_input() and bool(before.view.carry)
        times = self._spark_log.times(batch)
        # Input that is held is not what the tables of this batch should fit.
        channels_least = {} if holds_input else self._foreseen(df, batch, times)
        tables = self._commands.take(self._estimator.load, channels_least)
        if self._transition is not None:
            following = self._transition.admit(
                before.tables,
                tables,
                before.view,
                urgent=bool(channels_least) or _begin_assigned(tables, before),
            )
            tables = following.tables
            if following.held:
                self._commands.hold(following.held)
        if not holds_input:
            tables = self._counted(df, batch, times, before, tables, steps)
        # The manifest will be durable, and counts on what sources have noted of this batch.
        self._spark_log.sync_sources()
        offsets = self._spark_log.offsets(batch)
        kept = {(copy.source, copy.entry) for copy in before.view.sources}
        exposed = self._source_log.exposed(offsets, kept)
        return Admitted(batch, times, tables, cut, holds_input, offsets, exposed)

    def let_go(self) -> None:
        """The batch has run, or failed."""
        self._counting.let_go()

    def _counted(
        self,
        df: DataFrame,
        batch: int,
        times: BatchTimes,
        before: Version,
        tables: dict[str, RoutingTable],
        steps: StepTimes,
    ) -> dict[str, RoutingTable]:
        """The tables by the rows of the batch, where those are counted. Channels stay on their
        hosts, and tables that wait for what they need go on waiting.
        """
        if not self._counting.is_due(batch) or not self._spark_log.had_input(batch):
            return tables
        spoken_for = self._commands.spoken_for()
        arrived = Arrived(df, batch, times, before, tables)
        return self._counting.tables(arrived, spoken_for, steps)

    def _foreseen(self, df: DataFrame, batch: int, times: BatchTimes) -> Mapping[str, int]:
        """Channels that a batch should have, by the size of its input; a batch does without an
        answer, whatever the reason.
        """
        try:
            if not self._control.foresees:
                return {}
            size = input_size(df, self._spark_log, batch)
            return self._control.foresee(batch, size, times.batch_time_ms)
        except Exception as error:
            if is_interrupt(error):
                raise
            log.warning("batch %d keeps its channels, its input was not sized: %s", batch, error)
            return {}


def _begin_assigned(tables: Mapping[str, RoutingTable], before: Version) -> bool:
    """Whether operators that are new begin with keys that a file has put together: the file is read
    when they begin, so that is not put off.
    """
    known = before.view.operators
    return any(table.assigned and name not in known for name, table in tables.items())
